"""The flights as a stream: files in order of actual departure, moved in one after the other.

Event time is the *scheduled* departure, so the stream is out of order exactly as reality was: a
flight that left 21 h 41 min late comes 21 h 40 min behind the newest scheduled time before it.
Cancelled flights have no departure and stand at their scheduled time. A few malformed lines are
mixed in, always the same.
"""

from __future__ import annotations

import csv
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

from demo.dataset import Dataset

FILES_COUNT = 336
BAD_LINES_COUNT = 25
_NEW_YORK = ZoneInfo("America/New_York")


@dataclass(frozen=True)
class Flight:
    """One line of the stream and the moment it appears."""

    at: datetime
    departed: datetime
    line: str


def flights_in_order(dataset: Dataset) -> list[Flight]:
    """Return all flights in order of actual departure; ties keep the data's order."""
    flights = [_flight(row) for row in dataset.rows("flights")]
    flights.sort(key=lambda flight: flight.departed)
    return flights


def longest_disorder(flights: Sequence[Flight]) -> timedelta:
    """Return how far an event time ever is behind the newest one before it."""
    longest, newest = timedelta(), flights[0].at
    for flight in flights:
        newest = max(newest, flight.at)
        longest = max(longest, newest - flight.at)
    return longest


def _flight(row: dict[str, str]) -> Flight:
    local = datetime(
        int(row["year"]), int(row["month"]), int(row["day"]),
        int(row["hour"]), int(row["minute"]), tzinfo=_NEW_YORK,
    )  # fmt: skip
    at = local.astimezone(timezone.utc)
    delay = None if row["dep_delay"] == "NA" else float(row["dep_delay"])
    fields = {
        "at": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "carrier": row["carrier"],
        "flight": int(row["flight"]),
        "tailnum": None if row["tailnum"] == "NA" else row["tailnum"],
        "origin": row["origin"],
        "dest": row["dest"],
        "delay": delay,
    }
    line = json.dumps(fields, separators=(",", ":"))
    return Flight(at, at + timedelta(minutes=delay or 0), line)


def _bad_line(number: int, flight: Flight) -> str:
    """What a gate computer might send on a bad day; `number` chooses the kind."""
    fields = json.loads(flight.line)
    kinds = [
        flight.line[: len(flight.line) // 2],
        json.dumps({**fields, "delay": "two hours"}, separators=(",", ":")),
        json.dumps({**fields, "at": "yesterday"}, separators=(",", ":")),
        f"### gate reader {number} restarted ###",
        json.dumps({**fields, "flight": "n/a"}, separators=(",", ":")),
    ]
    return kinds[number % len(kinds)]


def write_files(
    flights: Sequence[Flight],
    folder: Path,
    *,
    files_count: int = FILES_COUNT,
    bad_lines_count: int = BAD_LINES_COUNT,
) -> list[Path]:
    """Write the stream as JSON-lines files into a folder that nobody reads; return them in order.

    The malformed lines are spread evenly, each in the middle of a file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    bad_in = {round((i + 0.5) * files_count / bad_lines_count): i for i in range(bad_lines_count)}
    paths = []
    for number, chunk in enumerate(_chunks(flights, files_count)):
        lines = [flight.line for flight in chunk]
        if number in bad_in:
            middle = len(lines) // 2
            lines.insert(middle, _bad_line(bad_in[number], chunk[middle]))
        path = folder / f"flights-{number:04d}.json"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        paths.append(path)
    return paths


def _chunks(flights: Sequence[Flight], count: int) -> Iterator[Sequence[Flight]]:
    for number in range(count):
        start, end = (len(flights) * i // count for i in (number, number + 1))
        yield flights[start:end]


def write_reference(dataset: Dataset, folder: Path) -> None:
    """Write the tables the stream is enriched with: airline names, hourly weather."""
    folder.mkdir(parents=True, exist_ok=True)
    airlines = [(row["carrier"], row["name"]) for row in dataset.rows("airlines")]
    _write_csv(folder / "airlines.csv", ("carrier", "airline"), airlines)
    columns = ("temp", "wind_speed", "precip", "visib")
    weather = [
        (row["origin"], row["time_hour"], *("" if row[c] == "NA" else row[c] for c in columns))
        for row in dataset.rows("weather")
    ]
    _write_csv(folder / "weather.csv", ("origin", "hour", *columns), weather)


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


class Replayer:
    """Moves finished files into the inbox at an even rate, on a thread of its own."""

    def __init__(self, paths: Sequence[Path], inbox: Path, duration_seconds: float) -> None:
        self._paths, self._inbox, self._duration = paths, inbox, duration_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replayer", daemon=True)
        self.published = 0

    @property
    def finished(self) -> bool:
        return self.published == len(self._paths)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        for number, path in enumerate(self._paths):
            due = began + self._duration * number / len(self._paths)
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            self.publish(path)
            self.published = number + 1

    def publish(self, path: Path) -> None:
        # It arrives now: files are read in order of modification time.
        os.utime(path)
        path.rename(self._inbox / path.name)

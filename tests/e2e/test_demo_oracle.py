"""The demo's judge must find what is wrong: every kind of damage, on a small dataset."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from demo.dataset import Dataset
from demo.oracle import OutputVerdict, Verdict, check_outputs
from demo.replay import flights_in_order, longest_disorder, write_files, write_reference

FLIGHTS = """\
year,month,day,dep_time,sched_dep_time,dep_delay,carrier,flight,tailnum,origin,dest,hour,minute,time_hour
2013,1,1,517,515,2,UA,1545,N14228,EWR,IAH,5,15,2013-01-01T10:00:00Z
2013,1,1,700,530,90,UA,1714,NA,EWR,IAH,5,30,2013-01-01T10:00:00Z
2013,1,1,542,540,2,AA,1141,N619AA,EWR,MIA,5,40,2013-01-01T10:00:00Z
2013,7,1,NA,600,NA,AA,9,NA,JFK,MIA,6,0,2013-07-01T10:00:00Z
"""
AIRLINES = "carrier,name\nUA,United\nAA,American\n"
WEATHER = "origin,temp,wind_speed,precip,visib,time_hour\nEWR,39.02,NA,0,10,2013-01-01T10:00:00Z\n"
DATASET = Dataset(FLIGHTS, AIRLINES, WEATHER)
HOUR = datetime(2013, 1, 1, 10, tzinfo=timezone.utc)
SUMMER = datetime(2013, 7, 1, 10, tzinfo=timezone.utc)

HOURLY: list[dict[str, Any]] = [
    {
        "origin": "EWR", "window_start": HOUR, "window_end": HOUR + timedelta(hours=1),
        "n": 3, "mean": 94 / 3, "worst": 90.0,
    },
    {
        "origin": "JFK", "window_start": SUMMER, "window_end": SUMMER + timedelta(hours=1),
        "n": 1, "mean": None, "worst": None,
    },
]  # fmt: skip
BADLY: dict[str, Any] = {
    "at": "2013-01-01T10:30:00.000000Z", "airline": "United", "carrier": "UA", "flight": 1714,
    "origin": "EWR", "dest": "IAH", "delay": 90.0, "temp": 39.02, "wind_speed": None,
    "precip": 0.0, "visib": 10.0,
}  # fmt: skip


class Outputs:
    """Output files of a demo job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        DATASET.write_csv(folder / "csv")
        write_reference(DATASET, folder / "reference")
        self.lines = write_files(
            flights_in_order(DATASET), folder / "inbox", files_count=2, bad_lines_count=1
        )
        self.bad: dict[str, Any] = {
            "source": "flights",
            "position": self._bad_file().absolute().as_uri(),
            "reason": "any",
            "raw": self._bad_line(),
        }
        self.epochs = 0

    def _bad_line(self) -> str:
        return next(line for path in self.lines for line in _lines(path) if not line.endswith("}"))

    def _bad_file(self) -> Path:
        return next(path for path in self.lines if self._bad_line() in _lines(path))

    def write_right(self) -> None:
        self.hourly(HOURLY[:1])
        self.hourly(HOURLY[1:])
        self.json("badly_delayed", [BADLY])
        self.json("bad_rows", [self.bad])

    def hourly(self, rows: list[dict[str, Any]]) -> None:
        def write(path: Path) -> None:
            schema = pa.schema(
                {
                    "origin": pa.string(),
                    "window_start": pa.timestamp("us", "UTC"),
                    "window_end": pa.timestamp("us", "UTC"),
                    "n": pa.int64(),
                    "mean": pa.float64(),
                    "worst": pa.float64(),
                }
            )
            pyarrow.parquet.write_table(pa.Table.from_pylist(rows, schema), path)

        self._commit("hourly", "parquet", write)

    def json(self, sink: str, rows: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        self._commit(sink, "json", lambda path: path.write_text(text, encoding="utf-8"))

    def _commit(self, sink: str, suffix: str, write: Callable[[Path], Any]) -> None:
        self.epochs += 1
        folder = self.folder / "out" / sink
        (folder / "_epochs").mkdir(parents=True, exist_ok=True)
        path = folder / f"part-{self.epochs}.{suffix}"
        write(path)
        entry = {"name": path.name, "rows": 1, "bytes": path.stat().st_size, "checksum": "0"}
        manifest = folder / "_epochs" / f"{self.epochs}.json"
        manifest.write_text(json.dumps({"files": [entry]}), encoding="utf-8")

    def check(self) -> Verdict:
        return check_outputs(self.folder / "csv", self.folder / "inbox", self.folder / "out")

    def verdict(self, name: str) -> OutputVerdict:
        return next(output for output in self.check().outputs if output.name == name)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def outputs(tmp_path: Path) -> Outputs:
    return Outputs(tmp_path)


def test_right_outputs_are_exact(outputs: Outputs) -> None:
    outputs.write_right()
    verdict = outputs.check()
    assert verdict.is_exact, verdict
    assert (verdict.flights, verdict.bad_lines) == (4, 1)


def test_nothing_written_is_all_missing(outputs: Outputs) -> None:
    assert [o.missing for o in outputs.check().outputs] == [2, 1, 1]


def test_a_row_written_twice_is_a_duplicate(outputs: Outputs) -> None:
    outputs.write_right()
    outputs.hourly(HOURLY[1:])
    outputs.json("badly_delayed", [BADLY, BADLY])
    assert (outputs.verdict("hourly").duplicates, outputs.verdict("hourly").wrong) == (1, 0)
    assert outputs.verdict("badly_delayed").duplicates == 2
    assert not outputs.check().is_exact


def test_a_changed_row_is_missing_and_wrong(outputs: Outputs) -> None:
    outputs.write_right()
    outputs.folder.joinpath("out/badly_delayed/_epochs/3.json").unlink()
    outputs.json("badly_delayed", [{**BADLY, "airline": None}])
    found = outputs.verdict("badly_delayed")
    assert (found.missing, found.wrong, found.duplicates) == (1, 1, 0)
    assert found.stray_files == ("part-3.json",), "what no manifest lists"


def test_a_bad_row_under_another_position_is_wrong(outputs: Outputs) -> None:
    outputs.write_right()
    outputs.json("bad_rows", [{**outputs.bad, "position": "file:///elsewhere/x.json"}])
    assert outputs.verdict("bad_rows").wrong == 1


def test_files_that_do_not_fit_their_manifest_are_named(outputs: Outputs) -> None:
    outputs.write_right()
    out = outputs.folder / "out"
    (out / "hourly" / "part-1.parquet").unlink()
    with (out / "bad_rows" / "part-4.json").open("a", encoding="utf-8") as file:
        file.write("\n")
    assert outputs.verdict("hourly").problems == (
        "1.json lists part-1.parquet, which is not there",
    )
    assert outputs.verdict("bad_rows").problems == (
        "part-4.json has another size than 4.json says",
    )


def test_hidden_files_are_no_output(outputs: Outputs) -> None:
    outputs.write_right()
    staged = outputs.folder / "out" / "hourly" / ".staging" / "x.parquet"
    staged.parent.mkdir()
    staged.write_bytes(b"")
    assert outputs.check().is_exact


def test_flights_come_in_order_of_actual_departure() -> None:
    flights = flights_in_order(DATASET)
    numbers = [json.loads(flight.line)["flight"] for flight in flights]
    assert numbers == [1545, 1141, 1714, 9], "1714 left an hour and a half late; 9 never left"
    assert longest_disorder(flights) == timedelta(minutes=10)
    assert json.loads(flights[3].line)["at"] == "2013-07-01T10:00:00Z", "summer time"
    assert json.loads(flights[3].line)["delay"] is None

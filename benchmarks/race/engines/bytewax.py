"""Bytewax: two processes, a snapshot every second, rows in two files that a restart cuts back.

Written as a user who wants speed would: bids are grouped in plain Python batch by batch, and each
of two shards keeps its windows in one `stateful_batch` step. Bytewax's own windows are not used:
their clock is one per key and follows the wall clock, so in a backlog most windows would stay
open until that many seconds have really passed.

One source partition per process: files in order of name, every other one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from benchmarks.race.order import Order, read_order

SHARDS = 2
_BATCH = 2000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NO_TIME = -(10**15)

Batch = list[dict[str, Any]]


# The queries. Each is a pair: `group` turns a batch of events into (shard, part), and a step keeps
# parts until the watermark passes.


class Step:
    """One shard's state of a query; a plain value that can be pickled."""

    def __init__(self) -> None:
        self.open: dict[Any, Any] = {}

    def add(self, part: Any) -> list[dict[str, Any]]:
        """Takes in what `group` made for this shard, and may answer."""
        raise NotImplementedError

    def close(self, watermark_ms: int) -> list[dict[str, Any]]:
        """Answers and forgets what ends at or before the watermark."""
        return []


class Counts(Step):
    """q5's first half, per shard: bids of an auction per slide; a window is five slides."""

    slide_ms, slides = 2_000, 5

    def __init__(self) -> None:
        super().__init__()
        self.next_end: int | None = None

    def add(self, part: Any) -> list[dict[str, Any]]:
        for (slide, auction), n in part.items():
            self.open.setdefault(slide, Counter())[auction] += n
        return []

    def close(self, watermark_ms: int) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        while self.open:
            oldest = min(self.open)
            end = max(self.next_end or 0, oldest + self.slide_ms)
            if end > watermark_ms:
                break
            total: Counter[int] = Counter()
            for slide in range(end - self.slides * self.slide_ms, end, self.slide_ms):
                total.update(self.open.get(slide, {}))
            if total:
                num = max(total.values())
                answers += [
                    {"auction": auction, "num": n, "window_end": end}
                    for auction, n in total.items()
                    if n == num
                ]
            self.next_end = end + self.slide_ms
            for slide in [s for s in self.open if s < self.next_end - self.slides * self.slide_ms]:
                del self.open[slide]
        return answers


def q5_group(events: Batch) -> Iterable[tuple[int, Any]]:
    slides: list[Counter[tuple[int, int]]] = [Counter() for _ in range(SHARDS)]
    for event in events:
        bid = event["bid"]
        if bid is not None:
            ms, auction = event["ms"], bid["auction"]
            slides[auction % SHARDS][ms - ms % Counts.slide_ms, auction] += 1
    return enumerate(slides)


class Tops(Step):
    """q5's second half, in one place: the best of the shards' best."""

    def add(self, part: Any) -> list[dict[str, Any]]:
        for row in part:
            self.open.setdefault(row["window_end"], []).append(row)
        return []

    def close(self, watermark_ms: int) -> list[dict[str, Any]]:
        answers = []
        for end in sorted(end for end in self.open if end <= watermark_ms):
            rows = self.open.pop(end)
            num = max(row["num"] for row in rows)
            answers += [{**row, "window_start": end - 10_000} for row in rows if row["num"] == num]
        return answers


class Highest(Step):
    """q7: the highest bids of a window, all in one shard."""

    def add(self, part: Any) -> list[dict[str, Any]]:
        for start, bids in part.items():
            best = self.open.get(start, []) + bids
            price = max(bid["price"] for bid in best)
            self.open[start] = [bid for bid in best if bid["price"] == price]
        return []

    def close(self, watermark_ms: int) -> list[dict[str, Any]]:
        done = sorted(start for start in self.open if start + 10_000 <= watermark_ms)
        return [bid for start in done for bid in self.open.pop(start)]


def q7_group(events: Batch) -> Iterable[tuple[int, Any]]:
    best: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        bid = event["bid"]
        if bid is not None:
            start = event["ms"] - event["ms"] % 10_000
            known = best.setdefault(start, [])
            if known and bid["price"] < known[0]["price"]:
                continue
            if known and bid["price"] > known[0]["price"]:
                known.clear()
            known.append(
                {
                    "auction": bid["auction"],
                    "price": bid["price"],
                    "bidder": bid["bidder"],
                    "date_time": event["ms"],
                    "extra": bid["extra"],
                }
            )
    return [(0, best)]


class NewSellers(Step):
    """q8: per window, names of new persons and ids of sellers."""

    def add(self, part: Any) -> list[dict[str, Any]]:
        for start, (persons, sellers) in part.items():
            window = self.open.setdefault(start, ({}, set()))
            window[0].update(persons)
            window[1].update(sellers)
        return []

    def close(self, watermark_ms: int) -> list[dict[str, Any]]:
        answers = []
        for start in sorted(start for start in self.open if start + 10_000 <= watermark_ms):
            persons, sellers = self.open.pop(start)
            bounds = {"window_start": start, "window_end": start + 10_000}
            answers += [
                {"id": id_, "name": name, **bounds}
                for id_, name in persons.items()
                if id_ in sellers
            ]
        return answers


def q8_group(events: Batch) -> Iterable[tuple[int, Any]]:
    shards: list[dict[int, Any]] = [{} for _ in range(SHARDS)]
    for event in events:
        if event["bid"] is None:
            start = event["ms"] - event["ms"] % 10_000
            person, auction = event["person"], event["auction"]
            if person is not None:
                window = shards[person["id"] % SHARDS].setdefault(start, ({}, set()))
                window[0][person["id"]] = person["name"]
            else:
                window = shards[auction["seller"] % SHARDS].setdefault(start, ({}, set()))
                window[1].add(auction["seller"])
    return enumerate(shards)


class Sessions(Step):
    """q11: open sessions of each bidder, [first, last, bids], in order."""

    gap_ms = 10_000

    def add(self, part: Any) -> list[dict[str, Any]]:
        for bidder, times in part.items():
            sessions = self.open.setdefault(bidder, [])
            sessions += [[ms, ms, 1] for ms in times]
            sessions.sort()
            merged = sessions[:1]
            for session in sessions[1:]:
                last = merged[-1]
                if session[0] < last[1] + self.gap_ms:
                    last[1] = max(last[1], session[1])
                    last[2] += session[2]
                else:
                    merged.append(session)
            self.open[bidder] = merged
        return []

    def close(self, watermark_ms: int) -> list[dict[str, Any]]:
        answers = []
        for bidder in list(self.open):
            sessions = self.open[bidder]
            while sessions and sessions[0][1] + self.gap_ms <= watermark_ms:
                first, last, bids = sessions.pop(0)
                answers.append(
                    {
                        "bidder": bidder,
                        "bid_count": bids,
                        "window_start": first,
                        "window_end": last + self.gap_ms,
                    }
                )
            if not sessions:
                del self.open[bidder]
        return answers


def q11_group(events: Batch) -> Iterable[tuple[int, Any]]:
    shards: list[dict[int, list[int]]] = [{} for _ in range(SHARDS)]
    for event in events:
        bid = event["bid"]
        if bid is not None:
            bidder = bid["bidder"]
            shards[bidder % SHARDS].setdefault(bidder, []).append(event["ms"])
    return enumerate(shards)


class Last(Step):
    """q18: the time and number of the newest bid of each pair."""

    def add(self, part: Any) -> list[dict[str, Any]]:
        answers, newest = [], self.open
        for row in part:
            pair, at = (row["bidder"], row["auction"]), (row["date_time"], row["number"])
            if at > newest.get(pair, (_NO_TIME, 0)):
                newest[pair] = at
                answers.append(row)
        return answers

    def close(self, watermark_ms: int) -> list[dict[str, Any]]:
        # Only a later bid can follow; forgetting is for when it pays.
        if len(self.open) > 200_000:
            self.open = {pair: at for pair, at in self.open.items() if at[0] > watermark_ms}
        return []


def q18_group(events: Batch) -> Iterable[tuple[int, Any]]:
    shards: list[Batch] = [[] for _ in range(SHARDS)]
    for event in events:
        bid = event["bid"]
        if bid is not None:
            row = {**bid, "date_time": event["ms"], "number": event["number"]}
            shards[bid["bidder"] % SHARDS].append(row)
    return enumerate(shards)


Group = Callable[[Batch], Iterable[tuple[int, Any]]]
STATEFUL: dict[str, tuple[Group, type[Step]]] = {
    "q5": (q5_group, Counts),
    "q7": (q7_group, Highest),
    "q8": (q8_group, NewSellers),
    "q11": (q11_group, Sessions),
    "q18": (q18_group, Last),
}


def q1_row(event: dict[str, Any]) -> dict[str, Any]:
    bid = event["bid"]
    return {
        "auction": bid["auction"],
        "bidder": bid["bidder"],
        "price": bid["price"] * 908 / 1000,
        "date_time": event["ms"],
        "extra": bid["extra"],
    }


# The dataflow.


def flow(order: Order) -> Any:
    import bytewax.operators as op
    import orjson
    from bytewax.connectors.files import DirSink
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.operators import StatefulBatchLogic

    class Files(StatefulSourcePartition):
        """Every other file of a folder, in order of name; its state is the next line's place."""

        def __init__(self, number: int, resume: tuple[int, int] | None) -> None:
            self._number = number
            self._file, self._offset = resume or (number, 0)
            self._open: Any = None
            self._wait = False

        def next_batch(self) -> list[Any]:
            self._wait = False
            if self._open is None:
                path = Path(order.source) / f"{self._file:06d}.json"
                if not path.exists():
                    self._wait = True
                    return []
                self._open = open(path, "rb")
                self._open.seek(self._offset)
            lines = self._open.readlines(600_000)
            self._offset = self._open.tell()
            if not lines:
                self._open.close()
                self._open = None
                self._file, self._offset = self._file + SHARDS, 0
                return []
            return [(self._number, lines)]

        def next_awake(self) -> datetime | None:
            return datetime.now(timezone.utc) + timedelta(milliseconds=20) if self._wait else None

        def snapshot(self) -> tuple[int, int]:
            return self._file, self._offset

        def close(self) -> None:
            if self._open is not None:
                self._open.close()

    class Folder(FixedPartitionedSource):
        def list_parts(self) -> list[str]:
            return [str(number) for number in range(SHARDS)]

        def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Files:
            return Files(int(for_part), resume_state)

    def parse(lines: list[bytes]) -> Batch:
        events = []
        for line in lines:
            event = orjson.loads(line)
            event["ms"] = _ms(event["date_time"])
            events.append(event)
        return events

    class Shard(StatefulBatchLogic):
        """A step with its watermark: the least of what all who feed it have reached."""

        def __init__(self, step: Step, feeders: int, resume: Any) -> None:
            self._step, self._reached = resume or (step, [_NO_TIME] * feeders)
            self._watermark = min(self._reached)

        def on_batch(self, values: list[Any]) -> tuple[Iterable[Any], bool]:
            answers: list[dict[str, Any]] = []
            for feeder, reached, part in values:
                answers += self._step.add(part)
                self._reached[feeder] = max(self._reached[feeder], reached)
            watermark = min(self._reached)
            closed = watermark > self._watermark
            self._watermark = watermark
            if closed:
                answers += self._step.close(watermark)
            return ([(watermark, answers)] if answers or closed else []), StatefulBatchLogic.RETAIN

        def snapshot(self) -> Any:
            import copy

            return copy.deepcopy((self._step, self._reached))

    dataflow = Dataflow("race")
    lines = op.input("files", dataflow, Folder())
    if order.query == "q1":

        def convert(batch: tuple[int, list[bytes]]) -> tuple[str, str]:
            rows = [q1_row(event) for event in parse(batch[1]) if event["bid"] is not None]
            return str(batch[0]), "\n".join(orjson.dumps(row).decode() for row in rows)

        texts = op.map("convert", lines, convert)
    else:
        group, step = STATEFUL[order.query]

        def spread(batch: tuple[int, list[bytes]]) -> list[tuple[str, Any]]:
            events = parse(batch[1])
            reached = max(event["ms"] for event in events) - order.lag_ms
            return [(str(shard), (batch[0], reached, part)) for shard, part in group(events)]

        parts = op.flat_map("spread", lines, spread)
        answers = op.stateful_batch("shard", parts, lambda resume: Shard(step(), SHARDS, resume))
        if order.query == "q5":
            to_top = op.map("to_top", answers, lambda item: ("0", (int(item[0]), *item[1])))
            answers = op.stateful_batch("top", to_top, lambda resume: Shard(Tops(), SHARDS, resume))
        texts = op.filter_map_value(
            "texts",
            answers,
            lambda item: "\n".join(orjson.dumps(row).decode() for row in item[1]) or None,
        )
    texts = op.filter_value("not_empty", texts, bool)
    output = Path(order.output)
    op.output("out", texts, DirSink(output, SHARDS, assign_file=int))
    return dataflow


def _ms(text: str) -> int:
    """Milliseconds of "2026-07-15T18:59:00.000Z", some ten times as fast as parsing the date."""
    second = _SECONDS.get(text[:19])
    if second is None:
        moment = datetime.fromisoformat(text[:19]).replace(tzinfo=timezone.utc)
        second = _SECONDS[text[:19]] = round((moment - _EPOCH).total_seconds()) * 1000
    return second + int(text[20:23])


_SECONDS: dict[str, int] = {}


def get_flow() -> Any:
    """Dataflow that bytewax.run asks for, in each of the processes."""
    return flow(Order(**__import__("json").loads(os.environ["RACE_ORDER"])))


def main() -> None:
    import json
    from dataclasses import asdict

    order = read_order()
    recovery = Path(order.state) / "recovery"
    if not recovery.exists():
        recovery.mkdir(parents=True)
        subprocess.run(
            [sys.executable, "-m", "bytewax.recovery", str(recovery), str(SHARDS)], check=True
        )
    ports = [_free_port() for _ in range(SHARDS)]
    addresses = ";".join(f"127.0.0.1:{port}" for port in ports)
    variables = {**os.environ, "RACE_ORDER": json.dumps(asdict(order))}
    children = [
        subprocess.Popen(
            [
                sys.executable, "-m", "bytewax.run", "benchmarks.race.engines.bytewax:get_flow()",
                "-r", str(recovery), "-s", "1", "-b", "0", "-i", str(number), "-a", addresses,
            ],
            env=variables,
        )
        for number in range(SHARDS)
    ]  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: [child.kill() for child in children])
    sys.exit(max(child.wait() for child in children))


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()

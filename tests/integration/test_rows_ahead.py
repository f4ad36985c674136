"""A row of the year 2099 does not make all others late: `with_timestamps(max_ahead=)`."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import JobConfig, JobResult, Pipeline
from tests.long import long

from . import ahead_child, child
from .ahead_child import FAR_MS, WINDOW_MS, ahead, counted
from .oracle import Rows, committed, difference, input_rows, windowed
from .partitioned_log import PartitionedLog
from .world import WINDOW_COLUMNS, World, random_rows, write_input


class AheadWorld(World):
    """A world whose child runs the pipeline of `ahead_child`."""

    driver = staticmethod(ahead_child.main)

    def fill(self, files: int = 6, *_: Any, **__: Any) -> AheadWorld:
        """All but the last file have a row of 2099 among the others."""
        for number in range(files):
            rows = random_rows(number, 20, seed=7)
            if number < files - 1:
                rows.insert(number, {"k": "key-0", "ts": FAR_MS + number, "v": number})
            write_input(self.folder / "in" / "left", number, rows)
        return self

    def run_to_end(self, pipeline: Pipeline, **config: Any) -> JobResult:
        with self.jet() as jet:
            return jet.run(
                pipeline, JobConfig(**{**child.CONFIG, **config}), until="completed",
                on_event=self.see,
            )  # fmt: skip

    def check(self, inputs: Path, result: JobResult) -> None:
        rows = input_rows(inputs)
        far = [row for row in rows if row["ts"] >= FAR_MS]
        assert far and result.counted == {"rows": {"rows_ahead": len(far)}}
        assert not committed(self.folder / "out" / "late", ("k", "ts", "v"))
        found = committed(self.folder / "out" / "counts", WINDOW_COLUMNS)
        assert not difference(found, windowed(rows, WINDOW_MS))
        totals: Counter[str] = Counter()
        running: Rows = Counter()
        for row in sorted(rows, key=lambda row: row["ts"]):
            totals[row["k"]] += row["v"]
            running[row["k"], row["ts"], totals[row["k"]]] += 1
        last_of_time = committed(self.folder / "out" / "running", ("k", "ts", "total"))
        assert last_of_time.total() == len(rows)
        assert {row for row in last_of_time if row[1] >= FAR_MS} == {
            row for row in running if row[1] >= FAR_MS
        }


@pytest.fixture
def world(world: World) -> AheadWorld:
    return AheadWorld(world.folder, world.fail_points, world.spark)


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param("epoch.acked:4=kill", marks=long),
        pytest.param("record.snapshot.before:4=kill", marks=long),
        "record.snapshot.after:4=kill",
    ],
)
def test_killed_and_repeated(world: AheadWorld, rules: str) -> None:
    """The epoch with such a row is repeated under a later clock, by 12 shards. It is counted once,
    and no row is late."""
    world.fill()
    world.run_child(rules)
    world.run_child("epoch.acked:2=kill", config={"parallelism": 12})
    with world.jet() as jet:
        clock_ms = jet.job("ahead").manifest().watermarks["clock_ms"]
    assert clock_ms, "the clock is in the snapshot"
    result = world.run_to_end(ahead(world.folder), parallelism=12)
    world.check(world.folder / "in" / "left", result)


def test_without_the_bound_all_others_are_late(world: AheadWorld) -> None:
    world.fill()
    result = world.run_to_end(ahead(world.folder, max_ahead=None))
    assert committed(world.folder / "out" / "late", ("k", "ts", "v")).total() > 60
    assert result.counted == {}


def test_partition_by_partition(world: AheadWorld, caplog: pytest.LogCaptureFixture) -> None:
    """One partition has such a row in the middle; another has nothing else, and holds the watermark
    back until it is idle."""
    inputs = world.folder / "in"
    inputs.mkdir()
    rows = {
        "good": [{"k": "good", "ts": 100 * n, "v": n} for n in range(200)],
        "odd": [
            {"k": "odd", "ts": FAR_MS if n == 20 else 100 * n, "v": n} for n in range(200)
        ],
        "broken": [{"k": "broken", "ts": FAR_MS + n, "v": n} for n in range(3)],
    }  # fmt: skip
    for name, mine in rows.items():
        (inputs / f"{name}.json").write_text("".join(json.dumps(r) + "\n" for r in mine), "utf-8")
    p = Pipeline("ahead")
    read = p.read_from(PartitionedLog(f"{inputs}", dict.fromkeys(rows, 20)), name="rows")
    counted(
        read.with_timestamps("ts", max_ahead="10 seconds", idle_timeout="1 second"), world.folder
    )
    with caplog.at_level(logging.WARNING, "dagster_jet"):
        result = world.run_to_end(p)
    world.check(inputs, result)
    said = [r.getMessage() for r in caplog.records if "max_ahead" in r.getMessage()]
    assert said and all(text.startswith("job 'ahead', stage 'rows': ") for text in said)
    assert len(said) <= 3, "when the number has doubled"

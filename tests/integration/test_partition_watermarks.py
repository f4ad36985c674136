"""Partitions of a source are read at different rates: nothing becomes late by that, nothing stalls.

The event times of a partition are in order and there is no allowed lag, so that every row is late
whose partition is behind the watermark by a single window.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from typer.testing import CliRunner

from dagster_jet import Jet, JobConfig, JobResult, JournalConfig, Pipeline, Stage, sinks, windows
from dagster_jet import aggregates as agg
from dagster_jet.cli import app
from dagster_jet.execution.events import ExecutionRestarting, SnapshotCommitted
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.system import failpoint
from tests.long import long

from . import child, map_child
from .oracle import Rows, committed, input_rows, windowed
from .partitioned_log import PartitionedLog
from .test_maps import MapWorld
from .world import World

COLUMNS = ("k", "window_start", "window_end", "n", "total")
WINDOW_MS = map_child.WINDOW_MS


def rows_of_key(key: str, count: int, from_s: int, until_s: int) -> list[dict[str, Any]]:
    step = (until_s - from_s) * 1000 / count
    return [{"k": key, "ts": round(from_s * 1000 + n * step), "v": n} for n in range(count)]


# --- a map's journal ------------------------------------------------------------------------------


def write_readings(jet: Jet, from_s: int, until_s: int) -> list[dict[str, Any]]:
    """Twelve keys, some with ten times as many events as others, in the order of event time:
    two of them share a partition."""
    keys = [rows_of_key(f"k{n}", 5 + 5 * n, from_s, until_s) for n in range(12)]
    written = sorted((row for rows in keys for row in rows), key=lambda row: row["ts"])
    jet.map("readings").put_all([(r["k"], {"ts": r["ts"], "v": r["v"]}) for r in written])
    return written


def test_a_journal_read_unevenly_and_killed_in_the_middle(world: World) -> None:
    maps = MapWorld(world.folder, world.fail_points, world.spark)
    config = {"max_items_per_epoch": 60}
    out = world.folder / "out" / "counts"
    with world.jet() as jet:
        jet.map("readings", journal=JournalConfig())
        jet.map("readings").put("once", {"ts": 0, "v": 1})
        rows = [{"k": "once", "ts": 0, "v": 1}, *write_readings(jet, 0, 60)]
    maps.run_child("epoch.acked:4=kill", pipeline="windowed_changes", config=config)
    assert not committed(out, COLUMNS) - windowed(rows, WINDOW_MS)
    maps.run_pipeline(map_child.windowed_changes, until="drained", **config)
    # No idle time-out, and a key that was written once; yet all but the last window is out.
    last = max(row["ts"] for row in rows) // WINDOW_MS * WINDOW_MS
    closed = [row for row in rows if row["ts"] < last]
    assert committed(out, COLUMNS) == windowed(closed, WINDOW_MS)
    with world.jet() as jet:
        rows += write_readings(jet, 60, 90)
    result = maps.run_pipeline(map_child.windowed_changes, **config)
    assert result.status is JobStatus.COMPLETED
    assert committed(out, COLUMNS) == windowed(rows, WINDOW_MS)
    held = Counter(
        stage.held_back_by and (stage.held_back_by, stage.held_back_partition is not None)
        for event in maps.events_of(SnapshotCommitted)
        if (stage := event.stages["counts"])
    )
    assert held["readings", True] > 0 and held["readings", False] > 0
    assert maps.events_of(SnapshotCommitted)[-1].stages["counts"].late == 0


# --- a log whose partitions all hold back until they are idle -------------------------------------


def fill_log(folder: Path) -> Rows:
    """All rows of 40 seconds, except those of "quiet", which ends early; "never" has none."""
    folder.mkdir()
    for name, count, until_s in (("quick", 240, 40), ("slow", 60, 40), ("quiet", 6, 3)):
        lines = "".join(json.dumps(row) + "\n" for row in rows_of_key(name, count, 0, until_s))
        (folder / f"{name}.json").write_text(lines, "utf-8")
    return windowed(input_rows(folder), WINDOW_MS)


def run_log(world: World, idle_timeout: str, before: Any, until: str = "completed") -> JobResult:
    rates = {"quick": 80, "slow": 5, "quiet": 5, "never": 5}
    p = Pipeline("log")
    read: Stage = p.read_from(PartitionedLog(f"{world.folder}/in", rates), name="log")
    before(read).with_timestamps("ts", idle_timeout=idle_timeout).group_by("k").window(
        windows.tumbling(f"{WINDOW_MS} ms")
    ).aggregate(n=agg.count(), total=agg.sum("v"), name="counts").write_to(
        sinks.files(f"{world.folder}/out", format="json"), name="out"
    )
    with world.jet() as jet:
        config = JobConfig(**{**child.CONFIG})
        return jet.run(p, config, until=until, on_event=world.see)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(lambda rows: rows, marks=long),
        pytest.param(lambda rows: rows.filter("v >= 0").select("*"), marks=long),
        lambda rows: rows.select("k", "ts", "v").transform(lambda f: f.withColumn("w", F.col("v"))),
    ],
    ids=["directly", "behind a filter and a selection", "behind a transform"],
)
def test_a_slow_partition_a_quiet_one_and_one_without_rows(world: World, before: Any) -> None:
    expected = fill_log(world.folder / "in")
    failpoint.configure("epoch.acked:5=raise")
    run_log(world, "300 ms", before)
    assert world.events_of(ExecutionRestarting)
    assert committed(world.folder / "out", COLUMNS) == expected
    seen = [event.stages["counts"] for event in world.events_of(SnapshotCommitted)]
    assert seen[-1].late == 0
    assert seen[0].held_back_partition == "never" and seen[0].watermark_ms is None
    assert "slow" in {stage.held_back_partition for stage in seen}


@long
def test_without_idle_time_out_they_hold_back_until_the_end(world: World) -> None:
    fill_log(world.folder / "in")
    run_log(world, "0 ms", lambda rows: rows, until="drained")
    assert not committed(world.folder / "out", COLUMNS)
    members = [arg for member in "abc" for arg in ("-s", f"file://{world.folder}/store/{member}")]
    told = CliRunner().invoke(app, ["watermarks", "log", "--json", *members])
    assert told.exit_code == 0, told.output
    [row] = json.loads(told.stdout)
    assert (row["stage"], row["held_back_by"], row["partition"]) == ("counts", "log", "never")
    assert row["watermark"] is None and row["since"] is not None


@long  # test_changing_functions.py has such functions
@pytest.mark.parametrize(
    "function",
    [
        lambda frame: frame.withColumn("v", F.xxhash64("*") % 1000),
        lambda frame: frame.dropDuplicates(),
        lambda frame: frame.toDF("k", "ts", "v"),
    ],
    ids=["a hash of all columns", "a comparison of all columns", "new names for all columns"],
)
def test_a_function_that_would_notice_the_partition_does_not_get_it(
    world: World, function: Any
) -> None:
    """The function's rows come first: the source then has one watermark, and the slow partition's
    rows are late."""
    fill_log(world.folder / "in")
    seen: list[list[str]] = []

    def looking(frame: Any) -> Any:
        seen.append(frame.columns)
        return function(frame)

    run_log(world, "0 ms", lambda rows: rows.transform(looking, per_epoch=True))
    assert seen[-1] == ["k", "ts", "v"]
    assert world.events_of(SnapshotCommitted)[-1].stages["counts"].late > 0

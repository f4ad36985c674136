"""Event time that is the time of reading: `with_ingestion_timestamps`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.errors import PipelineError
from dagster_jet.execution.clock import Clock

from .world import World, write_input


def counted_as_read(folder: Path, column: str = "read_at", **place: Any) -> Pipeline:
    """Windows over all rows, by the time of reading; one millisecond long: an epoch each."""
    p = Pipeline("as_read")
    source = sources.files(f"{folder}/in", format="json", schema="v long", **place)
    rows = p.read_from(source, name="rows").with_ingestion_timestamps(column=column)
    counts = rows.window(windows.tumbling("1 ms")).aggregate(
        n=agg.count(), total=agg.sum("v"), name="counts"
    )
    counts.write_to(sinks.files(f"{folder}/out", format="json", **place), name="out")
    rows.select("v", f"unix_millis({column}) AS read_ms").write_to(
        sinks.files(f"{folder}/rows", format="json", **place), name="rows_out"
    )
    return p


def committed(folder: Path) -> list[dict[str, Any]]:
    lines = [line for p in sorted(folder.glob("*.json")) for line in p.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def test_time_of_reading_never_goes_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second execution's clock is an hour behind, as another host's may be: nothing is late."""
    now_ms = Clock.now_ms
    began_ms = round(time.time() * 1000)
    for number in range(4):
        write_input(world.folder / "in", number, [{"v": 10 * number + n} for n in range(5)])
        if number == 2:
            monkeypatch.setattr(Clock, "now_ms", lambda self: now_ms(self) - 3_600_000)
        with world.jet() as jet:
            config = JobConfig(max_items_per_epoch=1, snapshot_interval="0 ms")
            until = "completed" if number == 3 else "drained"
            jet.run(counted_as_read(world.folder), config, until=until)
    rows = sorted(committed(world.folder / "rows"), key=lambda row: row["v"])
    assert [row["v"] for row in rows] == [10 * n + v for n in range(4) for v in range(5)]
    times = [row["read_ms"] for row in rows]
    assert times == sorted(times) and began_ms <= times[0] and times[-1] <= time.time() * 1000
    assert times[10] == times[15] == times[9], "the clock stands still until it has caught up"
    counts = committed(world.folder / "out")
    assert sum(row["n"] for row in counts) == 20
    assert sum(row["total"] for row in counts) == sum(row["v"] for row in rows)


def test_a_column_of_that_name_is_refused(world: World) -> None:
    write_input(world.folder / "in", 0, [{"v": 1}])
    with world.jet() as jet, pytest.raises(PipelineError, match="the column 'v' already exists"):
        jet.run(counted_as_read(world.folder, column="v"), until="completed")

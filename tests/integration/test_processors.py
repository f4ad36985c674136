"""Promises to users' processors on Spark, beside exactly-once (`test_two_phase.py`)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.dag import Emitter, Inbox, ItemProcessor, snapshot_emitter
from dagster_jet.errors import PipelineError
from dagster_jet.snapshot.record import JobStatus

from .world import World, wait_until, write_input

ROWS = [{"f": n % 7 / 10, "ts": 100 * n, "v": n} for n in range(40)]
LAST = {"f": 0.7, "ts": 100_000, "v": 40}
"""Moves the watermark past all others."""


def patient(gate: Path, column: str = "f", output_delay: str = "1 hour") -> Any:
    """Keeps all rows, by key, until the gate is there; only a timer can notice."""

    class Patient(ItemProcessor):
        def init(self, outbox: Any, context: Any) -> None:
            super().init(outbox, context)
            self.kept: dict[float, list[dict[str, Any]]] = {}
            self.emitting = Emitter(outbox.offer)
            self.saving = snapshot_emitter(outbox.offer_to_snapshot)

        def process_item(self, ordinal: int, item: Any) -> bool:
            self.kept.setdefault(item[column], []).append(
                {name: item[name] for name in ("f", "ts", "v")}
            )
            return True

        def try_process(self) -> bool:
            return self.emitting.emit(self.what_is_due)

        def what_is_due(self) -> list[dict[str, Any]]:
            if not gate.exists():
                return []
            due, self.kept = self.kept, {}
            return [row for rows in due.values() for row in rows]

        def save_to_snapshot(self) -> bool:
            return self.saving.emit(lambda: list(self.kept.items()))

        def restore_from_snapshot(self, inbox: Inbox) -> bool:
            self.kept.update(inbox.drain())
            return True

    return lambda rows: rows.group_by(column).apply_processor(
        Patient,
        output_schema="f float, ts long, v long",
        order="arrival",
        name="patient",
        output_delay=output_delay,
    )


def pipeline(folder: Path, **settings: str) -> Pipeline:
    p = Pipeline("patience")
    source = sources.files(
        f"{folder}/in", format="json", schema="f float, ts long, v long, d decimal(10, 2)"
    )
    rows = p.read_from(source, name="rows").with_timestamps("ts")
    kept = patient(folder / "gate", **settings)(rows)
    kept.write_to(sinks.files(f"{folder}/kept", format="json"), name="kept_out")
    counts = kept.group_by("f").window(windows.tumbling("1 second"))
    counts.aggregate(n=agg.count(), total=agg.sum("v"), name="counts").write_to(
        sinks.files(f"{folder}/counts", format="json"), name="counts_out"
    )
    return p


def committed(folder: Path, *columns: str) -> Counter[tuple[Any, ...]]:
    lines = [line for file in folder.glob("*.json") for line in file.read_text().splitlines()]
    return Counter(tuple(json.loads(line)[c] for c in columns) for line in lines)


def test_rows_that_wait_for_a_timer_in_a_lull_are_on_time_whatever_their_key(world: World) -> None:
    """Keys are floats, which are doubles in Python; the parallelism changes while rows wait."""
    write_input(world.folder / "in", 0, ROWS)
    write_input(world.folder / "in", 1, [LAST])
    p = pipeline(world.folder)
    with world.jet() as jet:
        for parallelism in (3, 2):
            config = JobConfig(parallelism=parallelism, max_items_per_epoch=1)
            jet.run(p, config, until="drained")
        assert not committed(world.folder / "kept", "v")
        job = jet.submit(p, JobConfig(parallelism=5))
        wait_until(lambda: job.status is JobStatus.RUNNING, "it runs")
        (world.folder / "gate").touch()
        wait_until(
            lambda: bool(committed(world.folder / "kept", "v")) or job.done.is_set(),
            "a timer rings",
        )
        assert job.complete(60).status is JobStatus.COMPLETED
    everything = [*ROWS, LAST]
    assert committed(world.folder / "kept", "f", "v") == Counter(
        (row["f"], row["v"]) for row in everything
    )
    windowed: dict[tuple[float, int], list[int]] = {}
    for row in everything:
        windowed.setdefault((row["f"], row["ts"] // 1000), []).append(row["v"])
    assert committed(world.folder / "counts", "f", "n", "total") == Counter(
        (f, len(values), sum(values)) for (f, _), values in windowed.items()
    ), "none was late"


def test_a_decimal_key_is_refused_before_anything_is_read(world: World) -> None:
    write_input(world.folder / "in", 0, [{**row, "d": 1.5} for row in ROWS])
    with world.jet() as jet:
        with pytest.raises(PipelineError, match=r"'patient'.*'d' is decimal128"):
            jet.run(pipeline(world.folder, column="d"), until="drained")
        assert jet.job("patience").snapshots() == ()

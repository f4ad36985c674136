"""Several sinks of the same rows, written by one task: each has each row once after any death."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_jet import JobConfig, JobResult
from dagster_jet.execution.events import SnapshotCommitted
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long

from . import child, one_pass_child
from .oracle import Rows, by_manifest, committed, input_rows
from .world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("k", "ts", "v")


class OnePassWorld(World):
    """A world whose sinks have all rows."""

    driver = staticmethod(one_pass_child.main)

    def expected(self) -> dict[str, Rows]:
        sides = (self.folder / "in" / side for side in ("left", "right"))
        rows: Rows = Counter((r["k"], r["ts"], r["v"]) for side in sides for r in input_rows(side))
        return dict.fromkeys(one_pass_child.FORMATS, rows)

    def committed(self) -> dict[str, Rows]:
        out = self.folder / "out"
        return {name: committed(out / name, COLUMNS) for name in one_pass_child.FORMATS}

    def assert_nothing_doubled(self) -> None:
        for name, expected in self.expected().items():
            assert not by_manifest(self.folder / "out" / name, COLUMNS) - expected, name

    def run(self, until: str = "completed") -> JobResult:  # type: ignore[override]
        pipeline = one_pass_child.one_pass_pipeline(self.folder)
        with self.jet() as jet:
            return jet.run(pipeline, JobConfig(**child.CONFIG), until=until, on_event=self.see)


@pytest.mark.parametrize(
    "rules",
    [
        "files.prepare.after:2=kill",  # the second file of an epoch; each worker counts
        pytest.param("files.commit.renamed:6=kill", marks=long),
    ],
)
def test_killed_between_two_sinks(
    tmp_path: Path, spark: SparkSession, fail_points: FailPoints, rules: str
) -> None:
    world = OnePassWorld(tmp_path, fail_points, spark)
    world.fill(files=1)
    world.run("drained")
    world.fill(files=2, first=1)
    world.run_child(rules)
    world.assert_nothing_doubled()
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()
    world.assert_ledger_is_true()
    assert world.staged() == []


def test_an_epoch_runs_again_and_each_sink_counts_its_rows(
    tmp_path: Path, spark: SparkSession, fail_points: FailPoints
) -> None:
    world = OnePassWorld(tmp_path, fail_points, spark)
    world.fill(files=1)
    with world.rules_in_workers("files.prepare.after:2=raise"):
        assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()
    last = world.events_of(SnapshotCommitted)[-1]
    assert {last.stages[f"{n}_out"].rows_in for n in one_pass_child.FORMATS} == {24}

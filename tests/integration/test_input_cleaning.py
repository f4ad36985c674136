"""Input that is archived once it is committed: every row once, whenever the driver dies."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_jet import JobConfig, JobResult
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long

from . import child, cleaning_child
from .oracle import Rows
from .world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CleaningWorld(World):
    """A world whose input goes; the oracle reads a copy."""

    driver = staticmethod(cleaning_child.main)

    def fill(self, files: int = 5, rows: int = 12, *, first: int = 0, seed: int = 1) -> World:
        super().fill(files, rows, first=first, seed=seed)
        shutil.copytree(self.folder / "in", self.folder / "copy" / "in")
        for path in list((self.folder / "in").glob("*/*")):
            inside = path.with_name("today")
            inside.mkdir(exist_ok=True)
            path.rename(inside / path.name)
        return self

    def expected(self) -> dict[str, Rows]:
        return World(self.folder / "copy").expected()

    def contents(self, name: str) -> Counter[bytes]:
        files = (path for path in (self.folder / name).rglob("*") if path.is_file())
        return Counter(path.read_bytes() for path in files)

    def run(self, until: str = "completed") -> JobResult:  # type: ignore[override]
        with self.jet() as jet:
            return jet.run(
                cleaning_child.cleaning_pipeline(self.folder),
                JobConfig(**child.CONFIG),
                until=until,
                on_event=self.see,
            )


@pytest.mark.parametrize(
    "rules",
    [
        "files.clean.before:3=kill",  # phase 2 has begun to move the files of its snapshot
        pytest.param("files.clean.before:1=kill", marks=long),
        pytest.param("files.commit.marker:3=kill", marks=long),
        pytest.param("record.committed.before:2=kill", marks=long),
        pytest.param("record.committed.after:2=kill", marks=long),
        pytest.param("record.snapshot.after:2=kill", marks=long),
    ],
)
def test_killed_around_the_cleaning(
    tmp_path: Path, spark: SparkSession, fail_points: FailPoints, rules: str
) -> None:
    world = CleaningWorld(tmp_path, fail_points, spark)
    world.fill(files=4)
    world.run_child(rules)
    world.assert_nothing_doubled()
    # A file is in one place, at every moment.
    everything = world.contents("copy")
    assert world.contents("in") + world.contents("done") == everything
    assert world.contents("in"), "the job was not over"
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()
    assert not world.contents("in") and world.contents("done") == everything

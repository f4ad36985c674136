"""Tables of a lake whose rows are held back until a file is worth it: every row once, whoever dies,
larger files, and no delay for the job's other sink."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from pyiceberg.catalog import load_catalog

from dagster_jet import JobConfig
from dagster_jet.errors import JobStateError
from dagster_jet.execution.events import SnapshotCommitted
from dagster_jet.jobs.pipeline_job import PipelineJob
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long, long_but_for
from tests.unit.connectors.delta_rows import by_library as by_delta
from tests.unit.connectors.delta_rows import by_log
from tests.unit.connectors.iceberg_rows import by_library as by_pyiceberg
from tests.unit.connectors.iceberg_rows import by_manifests, options_at

from . import child, hold_child
from .crash_table import HOLDING_KILLED, Crash
from .hold_child import MIN_BYTES
from .oracle import Rows, by_manifest, input_rows
from .world import World, wait_until, write_input

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 120
"""Number of rows of a file, which is an epoch. Its staged files have 8 to 11 KB."""
TABLE = "crash.held"


class HoldWorld(World):
    driver = staticmethod(hold_child.main)
    pipeline = staticmethod(hold_child.waiting)

    @property
    def delta(self) -> Path:
        return self.folder / "out" / "held"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def send(self, files: int, first: int = 0) -> None:
        for file in range(first, first + files):
            rng = random.Random(file)
            rows = [
                {"id": file * ROWS + n, "text": f"{rng.getrandbits(256):064x}"} for n in range(ROWS)
            ]
            write_input(self.folder / "in", file, rows)

    def expected(self) -> dict[str, Rows]:
        rows = Counter((row["id"], row["text"]) for row in input_rows(self.folder / "in"))
        return dict.fromkeys(("delta", "deltalake", "iceberg", "pyiceberg", "plain"), rows)

    def committed(self) -> dict[str, Rows]:
        found: dict[str, list[dict[str, Any]]] = {
            name: [] for name in ("delta", "deltalake", "iceberg", "pyiceberg")
        }
        if (self.delta / "_delta_log").exists():
            found["delta"] = by_log(self.delta)
            found["deltalake"] = by_delta(str(self.delta))
        if (self.lake / "catalog.db").exists():
            found["iceberg"] = by_manifests(self.lake, TABLE)
            found["pyiceberg"] = by_pyiceberg(self.lake, TABLE)
        rows = {n: Counter((r["id"], r["text"]) for r in some) for n, some in found.items()}
        return {**rows, "plain": self.plain()}

    def plain(self) -> Rows:
        return by_manifest(self.folder / "out" / "plain", ("id", "text"))

    def files(self) -> dict[str, list[int]]:
        """Sizes of the files that each table names."""
        actions = deltalake.DeltaTable(self.delta).get_add_actions(flatten=True)
        with closing(load_catalog("lake", **options_at(self.lake))) as catalog:
            tasks = list(catalog.load_table(TABLE).scan().plan_files())
        return {
            "delta": [int(one) for one in actions["size_bytes"].to_pylist()],
            "iceberg": [task.file.file_size_in_bytes for task in tasks],
        }

    def left_in_folders(self) -> dict[str, int]:
        """Number of data files in the tables' folders, also of those that no version names."""
        data = self.lake.rglob("data/*.parquet")
        return {"delta": len(list(self.delta.glob("*.parquet"))), "iceberg": len(list(data))}

    @contextmanager
    def running(self, **settings: Any) -> Iterator[PipelineJob]:
        """The job, in this process; it is completed at the end."""
        with self.jet() as jet:
            job = jet.submit(
                type(self).pipeline(self.folder),
                JobConfig(**{**child.CONFIG, **settings}),
                on_event=self.see,
            )
            yield job
            assert job.complete(120).status is JobStatus.COMPLETED


class ShortlyWorld(HoldWorld):
    pipeline = staticmethod(hold_child.waiting_shortly)


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession, fail_points: FailPoints) -> HoldWorld:
    return HoldWorld(tmp_path, fail_points, spark)


def test_files_are_as_large_as_asked_for_and_the_other_sink_does_not_wait(
    world: HoldWorld,
) -> None:
    world.send(20)
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()
    smallest = []
    for name, sizes in world.files().items():
        *whole, _ = sorted(sizes, reverse=True)
        assert 2 <= len(whole) <= 4, (name, sizes)
        assert max(whole) <= 2 * MIN_BYTES, (name, sizes)
        assert world.left_in_folders()[name] == len(sizes), "the small files are gone"
        smallest.append(min(whole))
    assert max(smallest) >= 0.8 * MIN_BYTES, "the table that was due"
    assert min(smallest) >= 0.5 * MIN_BYTES, "the other one was committed with it"
    events = world.events_of(SnapshotCommitted)
    snapshots = [event.outputs for event in events]
    for name, sizes in world.files().items():
        assert sum(name in one for one in snapshots) == len(sizes), "a version has one file"
        shown = [0, *(event.stages[name].rows_out for event in events)]
        grown = [now > before for before, now in itertools.pairwise(shown)]
        assert grown == [name in one for one in snapshots], "rows are counted when they are visible"
        assert shown[-1] == 20 * ROWS
    plain = list((world.folder / "out" / "plain" / "_epochs").glob("[!.]*.json"))
    assert len(plain) == 20 and sum("delta" in one for one in snapshots) < len(snapshots) / 2


@long  # it waits; without a clock: unit/snapshot/test_hold_back.py
def test_an_idle_stream_commits_what_has_waited_long_enough(
    tmp_path: Path, spark: SparkSession, fail_points: FailPoints
) -> None:
    """By the clock, without another row; the other sink has its rows at once."""
    world = ShortlyWorld(tmp_path, fail_points, spark)
    with world.running():
        for file in range(2):
            world.send(1, first=file)
            total = ROWS * (file + 1)
            wait_until(lambda n=total: world.plain().total() == n, "files are there")
            before = world.committed()
            wait_until(
                lambda n=total: all(rows.total() == n for rows in world.committed().values()),
                "the tables have them, too",
            )
            assert before["deltalake"].total() == total - ROWS, "they came later"
        world.assert_exactly_once()
    assert {name: len(sizes) for name, sizes in world.files().items()} == {"delta": 2, "iceberg": 2}


@pytest.mark.parametrize(  # others of `make test` are below, one after the other
    "crash",
    long_but_for(HOLDING_KILLED, "F9-lake.gather.written@2"),
    ids=str,
)
def test_killed(world: HoldWorld, crash: Crash) -> None:
    world.send(14)
    world.run_child(crash.rules, sharded=crash.sharded)
    expected, found = world.expected(), world.committed()
    assert not any(rows - expected[name] for name, rows in found.items())
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()


HELD = "record.snapshot.after:3=kill"
"""Decided and held back: the rows of two epochs or more."""


@long  # a start is killed in one commit above, without Spark in unit/snapshot/test_hold_back.py
@pytest.mark.parametrize(
    "deaths",
    [
        (
            "lake.gather.before",
            "lake.gather.written",
            "lake.commit.before",
            "lake.commit.after",
            "record.committed.before",
        ),
        ("lake.gather.after", "record.committed.after"),
    ],
    ids=["until a version has the rows", "until the record says so"],
)
def test_killed_again_and_again_while_a_start_commits_what_was_held_back(
    world: HoldWorld, deaths: Sequence[str]
) -> None:
    world.send(6)
    world.run_child(HELD)
    assert not world.committed()["deltalake"] and not world.committed()["pyiceberg"]
    for point in deaths:
        world.run_child(f"{point}:1=kill")
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()


@pytest.mark.parametrize("then", [hold_child.not_waiting, hold_child.without_tables])
def test_the_words_or_the_sinks_are_gone_at_the_next_start(world: HoldWorld, then: Any) -> None:
    """Rows held back are committed before anything else, to the place of their staging."""
    world.send(6)
    world.run_child(HELD)
    found = world.committed()
    assert not found["deltalake"] and not found["pyiceberg"] and found["plain"]
    with world.jet() as jet:
        manifest = jet.job(world.job).manifest()
        assert set(manifest.held) == {"delta", "iceberg"}
        with pytest.raises(JobStateError, match="would lose rows"):
            jet.job(world.job).delete()
        jet.run(then(world.folder), JobConfig(**child.CONFIG), until="completed")
    expected = world.expected()
    for name, rows in world.committed().items():
        if then is hold_child.without_tables and name != "plain":
            before = ROWS * manifest.epoch_id
            assert rows == Counter(row for row in expected[name] if row[0] < before), name
        else:
            assert rows == expected[name], name


@pytest.mark.parametrize("is_there", [False, pytest.param(True, marks=long)])
def test_back_to_a_snapshot_that_held_rows_back(world: HoldWorld, is_there: bool) -> None:
    """Each row of before the snapshot once, whether a later one had committed them or none; those
    of after it again if they were visible, as in every table."""
    world.send(12)
    if is_there:
        world.run("drained", retained_snapshots=30)
    else:
        world.run_child("record.snapshot.after:4=kill")
        assert not world.committed()["deltalake"] and not world.committed()["pyiceberg"]
    with world.jet() as jet:
        wanted = [ref for ref in jet.job(world.job).snapshots() if ref.holds and ref.epoch_id > 1]
    back = wanted[-1]
    assert world.run(initial_snapshot=back.snapshot_id, repeat_output=True).snapshot_id
    expected, after = world.expected()["delta"], ROWS * back.epoch_id
    again = Counter(row for row in expected if row[0] >= after)
    for name, rows in world.committed().items():
        if name != "plain":
            assert rows == (expected + again if is_there else expected), name

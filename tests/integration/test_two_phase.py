"""Processors that commit in two phases: killed, restarted, what they have committed compared.

They write files; which rows must be in the committed ones is computed from the input alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources
from dagster_jet.dag import DAG, Edge
from dagster_jet.dag.local import LocalJob
from dagster_jet.errors import PipelineError
from dagster_jet.execution import epoch_driver
from dagster_jet.execution.events import ExecutionRestarting, SnapshotFailed
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.system import failpoint
from tests.long import long, long_but_for
from tests.unit.dag.local_processors import Feed

from . import child, two_phase_child
from .crash_table import PREPARED_IN_RECOVERY, PREPARED_KILLED, Crash
from .oracle import committed, input_rows
from .world import World, random_rows, wait_until

COLUMNS = ("k", "ts", "v", "n")
Cut = tuple[Counter[tuple[Any, ...]], Counter[tuple[Any, ...]]]
"""The rows, and how they are numbered: in which order those of a key came is not certain."""


def cut(rows: Iterable[dict[str, Any]]) -> Cut:
    found = list(rows)
    return counted(found), Counter((row["k"], row["n"]) for row in found)


def counted(rows: Iterable[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter((row["k"], row["ts"], row["v"]) for row in rows)


def numbered(rows: Iterable[dict[str, Any]]) -> Cut:
    """Rows that must be committed."""
    found, counts = Counter(), Counter()
    for row in rows:
        found[row["k"], row["ts"], row["v"]] += 1
        counts[row["k"]] += 1
    return found, Counter((k, n) for k, count in counts.items() for n in range(1, count + 1))


class TwoPhaseWorld(World):
    """A world whose child and whose runs take the pipeline of `two_phase_child`."""

    driver = staticmethod(two_phase_child.main)
    pipeline = staticmethod(two_phase_child.two_phase_pipeline)

    @property
    def transactions(self) -> Path:
        return self.folder / "transactions"

    def expected_cut(self) -> Cut:
        return numbered(input_rows(self.folder / "in" / "left"))

    def committed_cut(self) -> Cut:
        return committed_in(self.transactions)

    def assert_exactly_once(self) -> None:
        assert self.committed_cut() == self.expected_cut()
        out = committed(self.folder / "out" / "numbered", COLUMNS)
        rows = (dict(zip(COLUMNS, row, strict=True)) for row in out.elements())
        assert cut(rows) == self.expected_cut(), "the sink is cut where the processor is"

    def assert_nothing_doubled(self) -> None:
        for found, expected in zip(self.committed_cut(), self.expected_cut(), strict=True):
            assert not found - expected

    def assert_nothing_left(self) -> None:
        left = [
            p for state in ("staged", "prepared") for p in (self.transactions / state).glob("*")
        ]
        assert not left


def committed_in(transactions: Path) -> Cut:
    files = (transactions / "committed").glob("*")
    return cut(json.loads(line) for file in files for line in file.read_text().splitlines())


@pytest.fixture
def world(world: World) -> TwoPhaseWorld:
    two_phase = TwoPhaseWorld(world.folder, world.fail_points, world.spark)
    two_phase.fill(files=6)
    return two_phase


@pytest.mark.parametrize("crash", long_but_for(PREPARED_KILLED, "F8"), ids=str)
def test_killed_and_restarted_at_another_parallelism(world: TwoPhaseWorld, crash: Crash) -> None:
    world.run_child(crash.rules, sharded=crash.sharded)
    world.assert_nothing_doubled()
    # Not to the end of the input, which would be one more epoch: it would commit as well.
    assert world.run("drained", parallelism=3).status is JobStatus.DRAINED
    world.assert_exactly_once()


@long
def test_killed_between_two_transactions_and_again_on_the_way_back(world: TwoPhaseWorld) -> None:
    world.run_child("test.prepared:2=kill", sharded=True)
    world.run_child("test.commit:4=kill")
    world.assert_nothing_doubled()
    world.run_child(f"{PREPARED_IN_RECOVERY}:1=kill", config={"parallelism": 1})
    world.assert_nothing_doubled()
    world.run(parallelism=3)
    world.assert_exactly_once()


def test_a_job_without_further_input_commits_at_once(
    world: TwoPhaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_driver, "FEW_GROUPS", -1)
    with world.jet() as jet:
        job = jet.submit(
            two_phase_child.two_phase_pipeline(world.folder),
            # Would be waited for, if it mattered.
            JobConfig(**{**child.CONFIG, "snapshot_interval": "1 hour"}),
        )
        wait_until(lambda: world.committed_cut() == world.expected_cut(), "all is committed")
        world.fill(files=1, first=6)
        wait_until(lambda: world.committed_cut() == world.expected_cut(), "and what came later")
        assert job.status is JobStatus.RUNNING
        world.fill(files=2, first=7)
        assert job.complete(60).status is JobStatus.COMPLETED
    world.assert_exactly_once()
    world.assert_nothing_left()


def test_its_state_may_be_dropped_once_all_is_committed(world: TwoPhaseWorld) -> None:
    """The newest snapshot names what was prepared for it; the record says that it is committed."""
    assert world.run("drained").status is JobStatus.DRAINED
    world.assert_exactly_once()
    before = world.committed_cut()
    p = Pipeline(two_phase_child.JOB)
    left = sources.files(f"{world.folder}/in/left", format="json", schema=two_phase_child.SCHEMA)
    p.read_from(left, name="rows").write_to(
        sinks.files(f"{world.folder}/out/plain", format="json"), name="plain_out"
    )
    world.fill(files=1, first=6)
    with world.jet() as jet:
        jet.run(p, JobConfig(**child.CONFIG), until="drained", dropped_state=["into_files"])
    later = random_rows(6, 12, seed=2)  # as `fill` writes them to this side
    assert committed(world.folder / "out" / "plain", COLUMNS[:3]) == counted(later)
    assert world.committed_cut() == before


@long
def test_every_drained_run_ends_with_everything_committed(world: TwoPhaseWorld) -> None:
    for turn, parallelism in enumerate((2, 3, 1)):
        world.fill(files=1, first=6 + turn)
        assert world.run("drained", parallelism=parallelism).status is JobStatus.DRAINED
        world.assert_exactly_once()
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()
    world.assert_nothing_left()


@long  # F4 of other stages is in test_crashes.py
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_failed_snapshot_takes_its_epoch_along(world: TwoPhaseWorld, guarantee: str) -> None:
    """The ids of what was prepared are in the state that the next epoch would begin from."""
    failpoint.configure("manifest.before:3=raise")
    world.run(guarantee=guarantee)
    assert world.events_of(SnapshotFailed) and len(world.events_of(ExecutionRestarting)) == 1
    assert world.committed_cut() == world.expected_cut(), "below exactly-once as well"
    if guarantee == "exactly-once":
        world.assert_exactly_once()
    world.assert_nothing_left()


@long
def test_a_commit_that_fails_is_made_up_for(world: TwoPhaseWorld) -> None:
    with world.rules_in_workers("stage.commit.before:2=raise"):
        world.run()
    assert len(world.events_of(ExecutionRestarting)) >= 1
    world.assert_exactly_once()
    world.assert_nothing_left()


def test_without_snapshots_it_is_refused(world: TwoPhaseWorld) -> None:
    with pytest.raises(PipelineError, match=r"stage 'into_files'.*guarantee is .none.") as told:
        world.run(guarantee="none")
    assert "JobConfig(guarantee=...)" in str(told.value)


def test_the_local_runtime_commits_the_same(tmp_path: Path) -> None:
    """Stopped in the middle, as by a crash, and gone on from its last snapshot."""
    rows = [row for number in range(6) for row in random_rows(number, 12, seed=2)]
    dag = DAG("local")
    dag.new_vertex("rows", lambda: Feed(rows), local_parallelism=1)
    dag.new_vertex("into_files", two_phase_child.into_files(tmp_path))
    # Short queues: the input is read as it is written, and not before.
    edge = Edge.between("rows", "into_files").partitioned(lambda row: row["k"])
    dag.edge(edge.with_queue_size(2))

    job = LocalJob(dag, parallelism=2, snapshot_interval_ms=0)
    while committed_in(tmp_path)[0].total() < len(rows) // 2:
        assert job.step()
    job.cancel()
    assert not committed_in(tmp_path)[0] - numbered(rows)[0]

    restored = job.snapshots.latest()
    assert restored is not None
    LocalJob(dag, parallelism=3, snapshot_interval_ms=0, restore=restored).run(timeout_s=60)
    assert committed_in(tmp_path) == numbered(rows)

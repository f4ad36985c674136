"""Every way of dying of protocol.md, section 5: killed at a named point, restarted, rows compared.

Two sources merged, two stateful stages, three sinks in three formats cut at one point
(`child.crash_pipeline`). The driver is a process of its own and dies by SIGKILL; the restart
runs in the test's process. The verdict is the oracle's: multisets of rows, read from the files.
"""

from __future__ import annotations

import pytest

from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long, long_but_for

from .crash_table import (
    AFTER_DECISION,
    IN_RECOVERY,
    KILLED,
    RESERVING_KILLED,
    Crash,
    points_wanted_by,
)
from .world import World

# One in a task, in staging and in a commit. The simulator crashes between any two steps,
# `make soak` kills at all points.
ONE_OF_EACH = (
    "F2-stage",
    "F3-files.prepare.after",
    "F9-files.commit.file",
)


@pytest.mark.parametrize("crash", long_but_for(KILLED, *ONE_OF_EACH), ids=str)
def test_killed(world: World, crash: Crash) -> None:
    world.fill()
    world.run_child(crash.rules, sharded=crash.sharded)
    world.assert_nothing_doubled()
    world.assert_ledger_is_true()
    result = world.run()
    assert result.status is JobStatus.COMPLETED
    world.assert_exactly_once()


@long
def test_killed_with_its_own_jvm(world: World) -> None:
    """Spark dies with the driver, as in a production of one machine."""
    world.fill()
    world.run_child(AFTER_DECISION, own_jvm=True)
    world.run()
    world.assert_exactly_once()
    assert world.staged() == []


def test_spark_dies_and_the_driver_lives(world: World) -> None:
    """Spark dies, for example out of memory; the driver begins a new execution on a new JVM."""
    world.fill()
    said = world.finish_child(kill_jvm_after=4)
    assert "ExecutionRestarting" in said and "restarts=1" in said
    world.assert_exactly_once()


@long  # F15 kills in a recovery, test_hold_back.py five times
@pytest.mark.parametrize("points", IN_RECOVERY.values(), ids=IN_RECOVERY)
def test_killed_again_and_again_in_recovery(world: World, points: tuple[str, ...]) -> None:
    world.fill()
    world.run_child(AFTER_DECISION)
    for point in points:
        world.run_child(f"{point}:1=kill")
        world.assert_nothing_doubled()
    result = world.run()
    world.assert_exactly_once()
    assert result.restarts == 1 + sum(point != "claim.before" for point in points)


@long
def test_killed_while_more_snapshot_ids_are_reserved(world: World) -> None:
    """Only few ids are reserved here, so one failed snapshot uses them up."""
    world.fill()
    for crash in RESERVING_KILLED:
        world.run_child(crash.rules, snapshot_id_block=3)
        world.assert_nothing_doubled()
    world.run()
    world.assert_exactly_once()


@pytest.mark.parametrize(
    "rules", [AFTER_DECISION, pytest.param("manifest.after:3=kill", marks=long)]
)
def test_f15_restart_with_another_parallelism(world: World, rules: str) -> None:
    """2 shards, then 1, then 12, in the middle of windows and with prepared files."""
    world.fill(files=8)
    world.run_child(rules, config={"parallelism": 2}, sharded=True)
    world.run_child("record.snapshot.after:1=kill", config={"parallelism": 1}, sharded=True)
    world.assert_nothing_doubled()
    world.run(parallelism=12)
    world.assert_exactly_once()
    assert world.staged() == []


def test_every_point_of_these_was_reached(
    request: pytest.FixtureRequest, fail_points: FailPoints
) -> None:
    """The last one here: a renamed step must not turn a crash into a quiet run."""
    wanted = points_wanted_by(request)
    assert wanted <= set(fail_points.reached), wanted - set(fail_points.reached)

"""Spark runs a task again that has failed after writing: nothing of the first run counts.

`local[n, f]` gives a task up at its f-th failure. Here every task fails twice, once when it has
prepared its files and once when it has acked, and the state of the first is on its way.
"""

from __future__ import annotations

import pytest

from tests.long import long

from . import child
from .crash_table import KILLED, Crash
from .oracle import input_rows
from .test_two_phase import TwoPhaseWorld
from .world import World

RETRIES = "files.prepare.after:1=retry;stage.after:2=retry"
IN_RECOVERY = "restore.after:1=retry;stage.commit.after:1=retry"
MASTER = "local[2, 3]"
_IN_TASKS = ("stage", "chunks", "files.write", "files.prepare")
IN_DRIVER = [c for c in KILLED if not c.rules.startswith(_IN_TASKS) and c.row != "start"]
"""Points in tasks are counted per worker, which a failure ends; before the first epoch there are no
tasks."""


@long
@pytest.mark.parametrize("crash", IN_DRIVER, ids=str)
def test_killed_while_every_task_is_run_three_times(world: World, crash: Crash) -> None:
    world.fill(files=6)
    order = {"master": MASTER, "sharded": True}
    death = world.run_child(f"{crash.rules};{RETRIES}", own_jvm=True, **order)
    world.assert_nothing_doubled()
    assert {"files.prepare.after", "stage.after"} <= set(death.reached)
    assert_finished(world)
    world.assert_exactly_once()


def test_every_row_is_counted_once(world: World) -> None:
    """A task fails after it has filled a frame that others read: nothing makes its rows again."""
    world.fill(files=3)
    assert_finished(world, many_tasks=True)
    world.assert_exactly_once()
    with world.jet() as jet:
        counters = jet.job(child.JOB).manifest().counters
    rows = {name: len(input_rows(world.folder / "in" / name)) for name in ("left", "right")}
    assert {name: counters[name].rows_in for name in rows} == rows


@long
def test_processors_that_commit_in_two_phases(world: World) -> None:
    two_phase = TwoPhaseWorld(world.folder, world.fail_points, world.spark).fill(files=3)
    assert_finished(two_phase)
    two_phase.assert_exactly_once()


def assert_finished(world: World, **order: bool) -> None:
    """Asserts that the job finished in one execution, although no task succeeds at once."""
    before, said_before = len(world.fail_points.reached), said_by(world)
    process = world.start_child(
        f"{RETRIES};{IN_RECOVERY}", own_jvm=True, master=MASTER, **(order or {"sharded": True})
    )
    process.join(240)
    said = said_by(world).removeprefix(said_before)
    assert process.exitcode == 0, said
    assert "ExecutionStarted" in said and "ExecutionRestarting" not in said, said
    assert {"files.prepare.after", "stage.after"} <= set(world.fail_points.reached[before:])


def said_by(world: World) -> str:
    """Output of the world's child processes so far."""
    return world.child_output.read_text("utf-8") if world.child_output.exists() else ""

"""Phases of an action, computed from its tasks' acks."""

from dagster_jet.core.phases import Phase
from dagster_jet.execution.task_times import task_times
from dagster_jet.observe.writing.recent_timings import Key
from dagster_jet.snapshot.manifest import Ack


def times(acks: list[Ack], action_ms: float = 100) -> dict[Key, float]:
    found = task_times(acks, action_ms, 2, ["out"])
    return {(time.phase, time.stage): time.ms for time in found}


def test_shards_of_one_task_take_their_turns() -> None:
    acks = [
        Ack("hourly", 0, "t1", work_ms=10, save_ms=4),
        Ack("hourly", 1, "t1", work_ms=20),
        Ack("daily", 0, "t1", work_ms=5),
        Ack("out", 0, "t1", work_ms=6),
    ]
    assert times(acks) == {
        (Phase.STEP, "hourly"): 30,
        (Phase.SAVING, "hourly"): 4,
        (Phase.STEP, "daily"): 5,
        (Phase.WRITING, "out"): 6,
        (Phase.SPARK, ""): 55,
    }


def test_tasks_share_the_cores() -> None:
    alike = [Ack("hourly", n, f"t{n}", work_ms=10) for n in range(4)]
    assert times(alike)[Phase.STEP, "hourly"] == 20
    one_is_longer = [*alike, Ack("hourly", 4, "t4", work_ms=50)]
    assert times(one_is_longer)[Phase.STEP, "hourly"] == 50


def test_tasks_beside_each_other_leave_nothing_below_zero() -> None:
    acks = [Ack("hourly", 0, "t1", work_ms=80), Ack("out", 0, "t2", work_ms=80)]
    assert times(acks)[Phase.SPARK, ""] == 0


def test_an_epoch_without_an_action() -> None:
    assert times([], action_ms=0) == {(Phase.SPARK, ""): 0}

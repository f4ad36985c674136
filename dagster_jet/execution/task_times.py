"""Computes the time of an epoch's tasks per stage from their acks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from dagster_jet.core.phases import Phase, PhaseTime
from dagster_jet.snapshot.manifest import Ack


def task_times(
    acks: Iterable[Ack], action_ms: float, cores: int, sinks: Iterable[str]
) -> tuple[PhaseTime, ...]:
    """Returns the parts of the Spark action's time.

    Shards of one task run one after the other; tasks share the cores. So a stage's time is that of
    its longest task, or of all tasks divided by the cores, whichever is longer.

    Args:
        acks: the acks of all tasks.
        action_ms: duration of the whole Spark job.
        cores: tasks that run at once.
        sinks: names of the sinks; all other acks come from stages.
    """
    writers = frozenset(sinks)
    tasks: dict[tuple[Phase, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for ack in acks:
        phase = Phase.WRITING if ack.vertex in writers else Phase.STEP
        tasks[phase, ack.vertex][ack.attempt] += ack.work_ms
        if ack.save_ms:
            tasks[Phase.SAVING, ack.vertex][ack.attempt] += ack.save_ms
    times = [PhaseTime(phase, _wall_ms(of, cores), stage) for (phase, stage), of in tasks.items()]
    in_python = sum(time.ms for time in times)
    return (PhaseTime(Phase.SPARK, max(0.0, action_ms - in_python)), *times)


def _wall_ms(tasks: Mapping[str, float], cores: int) -> float:
    return max(*tasks.values(), sum(tasks.values()) / max(1, cores))

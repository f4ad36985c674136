"""How long an epoch's tasks took, stage by stage, from what they say in their acks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from dagster_jet.core.phases import Phase, PhaseTime
from dagster_jet.snapshot.manifest import Ack


def task_times(
    acks: Iterable[Ack], action_ms: float, cores: int, sinks: Iterable[str]
) -> tuple[PhaseTime, ...]:
    """Returns what the action consists of.

    Shards of one task take their turns; tasks share the cores. So a stage took as long as its
    longest task, or as all of them together on every core, whichever is longer.

    Args:
        acks: of all tasks.
        action_ms: the whole Spark job.
        cores: tasks that run at once.
        sinks: their names; everything else that has acked is a stage.
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

"""Draws of one seed before its history begins."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, get_args

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.core.hold_back import HoldBack
from dagster_jet.snapshot.job_state import CoordinatorConfig
from dagster_jet.snapshot.protocol import Command, StopKind

if TYPE_CHECKING:
    from .deployment import Deployment

JOB = "flights"
WINDOW, COUNT = "window", "count"
"""The stateful stages: one holds rows back and lets them go later, one keeps all it ever saw."""
PROMISES = "promises"
"""In some histories: its processors commit in two phases."""
WINDOW_SINK, ROW_SINK = "window_out", "row_out"
"""Sinks: rows of closed windows, and every row as it is read. Each has every row once."""
SINKS = (WINDOW_SINK, ROW_SINK)
SOURCE = "departures"
PARTITION_COUNT = 7

COMMANDS = tuple(command.__name__ for command in get_args(Command))
RECOVERY = ("Claim", "LoadManifest", "ImportSnapshot", "Restore", "Complete", "AbortOrphans")
LONG_STEPS = ("RunEpoch", "Decide", "Complete", "AbortOrphans")
"""Commands of several durable steps: a process can die in their middle."""


@dataclass(frozen=True, order=True)
class Point:
    """A moment in the execution of a command at which something can happen to the process.

    `before`: issued, nothing done. `during`: some of its steps done. `after`: done, the
    coordinator has not heard of it.
    """

    side: str
    command: str

    def __str__(self) -> str:
        return f"{self.side} {self.command}"


ALL_POINTS = tuple(
    [Point(side, command) for command in COMMANDS for side in ("before", "after")]
    + [Point("during", command) for command in LONG_STEPS]
)


@dataclass(frozen=True)
class Mishap:
    """Fault at the `skip`-th passing of `point`: the process crashes, freezes, or gets a rival."""

    kind: str
    point: Point
    skip: int


@dataclass(frozen=True)
class Odds:
    """Probability of each fault, per occasion."""

    crash_anywhere: float = 0.001
    record_unavailable: float = 0.02
    record_answer_lost: float = 0.02
    record_never_arrives: float = 0.01
    slow: float = 0.02
    answer_twice: float = 0.05
    answer_late: float = 0.06
    epoch_answer_lost: float = 0.01
    executor_lost: float = 0.01
    user_error: float = 0.003
    task_retried: float = 0.06
    task_dies_writing: float = 0.02
    two_attempts_acked: float = 0.004
    ack_missing: float = 0.003
    ack_twice: float = 0.03
    chunks_not_stored: float = 0.01
    state_saved_later: float = 0.1
    manifest_not_stored: float = 0.04
    store_fills: float = 0.02
    manifest_answer_lost: float = 0.03
    read_fails: float = 0.01
    commit_throws: float = 0.08
    commit_answer_lost: float = 0.06
    commit_given_up: float = 0.01
    connector_fails: float = 0.04
    stop_asked: float = 0.02
    completes_early: float = 0.01
    cancelled: float = 0.004
    snapshot_damaged: float = 0.03

    def scaled(self, factor: float) -> Odds:
        return Odds(**{f.name: min(0.5, getattr(self, f.name) * factor) for f in fields(self)})


@dataclass(frozen=True)
class Scenario:
    """The settings of one history."""

    guarantee: Guarantee
    snapshot_interval_ms: int | None
    suspend_on_failure: bool
    tasks_outlive_driver: bool
    in_two_phases: bool
    changes: bool
    """The pipeline may be another one at every start of a process."""
    sealed: bool
    """Decided artifacts of a sink are committed only by a pipeline that has the sink."""
    rewinds: bool
    """Starts may go back to a retained snapshot, or begin with an exported one. Not where
    processors commit: what they did on the line that is left would have to be told from what they
    do again."""
    damages: bool
    """Older retained snapshots may turn out to be damaged."""
    snapshot_id_block: int
    input_ends: bool
    """The engine notices by itself that everything is read; else somebody asks it to complete."""
    writers: int
    rows: tuple[tuple[int, ...], ...]
    """Row ids of each source partition, unique over all."""
    odds: Odds
    mishaps: tuple[Mishap, ...]
    """In this order: the next one is armed when the one before it has struck."""
    holds_back: bool = False
    """Sinks may hold rows back, another one at every start of a process."""

    @classmethod
    def draw(cls, rng: random.Random) -> Scenario:
        guarantee = rng.choices(
            (Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.NONE), (88, 10, 2)
        )[0]
        partitions = rng.randint(1, 3)
        lengths = [rng.randint(3, 22) for _ in range(partitions)]
        exactly_once = guarantee is Guarantee.EXACTLY_ONCE
        in_two_phases = guarantee is not Guarantee.NONE and rng.random() < 0.25
        rewinds = exactly_once and not in_two_phases and rng.random() < 0.4
        return cls(
            guarantee=guarantee,
            snapshot_interval_ms=rng.choice((0, 0, 40, 150, 400, None)),
            suspend_on_failure=rng.random() < 0.5,
            tasks_outlive_driver=rng.random() < 0.5,
            in_two_phases=in_two_phases,
            changes=exactly_once and rng.random() < 0.5,
            sealed=rng.random() < 0.2,
            rewinds=rewinds,
            damages=guarantee is not Guarantee.NONE and rng.random() < 0.4,
            snapshot_id_block=rng.choice((3, 4, 64)),
            input_ends=rng.random() < 0.5,
            writers=rng.randint(1, 2),
            rows=tuple(
                tuple(100 * partition + i for i in range(length))
                for partition, length in enumerate(lengths)
            ),
            odds=Odds().scaled(rng.choice((0, 0.5, 1, 1, 2, 3))),
            mishaps=_draw_mishaps(rng, guarantee, rewinds),
        )

    def config(self, rng: random.Random, deployment: Deployment) -> CoordinatorConfig:
        """The settings that may differ from one start of the job to the next."""
        shards = {
            WINDOW: rng.choice((1, 2, 2, 3)),
            COUNT: rng.choice((1, 1, 2)),
            PROMISES: rng.choice((1, 2, 3)),
        }
        return CoordinatorConfig(
            job=JOB,
            guarantee=deployment.guarantee or self.guarantee,
            snapshot_interval_ms=self.snapshot_interval_ms,
            retained_snapshots=rng.choice((1, 2, 3, 3)),
            shards={
                SOURCE: 1,
                **{stage: shards[stage] for stage in deployment.stages},
                **{sink.name: self.writers for sink in deployment.sinks.values()},
            },
            partition_count=PARTITION_COUNT,
            plan_fingerprint="v1",
            suspend_on_failure=self.suspend_on_failure,
            initial_snapshot=deployment.initial_snapshot,
            holds={
                sink.name: HoldBack(8 * rng.choice((3, 10, 100)), rng.choice((100, 1_000, 5_000)))
                for sink in deployment.sinks.values()
                if self.holds_back and rng.random() < 0.7
            },
            snapshot_id_block=self.snapshot_id_block,
        )

    def draw_stop(self, rng: random.Random) -> StopKind:
        return rng.choice(
            (
                StopKind.SUSPEND,
                StopKind.SHUTDOWN,
                StopKind.RESTART,
                StopKind.CANCEL_AND_EXPORT,
            )
        )


def _draw_mishaps(rng: random.Random, guarantee: Guarantee, rewinds: bool) -> tuple[Mishap, ...]:
    points = [p for p in ALL_POINTS if p.command not in ("Publish", "ImportSnapshot")]
    if rewinds:
        points += [p for p in ALL_POINTS if p.command == "ImportSnapshot"] * 4
    if guarantee is not Guarantee.EXACTLY_ONCE:
        points += [p for p in ALL_POINTS if p.command == "Publish"] * 4
    mishaps = [
        Mishap(
            rng.choices(("crash", "freeze", "rival"), (6, 3, 1))[0],
            rng.choice(points),
            rng.choice((0, 0, 1, 2, 5)),
        )
        for _ in range(rng.choice((0, 1, 1, 2, 3, 4)))
    ]
    if rng.random() < 0.3:
        # Dying again and again while recovering.
        deep = [p for p in points if p.command in RECOVERY]
        mishaps += [Mishap("crash", rng.choice(deep), 0) for _ in range(3)]
    return tuple(mishaps)

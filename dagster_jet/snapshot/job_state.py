"""State shared by the coordinator's machines: the record, and the job as of the last epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dagster_jet.core.cadence import PERIOD_MS
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.core.hold_back import HoldBack
from dagster_jet.core.measures import Measures, after_epoch, combined
from dagster_jet.snapshot.ending import Ending
from dagster_jet.snapshot.manifest import Ack, Artifact, Counters, NewestOutput, ShardState
from dagster_jet.snapshot.owed import Destination
from dagster_jet.snapshot.protocol import RunEpoch
from dagster_jet.snapshot.record import ExecutionRecord

SNAPSHOT_ID_BLOCK = 64
"""Snapshot ids are reserved in the record in blocks, so an attempt needs no write of its own."""


@dataclass(frozen=True)
class CoordinatorConfig:
    """The protocol's settings for one job."""

    job: str
    guarantee: Guarantee
    snapshot_interval_ms: int | None
    """None: automatic, see `core.cadence`."""
    retained_snapshots: int
    shards: Mapping[str, int]
    """Number of shards per stateful vertex; every shard must ack every epoch."""
    partition_count: int
    plan_fingerprint: str
    published_sinks: frozenset[str] = frozenset()
    """Sinks below exactly-once in an exactly-once job; published after each epoch."""
    holds: Mapping[str, HoldBack] = field(default_factory=dict)
    """Sinks that hold rows back, within these bounds."""
    suspend_on_failure: bool = False
    initial_snapshot: int | str | None = None
    """Snapshot id to go back to or export to begin with; applied once
    (`ExecutionRecord.rewound`)."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Present name by former name, also of sinks."""
    snapshot_id_block: int = SNAPSHOT_ID_BLOCK
    first_epoch_ms: int = 0
    """Approximate duration of an execution's first epoch with rows."""
    snapshot_period_ms: int = PERIOD_MS
    """Time between two snapshots, if the interval is automatic."""


@dataclass
class JobState:
    """The job as of the last acked epoch, and the record as last agreed on."""

    config: CoordinatorConfig
    ending: Ending
    record: ExecutionRecord = field(init=False)
    """Set by `Claimed`."""
    decides_every_epoch: bool = False
    plan: Mapping[str, Any] = field(default_factory=dict)
    sinks: Mapping[str, Destination] = field(default_factory=dict)
    epoch_id: int = 0
    sources: dict[str, Any] = field(default_factory=dict)
    unacknowledged: dict[str, dict[str, Any]] = field(default_factory=dict)
    watermarks: dict[str, Any] = field(default_factory=dict)
    tables: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """Versions of tables to enrich with, as of the last barrier."""
    shards: dict[str, list[ShardState]] = field(default_factory=dict)
    counters: dict[str, Counters] = field(default_factory=dict)
    open_artifacts: list[Artifact] = field(default_factory=list)
    """Artifacts staged by acked epochs that no snapshot names yet, or that the last one holds
    back."""
    open_since_ms: dict[str, int] = field(default_factory=dict)
    """Time of the oldest open artifact, per sink that holds rows back."""
    shown_watermarks: Mapping[str, Any] = field(default_factory=dict)
    """Watermarks as of the newest barrier whose output was not held back."""
    releases: bool = False
    """Whether the next snapshot holds nothing back."""
    newest_output: dict[str, NewestOutput] = field(default_factory=dict)
    """Newest committed output per sink, for the next manifest."""
    acked_epochs: int = 0
    """Acked epochs since the last barrier, under any guarantee."""
    running: RunEpoch | None = None
    """The running epoch. It has been given `shards`, which do not change until it answers."""

    @property
    def epochs_since_barrier(self) -> int:
        """Epochs in no snapshot, not even a pending one; 0 under guarantee "none"."""
        return 0 if self.config.guarantee is Guarantee.NONE else self.acked_epochs

    def publishes(self, artifact: Artifact) -> bool:
        """Whether the artifact becomes visible once its epoch is acked, not with a snapshot."""
        is_exact = self.config.guarantee is Guarantee.EXACTLY_ONCE
        return not is_exact or artifact.sink in self.config.published_sinks

    def held(self, now_ms: int) -> tuple[str, ...]:
        """Sinks whose open artifacts a snapshot holds back: all that may, or none, so that what
        readers see is one cut. The last snapshot of an execution holds nothing back."""
        waiting = self.open_since_ms
        waits = all(
            self.config.holds[sink].waits(*self._open(sink), now_ms - since_ms)
            for sink, since_ms in waiting.items()
        )
        is_forced = self.releases or self.ending.asked is not None
        return tuple(waiting) if waits and not is_forced else ()

    def _open(self, sink: str) -> tuple[int, int]:
        sizes = [one.bytes for one in self.open_artifacts if one.sink == sink]
        return len(sizes), sum(sizes)

    @property
    def release_at_ms(self) -> int | None:
        """Time at which the oldest artifact that is held back has to be committed."""
        return min(
            (ms + self.config.holds[sink].max_delay_ms for sink, ms in self.open_since_ms.items()),
            default=None,
        )

    def apply_acks(self, acks: Iterable[Ack]) -> None:
        """Adds the acks of one epoch."""
        counted: dict[str, Measures] = {}
        for ack in acks:
            self.counters[ack.vertex] = self.counters.get(ack.vertex, Counters()).plus(ack)
            if ack.counted:
                counted[ack.vertex] = combined(counted.get(ack.vertex, {}), ack.counted)
            if ack.vertex in self.shards:
                shard = self.shards[ack.vertex][ack.shard]
                self.shards[ack.vertex][ack.shard] = shard.after_epoch(ack)
        for vertex, measures in counted.items():
            total = self.counters[vertex]
            self.counters[vertex] = replace(total, counted=after_epoch(total.counted, measures))

    def shards_after(self, snapshot_acks: Iterable[Ack]) -> dict[str, list[ShardState]]:
        """The shards once the snapshot with these acks is valid."""
        shards = {vertex: list(states) for vertex, states in self.shards.items()}
        for ack in snapshot_acks:
            if ack.vertex in shards:
                state = shards[ack.vertex][ack.shard]
                shards[ack.vertex][ack.shard] = state.after_snapshot(ack)
        return shards

"""Computes the watermark of each stateful stage from the events observed at the sources.

An epoch runs under the watermark known when it was planned; its own events advance the watermark of
the next epoch, or of this one where the stage's task has all of them (`OwnWatermark`). So a stage
first takes in the epoch's rows, then closes windows up to its watermark, and a downstream stage
receives these results before the same watermark.

The minimum is taken twice: over the partitions of a source, then over the inputs of a stage. With a
maximum retention, the highest of these watermarks overrides both minima once it has that age.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any

from dagster_jet.dag.watermark import (
    EventTimeState,
    RetainedTops,
    coalesced_minimum,
)
from dagster_jet.pipeline.graph import Graph, TimestampsNode
from dagster_jet.spark.tasks.input_statistics import InputRef
from dagster_jet.spark.tasks.own_watermark import NodeTime, OwnWatermark

_AHEAD_STEP_MIN_MS = 10_000
_BACKLOG = 2
"""Growth of event time, as a multiple of the clock, from which it is a backlog's."""


@dataclass(frozen=True)
class StageWatermarkHold:
    """The source and partition that hold a stage's watermark back."""

    source: str
    since_ms: int | None
    """Wall-clock time of its last watermark, or of its appearance or return."""
    partition: str | None = None
    """Partition of the source; None for the source as a whole."""


@dataclass
class WatermarkTracker:
    """Event time of one job as of the last acked epoch."""

    graph: Graph
    max_retention_ms: int | None = None
    """Longest time that a lagging input may hold back a stage's highest watermark; None for no
    limit."""
    nodes: dict[str, EventTimeState] = field(default_factory=dict)
    """State per timestamps node over all its rows: the newest event of any partition."""
    partitions: dict[str, dict[str, EventTimeState]] = field(default_factory=dict)
    """State per timestamps node and partition of its source, including partitions that hold nothing
    back now."""
    reached_ms: dict[str, int | None] = field(default_factory=dict)
    """Watermark of each stateful stage's last epoch; results up to it have been emitted."""
    expired_until_ms: dict[str, int] = field(default_factory=dict)
    """Per stateful stage: state rows up to this time have expired under the code of that time. They
    stay expired, even if the stage has changed."""
    clock_ms: int | None = None
    """Clock of the last epoch, if stages have timers in processing time, or timestamps a
    `max_ahead`."""

    def __post_init__(self) -> None:
        # The graph is immutable, and these are used several times per epoch.
        self._timestamps = {
            n.name: n.timestamps for n in self.graph if isinstance(n, TimestampsNode)
        }
        self._sources = {name: self.graph.upstream_sources(name) for name in self._timestamps}
        self._stages = {stage.name: stage for stage in self.graph.stages}
        self._inputs = {name: self.graph.upstream_timestamps(name) for name in self._stages}
        self._expected: dict[str, Mapping[str, int]] = {}
        self._retained: dict[str, RetainedTops] = {}
        if self.max_retention_ms is not None:
            self._retained = {stage: RetainedTops(self.max_retention_ms) for stage in self._stages}
        self._own: dict[str, tuple[int, int]] = {}
        """Per stage whose task has advanced its watermark by the last epoch's rows: that watermark,
        and by how much it had grown since the epoch before."""
        self._passed_ms: dict[str, int] = {}
        """Highest watermark per stage that retention has let pass."""
        self._awaited: set[str] = set()
        """Timestamps nodes whose sources had waiting rows at the last look."""
        self._fruitless: set[str] = set()
        """Nodes whose waiting rows produced no event yet."""
        self._quiet: dict[str, EventTimeState] = {}
        """Idle state to restore if the waiting rows produce no event."""
        for name, inputs in self._inputs.items():
            self.reached_ms.setdefault(name, None)
            for node, _ in inputs:
                self.nodes.setdefault(node.name, EventTimeState())

    # --- what happens ---------------------------------------------------------------------------

    def expect(self, node: str, waiting: Mapping[str, int], now_ms: int) -> None:
        """Sets the partitions from which rows may still come, and the known backlog of each.

        Only these partitions hold the watermark back. A partition without any row so far does so
        until its first row, or until it is idle. A partition with waiting rows is not idle, however
        long reading takes. A partition that is not named keeps its watermark for its return.
        """
        before = self._expected.get(node)
        states = self.partitions.setdefault(node, {})
        for partition, rows in waiting.items():
            state = states.get(partition)
            if state is None:
                state = EventTimeState(last_event_at_ms=now_ms, advanced_at_ms=now_ms)
            elif (before is not None and partition not in before) or (state.idle and rows):
                state = replace(state, last_event_at_ms=now_ms, idle=False, advanced_at_ms=now_ms)
            elif rows:
                state = replace(state, last_event_at_ms=now_ms)
            states[partition] = state
        self._expected[node] = waiting

    def observe(
        self,
        node: str,
        rows: int,
        top_event_ms: int | None,
        now_ms: int,
        tops: Mapping[str, int] | None = None,
    ) -> None:
        """Takes in an epoch's events at a timestamps node; `tops` is the newest event time per
        partition."""
        lag_ms = self._timestamps[node].allowed_lag_ms
        state = self.nodes.get(node, EventTimeState())
        if rows:
            self.nodes[node] = state.observe(top_event_ms, lag_ms, now_ms)
            self._fruitless.discard(node)
            self._quiet.pop(node, None)
        elif node in self._awaited:
            self._fruitless.add(node)
            self.nodes[node] = self._quiet.pop(node, state)
        for partition, top_ms in (tops or {}).items():
            states = self.partitions.setdefault(node, {})
            known = states.get(partition, EventTimeState())
            states[partition] = known.observe(top_ms, lag_ms, now_ms)

    def check_time(
        self, now_ms: int, waiting: Collection[str] = (), silent: Collection[str] = ()
    ) -> None:
        """Applies the passing of time: idle partitions, watermarks that advance by the clock, and
        watermarks whose retention has passed.

        Args:
            now_ms: wall clock.
            waiting: the sources with waiting rows. They are not idle, however long the driver
                slept, and a source that was idle is active again: the epoch that reads its rows
                must not close windows over them. This does not hold while the rows that are read
                contain no event, because a filter drops them all or they are rejected.
            silent: the sources that have not answered yet, or do not answer now. Their backlog is
                unknown, so no time passes for them.

        Retention counts from the first look at a watermark, and starts again in a new execution.
        """
        unknown = {n for n in self.nodes if not self._sources[n].isdisjoint(silent)}
        self._awaited = {n for n in self.nodes if not self._sources[n].isdisjoint(waiting)}
        self._awaited |= unknown
        self._fruitless &= self._awaited
        self._quiet = {n: state for n, state in self._quiet.items() if n in self._awaited}
        self._check_quiet(now_ms, unknown)
        for stage, tops in self._retained.items():
            highest = [
                watermark_ms - delay_ms
                for node, delay_ms in self._inputs[stage]
                if (watermark_ms := self.nodes[node.name].watermark_ms) is not None
            ]
            if highest:
                tops.observe(max(highest), now_ms)
            passed_ms = tops.due(now_ms)
            if passed_ms is not None:
                self._passed_ms[stage] = passed_ms

    def _check_quiet(self, now_ms: int, unknown: Set[str]) -> None:
        to_be_read = (self._awaited - self._fruitless) | unknown
        for name, timestamps in self._timestamps.items():
            idle_ms, lull_ms = timestamps.idle_timeout_ms, timestamps.max_lull_ms
            if name in self.nodes:
                state = self.nodes[name]
                if name in to_be_read:
                    self._quiet.setdefault(name, state)
                    since_ms = now_ms if state.idle else state.advanced_at_ms
                    self.nodes[name] = replace(
                        state, last_event_at_ms=now_ms, idle=False, advanced_at_ms=since_ms
                    )
                else:
                    state = state.check_idle(idle_ms, now_ms)
                    self.nodes[name] = state.check_lull(lull_ms, now_ms)
            states = self.partitions.get(name, {})
            for partition, rows in self._expected.get(name, {}).items():
                state = states[partition]
                if name in unknown:
                    states[partition] = replace(state, last_event_at_ms=now_ms)
                elif not rows:
                    state = state.check_idle(idle_ms, now_ms)
                    states[partition] = state.check_lull(lull_ms, now_ms)

    def reach(self, stage: str, watermark_ms: int | None, own_ms: int | None) -> None:
        """Notes the watermark of a stage's acked epoch.

        Args:
            watermark_ms: the planned one.
            own_ms: the one to which the stage's task has advanced it; None if it has not.
        """
        before = self._own.pop(stage, None)
        if own_ms is not None:
            watermark_ms = self._stages[stage].floor_watermark(own_ms)
            self._own[stage] = own_ms, 0 if before is None else own_ms - before[0]
        self.reached_ms[stage] = watermark_ms

    def expire(self, stage: str, until_ms: int | None) -> None:
        """Marks rows of a stage's state up to this time as expired; None for no rows. Never
        reverted."""
        if until_ms is not None:
            self.expired_until_ms[stage] = max(until_ms, self.expired_until_ms.get(stage, until_ms))

    # --- questions ------------------------------------------------------------------------------

    def ingestion_ms(self, now_ms: int) -> dict[str, int]:
        """Returns the event time of the next epoch's rows for nodes that use the read time. It
        never decreases, although the clock may be another host's or have been set back, so that no
        row is late."""
        return {
            name: max(now_ms, self.nodes.get(name, EventTimeState()).top_event_ms or now_ms)
            for name, timestamps in self._timestamps.items()
            if timestamps.of_ingestion
        }

    def next_clock_ms(self, now_ms: int) -> int:
        """Returns the clock of the next epoch. It never goes back, although the wall clock may be
        another host's or have been set back."""
        return max(now_ms, self.clock_ms or now_ms)

    def clocks_ms(self, now_ms: int) -> dict[str, int]:
        """Returns the clock of the next epoch for stages with timers in processing time."""
        clock_ms = self.next_clock_ms(now_ms)
        return {name: clock_ms for name, stage in self._stages.items() if stage.follows_clock}

    def latest_ms(self, clock_ms: int) -> dict[str, int]:
        """Returns the newest event time that moves the watermark in an epoch with this clock, for
        nodes with a `max_ahead`. It changes in steps, so that frames serve several epochs."""
        found = {}
        for name, timestamps in self._timestamps.items():
            ahead_ms = timestamps.max_ahead_ms
            if ahead_ms is not None:
                step_ms = max(ahead_ms // 4, _AHEAD_STEP_MIN_MS)
                found[name] = (clock_ms // step_ms + 1) * step_ms + ahead_ms
        return found

    def expiring_ms(self, stage: str) -> int | None:
        """Returns the clock or the watermark of the last epoch, whichever the stage's state expires
        by."""
        return self.clock_ms if self._stages[stage].follows_clock else self.reached_ms[stage]

    def source_watermark_ms(self, node: str) -> tuple[int | None, bool]:
        """Returns the minimum over the partitions of a source, and whether the source is idle.

        If no partition holds it back, the watermark follows the newest event of any partition.
        """
        whole = self.nodes.get(node, EventTimeState())
        least, none_active = coalesced_minimum(
            [(whole.watermark_ms, True), *((s.watermark_ms, s.idle) for s in self._holding(node))]
        )
        return least, none_active and whole.idle

    def watermark_ms(self, stage: str) -> int | None:
        """Returns the minimum over the inputs that are not idle; if all are idle, the highest one.
        A watermark that retention has let pass counts as well."""
        inputs = [
            (*self.source_watermark_ms(node.name), delay_ms)
            for node, delay_ms in self._inputs[stage]
        ]
        least, _ = coalesced_minimum(
            (None if watermark_ms is None else watermark_ms - delay_ms, idle)
            for watermark_ms, idle, delay_ms in inputs
        )
        known = [one for one in (least, self._passed_ms.get(stage)) if one is not None]
        return max(known, default=None)

    def own_watermark(
        self, stage: str, counted_by: Mapping[str, InputRef], read: Mapping[str, Sequence[str]]
    ) -> OwnWatermark | None:
        """Returns the stage's event time before an epoch, for the task that has all its rows; None
        if tasks do not count the events of all its timestamps nodes.

        Args:
            counted_by: by timestamps node, the input whose task counts its events.
            read: by timestamps node, the partitions that the epoch reads, by their index.
        """
        if any(node.name not in counted_by for node, _ in self._inputs[stage]):
            return None
        nodes = (
            self._node_time(node.name, delay_ms, counted_by[node.name], read.get(node.name, ()))
            for node, delay_ms in self._inputs[stage]
        )
        return OwnWatermark(tuple(nodes), self._passed_ms.get(stage))

    def _node_time(
        self, node: str, delay_ms: int, counted_by: InputRef, read: Sequence[str]
    ) -> NodeTime:
        whole = self.nodes[node]
        states = self.partitions.get(node, {})
        others = (states[one] for one in self._expected.get(node, {}).keys() - set(read))
        now = (states.get(one, EventTimeState()) for one in read)
        return NodeTime(
            counted_by,
            self._timestamps[node].allowed_lag_ms,
            delay_ms,
            (whole.watermark_ms, whole.idle),
            tuple((state.watermark_ms, state.idle) for state in now),
            coalesced_minimum((state.watermark_ms, state.idle) for state in others),
        )

    def held_back_by(self, stage: str) -> StageWatermarkHold | None:
        """Returns the source that holds the stage's watermark back, and since when (wall clock).

        None if no input is active. Inputs without any watermark come first.
        """
        found: list[tuple[float, StageWatermarkHold]] = []
        for node, delay_ms in self._inputs[stage]:
            watermark_ms, idle = self.source_watermark_ms(node.name)
            if not idle:
                least = -inf if watermark_ms is None else watermark_ms - delay_ms
                found.append((least, self._hold_of(node)))
        return min(found, key=lambda f: f[0])[1] if found else None

    def _holding(self, node: str) -> list[EventTimeState]:
        states = self.partitions.get(node, {})
        return [states[partition] for partition in self._expected.get(node, ())]

    def _hold_of(self, node: TimestampsNode) -> StageWatermarkHold:
        """Returns the partition that decides the watermark of a source that is not idle."""
        source = ", ".join(self.graph.named_upstreams(node.name))
        states = self.partitions.get(node.name, {})
        active = [p for p in self._expected.get(node.name, ()) if not states[p].idle]
        if not active:
            return StageWatermarkHold(source, self.nodes[node.name].advanced_at_ms)

        def watermark(partition: str) -> float:
            watermark_ms = states[partition].watermark_ms
            return -inf if watermark_ms is None else watermark_ms

        least = min(active, key=watermark)
        return StageWatermarkHold(source, states[least].advanced_at_ms, least)

    def floored_ms(self, stage: str) -> int | None:
        """Returns `watermark_ms` rounded to a boundary of the stage's windows: the limit of its
        next epoch."""
        watermark_ms = self.watermark_ms(stage)
        return None if watermark_ms is None else self._stages[stage].floor_watermark(watermark_ms)

    def expected_ms(self, stage: str, elapsed_ms: int) -> int | None:
        """Returns the watermark that the rows of the stage's next epoch will probably bring,
        rounded as `floored_ms`; None if they advance the watermark of the epoch after it.

        Args:
            elapsed_ms: time since the last epoch took its rows. Event time grows as fast; that of a
                backlog grows much faster, about as in the last epoch.
        """
        if stage not in self._own:
            return None
        own_ms, growth_ms = self._own[stage]
        is_backlog = growth_ms > _BACKLOG * elapsed_ms
        return self._stages[stage].floor_watermark(
            own_ms + (growth_ms if is_backlog else elapsed_ms)
        )

    # --- snapshots ------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": {name: asdict(state) for name, state in self.nodes.items()},
            # Watermark and its time. Every manifest may have hundreds of them.
            "partitions": {
                node: {p: (state.watermark_ms, state.advanced_at_ms) for p, state in states.items()}
                for node, states in self.partitions.items()
            },
            "reached_ms": dict(self.reached_ms),
            "dead_until_ms": dict(self.expired_until_ms),
            "clock_ms": self.clock_ms,
            # For display (`dagster-jet watermarks`); recomputed after a restart.
            "held_back_by": {
                stage: None if hold is None else asdict(hold)
                for stage, hold in ((s, self.held_back_by(s)) for s in self.reached_ms)
            },
        }

    def restore(self, saved: Mapping[str, Any], now_ms: int) -> None:
        """Restores saved event time. Idleness is measured by this execution's clock, so every
        partition gets its full time-out again."""
        for name, fields in saved["nodes"].items():
            if name in self.nodes:
                state = EventTimeState(**fields)
                self.nodes[name] = replace(state, last_event_at_ms=now_ms, idle=False)
        for name, states in saved["partitions"].items():
            if name in self.nodes:
                self.partitions[name] = {
                    partition: EventTimeState(
                        watermark_ms=watermark_ms,
                        last_event_at_ms=now_ms,
                        advanced_at_ms=advanced_at_ms,
                    )
                    for partition, (watermark_ms, advanced_at_ms) in states.items()
                }
        for name, watermark in saved["reached_ms"].items():
            if name in self.reached_ms:
                self.reached_ms[name] = watermark
        self.clock_ms = saved.get("clock_ms")
        for name, until_ms in saved["dead_until_ms"].items():
            if name in self.reached_ms:
                self.expire(name, until_ms)


def saved_expiry(watermarks: Mapping[str, Any], stage: str) -> int | None:
    """Returns the time up to which a stage's rows had expired in a manifest; None if none had."""
    until_ms: int | None = watermarks.get("dead_until_ms", {}).get(stage)
    return until_ms

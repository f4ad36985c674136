"""Checks and counts the acks of an epoch's tasks, and adds the acks of sources."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dagster_jet.core.job_context import check_number
from dagster_jet.core.measures import combined, counters_of
from dagster_jet.errors import BadRowError
from dagster_jet.execution.context import ExecutionContext
from dagster_jet.execution.early_results import EarlyResults
from dagster_jet.execution.events import ItemsLost
from dagster_jet.execution.polled_sources import PolledSources
from dagster_jet.execution.source_journals import SourceJournals
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.manifest import Ack, Counters
from dagster_jet.snapshot.protocol import RunEpoch
from dagster_jet.snapshot.storage.chunks import superseded
from dagster_jet.spark.epoch_contract import EpochInput, EpochOutput

_logger = logging.getLogger(__name__)

ROWS_AHEAD = "rows_ahead"
"""Name of the counter of rows that are further ahead of the clock than `max_ahead`."""


@dataclass(frozen=True)
class EpochRows:
    """Acks and row counts of a complete epoch."""

    acks: tuple[Ack, ...]
    rows: Mapping[str, int]
    """Rows per source, including dead letters."""


@dataclass
class EpochAccounting:
    """Accounts for the epochs of one execution, on the epochs' thread."""

    context: ExecutionContext
    sources: PolledSources
    journals: SourceJournals
    early: EarlyResults
    groups: int = 0
    """Largest number of (key, window) groups of one shard in the last epoch."""
    _obsolete: list[str] = field(default_factory=list)

    def take_obsolete(self) -> tuple[str, ...]:
        """Returns the run files that became obsolete since the last call."""
        obsolete, self._obsolete = self._obsolete, []
        return tuple(obsolete)

    def account(
        self, command: RunEpoch, epoch: EpochInput, output: EpochOutput, view: CoordinatorView
    ) -> EpochRows:
        """Checks the output of the tasks, advances the watermarks, and adds the acks of the
        sources.

        Raises:
            BadRowError: rows have no event time.
            SourceError: a split changed while it was read.
        """
        context, readers = self.context, self.sources.readers
        rows_of = self._rows(output)
        rejected = {
            n.upstream[0]: sum(a.rows_in for a in output.acks if a.vertex == n.name)
            for n in context.graph.sinks
            if n.of_dead_letters
        }
        rows = {name: rows_of.get(name, 0) + rejected.get(name, 0) for name in readers}
        for name, split in epoch.splits.items():
            readers[name].verify(split, rows[name])
        self._move_watermarks(epoch, output)
        self.groups = max((ack.groups for ack in output.acks), default=0)
        self._obsolete.extend(path for ack in output.acks for path in ack.obsolete)
        source_acks = [
            self._source_ack(name, command, view, rows_of.get(name, 0), rejected.get(name, 0))
            for name in readers
        ]
        self._report_lost(source_acks, command, view)
        counted = (
            Ack(stage, 0, f"driver-{command.epoch_id}", counted=counters)
            for stage, counters in output.counted.items()
        )
        of_tasks = (*source_acks, *_with_late(output.acks, output.late_rows))
        acks = (*self._with_ahead(of_tasks, output, view), *counted)
        self._check_counters(acks, view)
        return EpochRows(acks, rows)

    def _with_ahead(
        self, acks: Sequence[Ack], output: EpochOutput, view: CoordinatorView
    ) -> list[Ack]:
        """Counts rows that are too far ahead to move the watermark, with the source, or the stage,
        that they come from; warns when their number has doubled."""
        context, missing = self.context, Counter[str]()
        for name, seen in output.observed.items():
            if seen.ahead:
                stage = context.graph.named_upstreams(name)[0]
                missing[stage] += seen.ahead
                before = counters_of(view.counters.get(stage, Counters()).counted).get(
                    ROWS_AHEAD, 0
                )
                if (before + seen.ahead).bit_length() > before.bit_length():
                    _logger.warning(
                        "job %r, stage %r: %d rows so far have an event time further ahead of the "
                        "clock than max_ahead, the farthest %d ms since 1970. They do not move the "
                        "watermark.",
                        *(context.job, stage, before + seen.ahead, seen.farthest_ms),
                    )
        result = []
        for ack in acks:
            ahead = missing.pop(ack.vertex, 0)
            own = {ROWS_AHEAD: ahead} if ahead else {}
            result.append(replace(ack, counted=combined(ack.counted, own)) if own else ack)
        return result

    def _check_counters(self, acks: Sequence[Ack], view: CoordinatorView) -> None:
        """
        Raises:
            UserFunctionError: the functions of a stage have counted under too many names: each task
                knows only its own.
        """
        for ack in acks:
            if ack.counted:
                known = view.counters.get(ack.vertex, Counters()).counted
                check_number((*known, *ack.counted), self.context.job, ack.vertex)

    def _rows(self, output: EpochOutput) -> dict[str, int]:
        """Returns the rows per source, without dead letters."""
        context, rows_of = self.context, dict(output.source_rows)
        for name, seen in output.observed.items():
            source, arrived = context.graph[name].upstream[0], seen.arrived
            if arrived.rows != arrived.rows_with_time:
                raise BadRowError(
                    f"{arrived.rows - arrived.rows_with_time} rows have no event time.",
                    job=context.job,
                    stage=source,
                    cure="Correct the input, filter such rows before with_timestamps(), or send "
                    "them to a sink with dead_letter_to().",
                )
            rows_of[source] = arrived.rows
        counts = (one for ack in output.acks for one in ack.arrived)
        assert all(one.rows == one.rows_with_time for one in counts), "a task has run no step"
        return rows_of

    def _move_watermarks(self, epoch: EpochInput, output: EpochOutput) -> None:
        context, watermarks = self.context, self.sources.watermarks
        now_ms = context.clock.now_ms()
        for name, seen in output.observed.items():
            rows, top_ms = seen.arrived.rows, seen.arrived.top_event_ms
            watermarks.observe(name, rows, top_ms, now_ms, seen.partition_tops_ms)
        if epoch.latest_ms or any(stage.clock_ms for stage in epoch.stages.values()):
            watermarks.clock_ms = epoch.clock_ms
        own_ms = {ack.vertex: ack.watermark_ms for ack in output.acks}
        for name, stage in epoch.stages.items():
            own = own_ms.get(name)
            watermarks.reach(name, stage.after_ms, own)
            advanced = stage if own is None else replace(stage, after_ms=own)
            watermarks.expire(name, context.plan.operator(name).expired_until(advanced.now_ms))
        shown = [name for name, stage in epoch.stages.items() if stage.early]
        self.early.acked(shown, output.acks, now_ms)

    def _source_ack(
        self, name: str, command: RunEpoch, view: CoordinatorView, rows: int, rejected: int
    ) -> Ack:
        chunk_set, error = self.journals.written(name)
        chain = view.shards[name][0].chain
        return Ack(
            vertex=name,
            shard=0,
            attempt=f"driver-{command.epoch_id}",
            rows_in=rows + rejected,
            rows_out=rows,
            rejected=rejected,
            lost=self.sources.readers[name].take_lost(),
            chunk_set=chunk_set,
            chain_dropped=superseded(chain, chunk_set.sequence) if chunk_set else 0,
            snapshot_error=error,
        )

    def _report_lost(
        self, source_acks: Sequence[Ack], command: RunEpoch, view: CoordinatorView
    ) -> None:
        """Reports lost items by an event and in counters that every snapshot keeps."""
        context = self.context
        for ack in source_acks:
            if ack.lost:
                in_all = ack.lost + view.counters.get(ack.vertex, Counters()).lost
                context.emit(
                    ItemsLost(context.job, command.execution_id, ack.vertex, ack.lost, in_all)
                )


def _with_late(acks: Sequence[Ack], late_rows: Mapping[str, int]) -> list[Ack]:
    """Adds late rows that were removed before a stage to the ack of its first shard."""
    missing = {stage: late for stage, late in late_rows.items() if late}
    result = []
    for ack in acks:
        late = missing.pop(ack.vertex, 0)
        result.append(replace(ack, rows_in=ack.rows_in + late, late=ack.late + late))
    return result

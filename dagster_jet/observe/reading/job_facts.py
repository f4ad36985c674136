"""Facts about a job, as its store has them: the input of `findings`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dagster_jet.execution.events import SourceProgress, StageProgress, with_totals
from dagster_jet.observe.reading.ledger import Ledger
from dagster_jet.observe.reading.profile import JobProfile
from dagster_jet.observe.writing.progress_report import ProgressReport
from dagster_jet.ownership.supervision import Supervision
from dagster_jet.pipeline.stage_kind import StageKind
from dagster_jet.snapshot.manifest import Counters, Manifest
from dagster_jet.snapshot.record import Activity, ExecutionRecord


@dataclass(frozen=True)
class JobFacts:
    """Data about a job in the store. All but the record may be missing."""

    record: ExecutionRecord
    """The record, as `Job.record` shows it."""
    now_ms: int
    supervision: Supervision | None = None
    manifest: Manifest | None = None
    """Manifest of the newest snapshot."""
    earlier: Manifest | None = None
    """Manifest of the oldest retained snapshot, if it is not the newest."""
    report: ProgressReport | None = None
    """Report of the record's own execution."""
    profile: JobProfile | None = None
    ledger: Ledger | None = None

    @property
    def is_live(self) -> bool:
        return self.record.status.is_live

    @property
    def clock_ms(self) -> int:
        """The job's own clock at its last sign of life; the job's times are compared with it."""
        lease, report = self.record.lease, self.report
        renewed_ms = lease.renewed_at_ms if lease is not None else 0
        return max(renewed_ms, report.written_at_ms if report is not None else 0) or self.now_ms

    @property
    def activity(self) -> Activity | None:
        return self.record.lease.activity if self.record.lease is not None else None

    @property
    def sources(self) -> Mapping[str, SourceProgress]:
        """Live sources, or those of the newest snapshot without lag and outages."""
        if self.report is not None and self.report.sources:
            return self.report.sources
        if self.manifest is None:
            return {}
        counters = self.manifest.counters
        return {
            name: SourceProgress(counters.get(name, Counters()).rows_in, {}, {})
            for name in self.manifest.sources
        }

    @property
    def stages(self) -> Mapping[str, StageProgress]:
        """Sources, stateful stages and sinks; live, or as of the newest snapshot."""
        if self.report is not None and self.report.stages:
            return self.report.stages
        if self.manifest is None:
            return {}
        reached = self.manifest.watermarks.get("reached_ms", {})
        holds = self.manifest.watermarks.get("held_back_by", {})
        return {
            name: _with_hold(
                with_totals(StageProgress(0, 0, watermark_ms=reached.get(name)), c),
                holds.get(name) or {},
            )
            for name, c in self.manifest.counters.items()
        }

    @property
    def sinks(self) -> tuple[str, ...]:
        return () if self.manifest is None else tuple(self.manifest.sinks)

    def emits_by_watermark(self, stage: str) -> bool:
        """Whether it is a stateful stage whose results wait for its watermark."""
        if self.manifest is None or stage not in self.manifest.shards:
            return False
        return bool(self.manifest.plan.get(stage, {}).get("kind") == StageKind.AGGREGATE.value)

    @property
    def stateful(self) -> tuple[str, ...]:
        return tuple(self.manifest.shards) if self.manifest is not None else ()


def _with_hold(stage: StageProgress, hold: Mapping[str, object]) -> StageProgress:
    source, partition, since_ms = (hold.get(k) for k in ("source", "partition", "since_ms"))
    return replace(
        stage,
        held_back_by=str(source) if source is not None else None,
        held_back_partition=str(partition) if partition is not None else None,
        held_back_since_ms=since_ms if isinstance(since_ms, int) else None,
    )

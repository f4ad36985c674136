"""Explains why a job has output or none, from the store alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from dagster_jet.errors import JetError, JobStateError
from dagster_jet.execution.events import SourceProgress, StageProgress
from dagster_jet.observe.reading.findings import Finding, find
from dagster_jet.observe.reading.job_facts import JobFacts
from dagster_jet.observe.reading.ledger import read_ledger
from dagster_jet.observe.reading.profile import read_profile
from dagster_jet.observe.writing.report_keeper import read_report
from dagster_jet.ownership.lease import wall_clock_ms
from dagster_jet.ownership.supervision import read_supervision
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store

_T = TypeVar("_T")


@dataclass(frozen=True)
class Explanation:
    """An explanation of a job's output.

    Attributes:
        job: the job's name.
        status: the job's status, as `Job.record` shows it.
        findings: most likely cause first; empty if nothing is known yet.
        sources: progress by name, as of the job's last report or of its newest snapshot.
        stages: the same for stateful stages and sinks.
        reported_at_ms: wall clock of the job's process at that report; None: this execution has
            none, so lag and outages are not known.
    """

    job: str
    status: JobStatus
    findings: tuple[Finding, ...]
    sources: Mapping[str, SourceProgress]
    stages: Mapping[str, StageProgress]
    reported_at_ms: int | None

    @property
    def text(self) -> str:
        """For people: a line per finding, followed by its cure."""
        if not self.findings:
            if self.reported_at_ms is None:
                return "The job has not reported yet. Its first report follows within seconds."
            return "No problem was found."
        lines = []
        for number, finding in enumerate(self.findings, start=1):
            lines.append(f"{number}. {finding.text}")
            if finding.cure:
                lines.append(f"   {finding.cure}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """For programs: plain values only."""
        return {
            "job": self.job,
            "status": self.status.value,
            "findings": [{**asdict(f), "kind": f.kind.value} for f in self.findings],
            "sources": {name: _without_position(source) for name, source in self.sources.items()},
            "stages": {name: asdict(stage) for name, stage in self.stages.items()},
            "reported_at_ms": self.reported_at_ms,
        }


def _without_position(source: SourceProgress) -> dict[str, Any]:
    fields = asdict(source)
    del fields["position"]
    return fields


def explain(store: Store, record: ExecutionRecord | None, job: str) -> Explanation:
    """Reads a job's data in the store and explains the job's output.

    Args:
        store: the job's store.
        record: the record, as `Job.record` shows it.
        job: the job's name.

    Raises:
        JobStateError: the job never ran.
        StoreUnavailableError: too few members of the store answer.
    """
    if record is None:
        raise JobStateError(
            "no job of this name has ever run with this store.",
            job=job,
            cure="'dagster-jet jobs' lists the jobs. Submit the pipeline, or launch its Dagster "
            "job.",
        )
    facts = read_facts(store, record)
    return Explanation(
        job=job,
        status=record.status,
        findings=find(facts),
        sources=facts.sources,
        stages={n: s for n, s in facts.stages.items() if n not in facts.sources},
        reported_at_ms=facts.report.written_at_ms if facts.report is not None else None,
    )


def read_facts(store: Store, record: ExecutionRecord) -> JobFacts:
    """Reads the facts from the store. Damaged values and values under replacement are left out."""
    job, snapshots = record.job, SnapshotStore(store, record.job)
    newest = record.snapshot
    reported = _known(lambda: read_report(store, job))
    is_own = reported is not None and reported[0] == record.execution_id
    oldest = record.snapshots[-1] if len(record.snapshots) > 1 else None
    is_pending = newest is not None and not newest.committed
    report = reported[1] if reported is not None and is_own else None
    names_sinks = record.status.is_live and report is not None and bool(report.committing)
    return JobFacts(
        record=record,
        now_ms=wall_clock_ms(),
        supervision=read_supervision(store, job),
        manifest=None if newest is None else _known(lambda: snapshots.load(newest)),
        earlier=None if oldest is None else _known(lambda: snapshots.load(oldest)),
        report=report,
        profile=_known(lambda: read_profile(store, job)),
        # Conditional, since it asks the sinks' own places, which may be slow.
        ledger=_known(lambda: read_ledger(store, record))
        if is_pending and not names_sinks
        else None,
    )


def _known(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except JetError:
        return None

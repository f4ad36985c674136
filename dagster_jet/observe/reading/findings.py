"""Finds causes of missing output in a job's facts, most likely first.

Reads nothing; `observe.reading.explanation` gathers the facts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from dagster_jet.core.moments import moment
from dagster_jet.core.phases import Phase
from dagster_jet.execution.events import SourceProgress, StageProgress
from dagster_jet.observe.reading.job_facts import JobFacts
from dagster_jet.observe.reading.ledger import LedgerOrigin
from dagster_jet.observe.reading.run_progress import count, span
from dagster_jet.observe.writing.progress_report import ProgressReport
from dagster_jet.ownership.supervision import Intent, Supervision
from dagster_jet.snapshot.manifest import Counters
from dagster_jet.snapshot.record import Doing, JobStatus

STUCK_AFTER_MS = 60_000
QUIET_AFTER_MS = 10_000
"""Conditions shorter than this are normal and explain nothing."""
FLOWS_WITHIN_MS = 60_000
MANY = 0.5
"""Share of late or dead-lettered rows that explains missing output."""
_PARTITIONS_SHOWN = 3


class FindingKind(str, Enum):
    """Kind of a finding, in the order in which kinds explain most."""

    FLOWING = "flowing"
    """Output is committed."""
    FAILED = "failed"
    SUSPENDED = "suspended"
    PAUSED = "paused"
    """A person has paused the job."""
    COMPLETED = "completed"
    DOWN = "down"
    """No execution has the job."""
    STARTING = "starting"
    COMMIT_PENDING = "commit pending"
    """Output is decided, and phase 2 of some sink is not over."""
    SNAPSHOTS_FAIL = "snapshots fail"
    STUCK = "stuck"
    """The job lives, but one activity takes too long."""
    SOURCE_UNAVAILABLE = "source unavailable"
    NO_INPUT = "no input"
    ROWS_LATE = "rows late"
    ROWS_REJECTED = "rows rejected"
    NOTHING_PASSES = "nothing passes"
    """Rows are read, and none reaches a stage or a sink."""
    WATERMARK_HELD = "watermark held"
    WINDOW_OPEN = "window open"
    """State waits for the watermark, as intended."""
    NOT_YET_VISIBLE = "not yet visible"
    """Output is staged and waits for the next snapshot."""
    BEHIND = "behind"
    """Unread input waits in a source."""
    SLOW_PHASE = "slow phase"


@dataclass(frozen=True)
class Finding:
    """An explanation of missing output, or of output that is there.

    Attributes:
        kind: the kind of the explanation.
        subject: the job, source, stage, sink or phase that it is about.
        text: for people, in whole sentences.
        cure: what to do; "" if nothing needs to be done.
        since_ms: wall clock of the job's process; None: not known.
    """

    kind: FindingKind
    subject: str
    text: str
    cure: str = ""
    since_ms: int | None = None


def find(facts: JobFacts) -> tuple[Finding, ...]:
    """Returns the explanations of the job's output, most likely cause first. Pure."""
    order = list(FindingKind)
    return tuple(sorted(_all(facts), key=lambda finding: order.index(finding.kind)))


def _all(facts: JobFacts) -> Iterator[Finding]:
    if facts.is_live:
        yield from _flowing(facts)
        yield from _at_work(facts)
        yield from _snapshots(facts)
        yield from _input(facts)
    else:
        yield _down(facts)
    yield from _commits(facts)
    yield from _lost_on_the_way(facts)
    yield from _waiting_for_time(facts)
    if facts.is_live:
        yield from _pace(facts)


# --- output and status --------------------------------------------------------------------------


def _flowing(facts: JobFacts) -> Iterator[Finding]:
    record, newest, earlier = facts.record, facts.manifest, facts.earlier
    if newest is None or record.snapshot is None or not record.snapshot.committed:
        return
    age_ms = facts.clock_ms - record.snapshot.taken_at_ms
    if age_ms > FLOWS_WITHIN_MS:
        return
    since_ms = record.snapshots[-1].taken_at_ms if earlier is not None else None
    before = earlier.counters if earlier is not None else {}
    for sink in facts.sinks:
        counted = newest.counters.get(sink, Counters())
        rows = counted.rows_in - before.get(sink, Counters()).rows_in
        if rows > 0:
            over = f" in the last {span(facts.clock_ms - since_ms)}" if since_ms else " so far"
            waits = " It holds rows back until they are enough for a file." * (sink in newest.held)
            yield Finding(
                FindingKind.FLOWING,
                sink,
                f"Rows are being written: {sink} got {rows:,} rows{over}; the last snapshot was "
                f"committed {span(max(0, age_ms))} ago.{waits}",
                since_ms=since_ms,
            )


def _down(facts: JobFacts) -> Finding:
    record, supervision = facts.record, facts.supervision
    failure = f": {record.failure.rstrip('.')}." if record.failure else "."
    since_ms = record.updated_at_ms or None
    job, kind = record.job, FindingKind.DOWN
    resume = f"dagster-jet job {job} resume"
    if record.status is JobStatus.COMPLETED:
        text = "The job is COMPLETED: its inputs have ended, and it reads nothing more."
        cure = "Give the pipeline another name to start from the beginning."
        return Finding(FindingKind.COMPLETED, job, text, cure, since_ms)
    if record.status is JobStatus.FAILED:
        text = f"The job has FAILED{failure}"
        cure = (
            f"Remove the cause, then {_start(supervision)}: the job continues from its last "
            "snapshot."
        )
        return Finding(FindingKind.FAILED, job, text, cure, since_ms)
    is_resumed = supervision is not None and supervision.resumed_execution >= record.execution_id
    if record.status is JobStatus.SUSPENDED and not is_resumed:
        kind, text = FindingKind.SUSPENDED, f"The job is SUSPENDED{failure}"
        return Finding(kind, job, text, f"Start it again: {resume}.", since_ms)
    if supervision is not None and supervision.intent is Intent.PAUSED:
        text = f"The job is not running because a user has paused it{failure}"
        return Finding(FindingKind.PAUSED, job, text, f"Start it again: {resume}.", since_ms)
    cause = f" ({record.cause.value})" if record.cause is not None else ""
    text = f"The job is not running{cause}{failure}"
    if supervision is not None and supervision.intent is Intent.DRAINED:
        text += " Its runs end when they have read the available input."
    return Finding(kind, job, text, f"{_start(supervision, first=True)}.", since_ms)


def _start(supervision: Supervision | None, *, first: bool = False) -> str:
    """Instructions to start the job."""
    how = "submit its pipeline, or launch its Dagster job"
    if supervision is not None and supervision.intent is Intent.DRAINED:
        how = "wait for its schedule, or launch its Dagster job"
    elif supervision is not None and supervision.intent is Intent.ALWAYS_ON:
        how = (
            "check that its supervisor sensor is on and that the Dagster daemon is running: they "
            "start it; or launch its Dagster job"
        )
    return how[0].upper() + how[1:] if first else how


# --- activity, commits, snapshots, input --------------------------------------------------------


def _at_work(facts: JobFacts) -> Iterator[Finding]:
    activity, record = facts.activity, facts.record
    if record.status is JobStatus.STARTING:
        at = f" for {span(activity.for_ms)}" if activity is not None else ""
        error = f" It waits for: {activity.error}." if activity and activity.error else ""
        text = (
            f"The job has been starting{at}: it starts Spark, then restores the last "
            f"snapshot.{error}"
        )
        yield Finding(FindingKind.STARTING, record.job, text, since_ms=_since(facts))
    elif activity is not None and activity.doing in (Doing.EPOCH, Doing.ASKING, Doing.OTHER):
        if activity.is_stuck(STUCK_AFTER_MS):
            error = f": {activity.error.rstrip('.')}" if activity.error else ""
            cure = (
                "Bring the source back: the job polls it again by itself."
                if activity.doing is Doing.ASKING
                else "Look in Spark's UI for tasks that do not end. Restart the job with "
                f"dagster-jet job {record.job} restart."
            )
            yield Finding(
                FindingKind.STUCK,
                record.job,
                f"The job is alive and has been {activity.doing.value} for "
                f"{span(activity.for_ms)}{error}.",
                cure,
                _since(facts),
            )


def _since(facts: JobFacts) -> int | None:
    return None if facts.activity is None else facts.clock_ms - facts.activity.for_ms


def _commits(facts: JobFacts) -> Iterator[Finding]:
    snapshot, report, activity = facts.record.snapshot, facts.report, facts.activity
    if snapshot is None:
        return
    age_ms = facts.clock_ms - snapshot.taken_at_ms
    if snapshot.committed:
        if not facts.is_live:
            yield from _held_back(facts, snapshot.taken_at_ms)
        return
    if facts.is_live and age_ms < QUIET_AFTER_MS:
        return
    errors = {sink: c.error for sink, c in report.committing.items()} if report else {}
    if not (facts.is_live and errors):
        errors = {
            entry.sink: entry.note
            for entry in (facts.ledger.entries.values() if facts.ledger else ())
            if entry.origin is LedgerOrigin.RECORD
            or (entry.epoch_id or -1) < entry.decided_epoch_id
        } or {"a sink": ""}
    for sink, error in errors.items():
        why = error or (activity.error if activity is not None else "")
        yield Finding(
            FindingKind.COMMIT_PENDING,
            sink,
            f"Snapshot {snapshot.snapshot_id} is decided, and its commit to {sink} has been "
            f"pending for {span(age_ms)}" + (f": {why}." if why else "."),
            "Bring the sink's server or file system back: the commit is retried until it "
            "succeeds, and no row is lost."
            if facts.is_live
            else "The next start commits it.",
            snapshot.taken_at_ms,
        )


def _held_back(facts: JobFacts, since_ms: int) -> Iterator[Finding]:
    """Rows of a job that is down: nobody commits them when they are old enough."""
    manifest = facts.manifest
    if manifest is None:
        return
    for sink in manifest.held:
        yield Finding(
            FindingKind.COMMIT_PENDING,
            sink,
            f"{manifest.held_rows(sink):,} rows of {sink} are decided and held back, and no "
            "execution commits them.",
            "The next start commits them.",
            since_ms,
        )


def _snapshots(facts: JobFacts) -> Iterator[Finding]:
    report, activity = facts.report, facts.activity
    since_ms, why = None, ""
    if report is not None and report.failing_since_ms is not None:
        since_ms, why = report.failing_since_ms, report.last_failure
    if activity is not None and activity.doing is Doing.SAVING and activity.error:
        since_ms, why = since_ms or facts.clock_ms - activity.for_ms, activity.error
    if since_ms is not None and not (facts.record.snapshot and not facts.record.snapshot.committed):
        yield Finding(
            FindingKind.SNAPSHOTS_FAIL,
            facts.record.job,
            f"No snapshot has succeeded for {span(facts.clock_ms - since_ms)}: "
            f"{why.rstrip('.')}. Epochs continue, but their output is not visible without a "
            "snapshot.",
            "See dagster-jet store status: a member that is away or full fails snapshots.",
            since_ms,
        )


def _input(facts: JobFacts) -> Iterator[Finding]:
    for name, source in facts.sources.items():
        if source.unavailable_since_ms is not None:
            yield Finding(
                FindingKind.SOURCE_UNAVAILABLE,
                name,
                f"The source {name} has not been readable for "
                f"{span(facts.clock_ms - source.unavailable_since_ms)}: "
                f"{(source.unavailable or '').rstrip('.')}.",
                "Bring it back: the job polls it again by itself, and meanwhile reads its other "
                "sources.",
                source.unavailable_since_ms,
            )
    report = facts.report
    if report is None or not report.sources:
        return
    quiet_since = max([report.started_ms, *report.last_rows_ms.values()])
    waits = any(any(source.lag.values()) for source in report.sources.values())
    away = any(source.unavailable_since_ms for source in report.sources.values())
    if waits or away or facts.clock_ms - quiet_since < QUIET_AFTER_MS:
        return
    names = ", ".join(report.sources)
    read = sum(source.rows_read for source in report.sources.values())
    ever = f"{read:,} rows were read before" if read else "no row was ever read"
    yield Finding(
        FindingKind.NO_INPUT,
        names,
        f"There is no input: {names} had no new rows for {span(facts.clock_ms - quiet_since)}; "
        f"{ever}.",
        "Check that new data is written there, and that the source names the right folder, topic "
        "or table.",
        quiet_since,
    )


# --- rows and watermarks ------------------------------------------------------------------------


def _lost_on_the_way(facts: JobFacts) -> Iterator[Finding]:
    before = facts.earlier.counters if facts.earlier is not None else {}
    for name, stage in facts.stages.items():
        earlier = before.get(name, Counters())
        rows = stage.rows_in - earlier.rows_in
        late, rejected = stage.late - earlier.late, stage.rejected - earlier.rejected
        if rows > 0 and late / rows >= MANY:
            yield Finding(
                FindingKind.ROWS_LATE,
                name,
                f"{late:,} of the last {rows:,} rows of {name} ({late / rows:.0%}) were late: "
                f"their event time is behind its watermark{_where(stage.watermark_ms)}.",
                "Raise allowed_lag in with_timestamps; look for rows with times in the future, "
                "which move the watermark.",
            )
        if rows > 0 and rejected / rows >= MANY:
            yield Finding(
                FindingKind.ROWS_REJECTED,
                name,
                f"{rejected:,} of the last {rows:,} rows of {name} ({rejected / rows:.0%}) went to "
                "dead letters.",
                "Look at the reasons in the dead letters' sink.",
            )
    read = sum(source.rows_read for source in facts.sources.values())
    behind = [facts.stages[n] for n in (*facts.stateful, *facts.sinks) if n in facts.stages]
    is_rejected = any(stage.rejected for stage in facts.stages.values())
    if read and behind and not any(stage.rows_in for stage in behind) and not is_rejected:
        yield Finding(
            FindingKind.NOTHING_PASSES,
            facts.record.job,
            f"{read:,} rows were read, and none has reached a stage or a sink.",
            "Look at the filters, and at the schema: a column that no input has is null.",
        )


def _waiting_for_time(facts: JobFacts) -> Iterator[Finding]:
    for name, stage in facts.stages.items():
        if not stage.rows_in or not facts.emits_by_watermark(name):
            continue
        if stage.next_due_ms is None and stage.watermark_ms is not None:
            continue  # nothing is known to wait in it
        since_ms = stage.held_back_since_ms
        if stage.held_back_by and since_ms and facts.clock_ms - since_ms >= QUIET_AFTER_MS:
            yield _held(facts, name, stage, since_ms)
        if stage.next_due_ms is not None:
            yield _open(facts, name, stage, stage.next_due_ms)


def _open(facts: JobFacts, name: str, stage: StageProgress, due_ms: int) -> Finding:
    to_go = ""
    if stage.watermark_ms is not None:
        to_go = f", {span(due_ms - stage.watermark_ms)} of event time from there"
    cure = "The next run continues from there. A run with until='completed' closes every window."
    return Finding(
        FindingKind.WINDOW_OPEN,
        name,
        f"{stage.state_rows:,} rows of state wait in {name}: its watermark "
        f"{_is_at(stage.watermark_ms)}, and the next results come when it passes "
        f"{moment(due_ms)}{to_go}.",
        "" if facts.is_live else cure,
    )


def _held(facts: JobFacts, name: str, stage: StageProgress, since_ms: int) -> Finding:
    source = facts.sources.get(stage.held_back_by or "")
    partition = stage.held_back_partition
    who = f"partition {partition} of {stage.held_back_by}" if partition else f"{stage.held_back_by}"
    waits = source is not None and any(source.lag.values())
    if source is not None and partition:
        waits = source.partition_lag.get(partition, 0) > 0
    why = "its waiting rows are not read yet" if waits else "it had no new rows"
    return Finding(
        FindingKind.WATERMARK_HELD,
        name,
        f"The watermark of {name} {_is_at(stage.watermark_ms)}; {who} has held it back for "
        f"{span(facts.clock_ms - since_ms)}: {why}.",
        "If it may have no rows for a long time, set idle_timeout in its with_timestamps (its "
        "watermark is then ignored), or max_watermark_retention of the job.",
        since_ms,
    )


def _is_at(watermark_ms: int | None) -> str:
    return "is not known yet" if watermark_ms is None else f"is at {moment(watermark_ms)}"


def _where(watermark_ms: int | None) -> str:
    return "" if watermark_ms is None else f", at {moment(watermark_ms)}"


# --- pace ---------------------------------------------------------------------------------------


def _pace(facts: JobFacts) -> Iterator[Finding]:
    report, newest = facts.report, facts.manifest
    if report is not None and newest is not None:
        for sink in facts.sinks:
            now, then = report.stages.get(sink), newest.counters.get(sink, Counters())
            if now is not None and now.rows_in > then.rows_in:
                yield Finding(
                    FindingKind.NOT_YET_VISIBLE,
                    sink,
                    f"{now.rows_in - then.rows_in:,} rows for {sink} are staged since the last "
                    "snapshot; they are visible once the next one is committed.",
                )
    if report is not None:
        for name, source in report.sources.items():
            if any(source.lag.values()):
                yield Finding(FindingKind.BEHIND, name, _behind(name, source, report))
    largest = facts.profile.largest if facts.profile is not None else None
    if facts.profile is not None and largest is not None:
        cure = ""
        if largest.phase is Phase.WAITING:
            cure = "Snapshots are slower than epochs: see dagster-jet profile."
        yield Finding(FindingKind.SLOW_PHASE, largest.title, facts.profile.summary, cure)


def _behind(name: str, source: SourceProgress, report: ProgressReport) -> str:
    waiting = ", ".join(f"{count(n)} {unit}" for unit, n in source.lag.items() if n)
    text = f"{waiting} wait in {name}; the job reads {count(report.rows_per_second)} rows/s"
    most = sorted(source.partition_lag.items(), key=lambda item: -item[1])[:_PARTITIONS_SHOWN]
    if shown := ", ".join(f"{partition}: {count(n)}" for partition, n in most if n):
        text += f"; most in partitions {shown}"
    return f"{text}."

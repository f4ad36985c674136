"""Why nothing comes out: each cause as the store shows it, and which is named first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dagster_jet.core.phases import Phase
from dagster_jet.execution.events import SourceProgress, StageProgress
from dagster_jet.execution.sink_committer import PendingCommit
from dagster_jet.observe.reading.explanation import Explanation
from dagster_jet.observe.reading.findings import Finding, FindingKind, find
from dagster_jet.observe.reading.job_facts import JobFacts
from dagster_jet.observe.reading.ledger import Ledger, LedgerEntry, LedgerOrigin
from dagster_jet.observe.reading.profile import profile_of
from dagster_jet.observe.writing.progress_report import ProgressReport
from dagster_jet.observe.writing.recent_timings import RecentTimings, Timing
from dagster_jet.ownership.supervision import Intent, Supervision
from dagster_jet.snapshot.manifest import Artifact, Counters, Manifest
from dagster_jet.snapshot.record import (
    Activity,
    Doing,
    ExecutionRecord,
    JobStatus,
    Lease,
    SnapshotRef,
    StopCause,
)

NOW = 1_700_000_000_000
MINUTE = 60_000
NOON = 1_699_963_200_000  # 2023-11-14 12:00:00 UTC


def lease(doing: Doing, for_ms: int = 0, error: str = "") -> Lease:
    return Lease("o", "here", 1, 0, NOW, 10_000, activity=Activity(doing, for_ms, error))


def ref(snapshot_id: int, ago_ms: int, *, committed: bool = True) -> SnapshotRef:
    return SnapshotRef(snapshot_id, snapshot_id, 1, "m", 0, NOW - ago_ms, 100, committed)


def record(status: JobStatus = JobStatus.RUNNING, **fields: Any) -> ExecutionRecord:
    if status.is_live:
        fields.setdefault("lease", lease(Doing.IDLE))
    fields.setdefault("snapshots", (ref(9, MINUTE * 5),))
    return ExecutionRecord("shop", 4, status, **fields)


def manifest(counters: Mapping[str, Counters], kind: str = "aggregate") -> Manifest:
    return Manifest(
        job="shop", snapshot_id=9, epoch_id=9, execution_id=4, timeline=1, plan_fingerprint="",
        partition_count=271, sources={"orders": {}, "prices": {}}, watermarks={},
        shards={"hourly": ()}, artifacts=(), counters=dict(counters),
        plan={"hourly": {"kind": kind}}, sinks={"out": {"kind": "files"}},
    )  # fmt: skip


def source(rows: int = 100, **fields: Any) -> SourceProgress:
    return SourceProgress(rows, {}, fields.pop("lag", {}), **fields)


def report(**fields: Any) -> ProgressReport:
    fields.setdefault("sources", {"orders": source(), "prices": source()})
    fields.setdefault("last_rows_ms", {"orders": NOW - 1_000})
    return ProgressReport(NOW - 30 * MINUTE, written_at_ms=NOW - 2_000, **fields)


HELD = StageProgress(
    100, 0, watermark_ms=NOON, state_rows=40, held_back_by="prices", held_back_partition="t-3",
    held_back_since_ms=NOW - 10 * MINUTE, next_due_ms=NOON + 20 * MINUTE,
)  # fmt: skip


def found(**facts: Any) -> list[Finding]:
    facts.setdefault("record", record())
    return list(find(JobFacts(now_ms=NOW, **facts)))


def kinds(findings: list[Finding]) -> list[FindingKind]:
    return [finding.kind for finding in findings]


# --- down ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("the_record", "supervision", "kind", "says", "cure"),
    [
        (
            record(JobStatus.FAILED, failure="orders: no such topic"),
            None,
            FindingKind.FAILED,
            "The job has FAILED: orders: no such topic.",
            "Remove the cause, then submit its pipeline",
        ),
        (
            record(JobStatus.SUSPENDED, cause=StopCause.SUSPEND, failure="suspend"),
            Supervision("shop"),
            FindingKind.SUSPENDED,
            "SUSPENDED",
            "dagster-jet job shop resume",
        ),
        (
            record(JobStatus.NOT_RUNNING, cause=StopCause.SHUTDOWN),
            Supervision("shop", intent=Intent.PAUSED),
            FindingKind.PAUSED,
            "a user has paused it",
            "dagster-jet job shop resume",
        ),
        (
            record(JobStatus.NOT_RUNNING, cause=StopCause.LOST, failure="process 7 is gone"),
            Supervision("shop"),
            FindingKind.DOWN,
            "The job is not running (lost): process 7 is gone.",
            "Check that its supervisor sensor is on",
        ),
        (
            record(JobStatus.NOT_RUNNING, cause=StopCause.SHUTDOWN),
            Supervision("shop", intent=Intent.DRAINED),
            FindingKind.DOWN,
            "Its runs end when they have read the available input.",
            "Wait for its schedule",
        ),
        (
            record(JobStatus.SUSPENDED, cause=StopCause.SUSPEND),
            Supervision("shop", resumed_execution=4),
            FindingKind.DOWN,
            "not running",
            "supervisor sensor",
        ),
        (record(JobStatus.COMPLETED), None, FindingKind.COMPLETED, "reads nothing more", "name"),
    ],
)
def test_a_job_that_is_down_says_so_first_and_how_it_is_started(
    the_record: ExecutionRecord,
    supervision: Supervision | None,
    kind: FindingKind,
    says: str,
    cure: str,
) -> None:
    findings = found(
        record=the_record,
        supervision=supervision,
        manifest=manifest({"orders": Counters(100), "hourly": Counters(100, late=90)}),
    )
    assert kinds(findings) == [kind, FindingKind.ROWS_LATE]
    assert says in findings[0].text and cure in findings[0].cure


def test_decided_output_of_a_dead_job_waits_for_the_next_start() -> None:
    behind = LedgerEntry("out", 8, 9, LedgerOrigin.MARKERS)
    findings = found(
        record=record(JobStatus.NOT_RUNNING, snapshots=(ref(9, MINUTE, committed=False),)),
        ledger=Ledger({"out": behind, "raw": LedgerEntry("raw", 9, 9, LedgerOrigin.MARKERS)}),
    )
    assert [(f.kind, f.subject) for f in findings][1:] == [(FindingKind.COMMIT_PENDING, "out")]
    assert findings[1].cure == "The next start commits it."


def test_a_job_that_is_down_has_rows_that_are_held_back() -> None:
    staged = tuple(Artifact(sink, 9, f"{sink}-9", "", 1_200, 1, 0) for sink in ("out", "plain"))
    newest = replace(manifest({}), held=("out",), artifacts=staged)
    findings = found(record=record(JobStatus.FAILED, failure="boom"), manifest=newest)
    assert kinds(findings)[1:] == [FindingKind.COMMIT_PENDING]
    assert findings[1].text.startswith("1,200 rows of out are decided and held back")
    assert findings[1].cure == "The next start commits them."
    assert FindingKind.COMMIT_PENDING not in kinds(found(manifest=newest))


# --- at work ------------------------------------------------------------------------------------


def test_rows_that_come_out_are_said_before_what_else_there_is() -> None:
    newest = {"orders": Counters(100), "hourly": Counters(100), "out": Counters(70)}
    findings = found(
        record=record(snapshots=(ref(9, 3_000), ref(5, 63_000))),
        manifest=manifest(newest),
        earlier=manifest({"out": Counters(20)}),
        report=report(sources={"orders": source(lag={"rows": 5_000})}),
    )
    assert kinds(findings) == [FindingKind.FLOWING, FindingKind.BEHIND]
    assert "out got 50 rows in the last 1 min 3 s" in findings[0].text


def test_rows_that_are_held_back_are_said_to_wait() -> None:
    newest = replace(manifest({"out": Counters(70)}), held=("out",))
    first, *_ = found(record=record(snapshots=(ref(9, 3_000),)), manifest=newest)
    assert first.text.endswith("It holds rows back until they are enough for a file.")


def test_an_old_success_is_no_sign_that_rows_come_out() -> None:
    findings = found(
        record=record(snapshots=(ref(9, 61_000), ref(5, 99_000))),
        manifest=manifest({"out": Counters(70)}),
        earlier=manifest({"out": Counters(20)}),
    )
    assert FindingKind.FLOWING not in kinds(findings)


def test_a_sink_that_does_not_answer() -> None:
    commit = PendingCommit(NOW - 4 * MINUTE, "connection refused")
    findings = found(
        record=record(
            snapshots=(ref(9, 4 * MINUTE, committed=False),),
            lease=lease(Doing.COMMITTING, 4 * MINUTE, "other: x"),
        ),
        report=report(committing={"out": commit}, failing_since_ms=NOW, last_failure="out: y"),
    )
    assert kinds(findings) == [FindingKind.COMMIT_PENDING]
    assert findings[0].subject == "out" and findings[0].since_ms == NOW - 4 * MINUTE
    assert "pending for 4 min: connection refused." in findings[0].text


def test_a_commit_of_a_moment_ago_explains_nothing() -> None:
    assert found(record=record(snapshots=(ref(9, 500, committed=False),))) == []


def test_snapshots_that_fail() -> None:
    findings = found(
        report=report(failing_since_ms=NOW - 3 * MINUTE, last_failure="member b: disk full.")
    )
    assert kinds(findings) == [FindingKind.SNAPSHOTS_FAIL]
    assert "for 3 min: member b: disk full. Epochs continue" in findings[0].text
    assert findings[0].since_ms == NOW - 3 * MINUTE


def test_an_epoch_that_does_not_end() -> None:
    slow = record(lease=lease(Doing.EPOCH, 59_000))
    assert found(record=slow) == []
    findings = found(record=record(lease=lease(Doing.EPOCH, 20 * MINUTE)))
    assert kinds(findings) == [FindingKind.STUCK]
    assert "running an epoch for 20 min" in findings[0].text
    assert findings[0].since_ms == NOW - 20 * MINUTE


def test_a_start_names_what_keeps_it() -> None:
    starting = record(
        JobStatus.STARTING, lease=lease(Doing.STARTING, 90_000, "orders: broker away")
    )
    (finding,) = found(record=starting)
    assert finding.kind is FindingKind.STARTING
    assert "for 1 min 30 s" in finding.text and "orders: broker away" in finding.text


def test_a_source_that_is_away_is_not_called_quiet() -> None:
    away = source(unavailable_since_ms=NOW - 2 * MINUTE, unavailable="broker away.")
    findings = found(report=report(sources={"orders": away}, last_rows_ms={}))
    assert kinds(findings) == [FindingKind.SOURCE_UNAVAILABLE]
    assert "for 2 min: broker away." in findings[0].text


def test_no_input_at_all() -> None:
    (finding,) = found(report=report(sources={"orders": source(0)}, last_rows_ms={}))
    assert finding.kind is FindingKind.NO_INPUT
    assert finding.since_ms == NOW - 30 * MINUTE
    assert "no row was ever read" in finding.text


def test_what_waits_or_came_just_now_is_input() -> None:
    waiting = report(sources={"orders": source(lag={"files": 2})}, last_rows_ms={})
    assert FindingKind.NO_INPUT not in kinds(found(report=waiting))
    assert found(report=report(last_rows_ms={"orders": NOW - 9_000})) == []


# --- on the way ---------------------------------------------------------------------------------


def test_rows_that_are_late_by_now_though_most_were_not() -> None:
    stages = {"hourly": StageProgress(1_100, 5, late=80)}
    findings = found(
        report=report(stages=stages),
        manifest=manifest({}),
        earlier=manifest({"hourly": Counters(1_000, late=0)}),
    )
    assert kinds(findings) == [FindingKind.ROWS_LATE]
    assert "80 of the last 100 rows of hourly (80%)" in findings[0].text
    few = {"hourly": StageProgress(1_100, 5, late=49)}
    older = manifest({"hourly": Counters(1_000)})
    assert found(report=report(stages=few), earlier=older) == []


def test_dead_letters_eat_everything() -> None:
    findings = found(report=report(stages={"orders": StageProgress(100, 0, rejected=100)}))
    assert kinds(findings) == [FindingKind.ROWS_REJECTED]


def test_a_filter_that_lets_nothing_pass() -> None:
    stages = {"hourly": StageProgress(0, 0), "out": StageProgress(0, 0)}
    findings = found(report=report(stages=stages), manifest=manifest({}))
    assert kinds(findings) == [FindingKind.NOTHING_PASSES]
    assert "200 rows were read" in findings[0].text


# --- time ---------------------------------------------------------------------------------------


def test_who_holds_the_watermark_since_when_and_what_it_has_to_pass() -> None:
    findings = found(report=report(stages={"hourly": HELD}), manifest=manifest({}))
    assert kinds(findings) == [FindingKind.WATERMARK_HELD, FindingKind.WINDOW_OPEN]
    held, window = findings
    assert held.subject == "hourly" and held.since_ms == NOW - 10 * MINUTE
    assert "is at 2023-11-14 12:00:00; partition t-3 of prices has held it back for 10 min" in (
        held.text
    )
    assert "it had no new rows" in held.text and "idle_timeout" in held.cure
    assert "when it passes 2023-11-14 12:20:00, 20 min of event time from there" in window.text


def test_a_partition_with_rows_to_read_is_slow_and_not_silent() -> None:
    prices = source(lag={"rows": 7}, partition_lag={"t-3": 7, "t-1": 0})
    findings = found(
        report=report(sources={"prices": prices}, stages={"hourly": HELD}), manifest=manifest({})
    )
    assert "its waiting rows are not read yet" in findings[0].text
    assert findings[-1].kind is FindingKind.BEHIND
    assert "most in partitions t-3: 7." in findings[-1].text


def test_a_watermark_that_was_never_there() -> None:
    stage = replace(HELD, watermark_ms=None, held_back_partition=None)
    findings = found(report=report(stages={"hourly": stage}), manifest=manifest({}))
    assert "watermark of hourly is not known yet; prices has held it back" in findings[0].text


@pytest.mark.parametrize(
    ("stage", "kind"),
    [
        (replace(HELD, held_back_since_ms=NOW - 9_000, next_due_ms=None), "aggregate"),
        (replace(HELD, next_due_ms=None), "aggregate"),  # nothing waits
        (HELD, "deduplicate"),  # its results do not wait: what is due there expires
    ],
)
def test_a_stage_that_does_not_wait_for_its_watermark(stage: StageProgress, kind: str) -> None:
    assert found(report=report(stages={"hourly": stage}), manifest=manifest({}, kind)) == []


def test_without_a_report_the_newest_snapshot_says_who_held_the_watermark() -> None:
    held = {"source": "prices", "partition": None, "since_ms": NOW - MINUTE}
    older = replace(
        manifest({"hourly": Counters(100), "orders": Counters(100)}),
        watermarks={"reached_ms": {"hourly": None}, "held_back_by": {"hourly": held}},
    )
    assert kinds(found(manifest=older)) == [FindingKind.WATERMARK_HELD]


# --- pace ---------------------------------------------------------------------------------------


def test_staged_rows_wait_for_the_next_snapshot() -> None:
    findings = found(
        report=report(stages={"out": StageProgress(120, 120)}),
        manifest=manifest({"out": Counters(100), "orders": Counters(1)}),
    )
    assert kinds(findings) == [FindingKind.NOT_YET_VISIBLE]
    assert findings[0].text.startswith("20 rows for out are staged")


def test_where_the_time_of_epochs_goes() -> None:
    timings = RecentTimings()
    for number in (1, 2):
        timings.add_epoch(
            Timing(number, 10, {(Phase.BUILDING, ""): 75.0, (Phase.PLANNING, ""): 25.0})
        )
    (finding,) = found(profile=profile_of("shop", 4, timings, NOW))
    assert finding.kind is FindingKind.SLOW_PHASE
    assert finding.subject == "building frames on the driver" and "75% of the time" in finding.text


# --- as a whole ---------------------------------------------------------------------------------


def test_every_finding_has_a_place_in_the_order_and_sentences() -> None:
    findings = found(report=report(stages={"hourly": HELD}), manifest=manifest({}))
    for finding in findings:
        assert finding.text.endswith(".") and finding.subject
    explanation = Explanation("shop", JobStatus.RUNNING, tuple(findings), {}, {}, None)
    assert explanation.text.splitlines()[0].startswith("1. The watermark of hourly")
    assert [f["kind"] for f in explanation.to_json()["findings"]] == [
        "watermark held",
        "window open",
    ]

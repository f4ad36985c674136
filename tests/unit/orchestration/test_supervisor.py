"""The supervisor's decisions, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_jet.orchestration.supervisor import (
    RestartPolicy,
    RunHint,
    Situation,
    Verdict,
    decide,
)
from dagster_jet.ownership.supervision import Intent, Supervision
from dagster_jet.snapshot.record import (
    Activity,
    Doing,
    ExecutionRecord,
    JobStatus,
    Lease,
    SnapshotRef,
    StopCause,
)

NOW = 5_000
"""Time for which the newest request has been seen."""
TTL = 10_000
POLICY = RestartPolicy(
    start_timeout_ms=180_000,
    lost_request_ms=75_000,
    backoff_initial_ms=10_000,
    backoff_max_ms=60_000,
    give_up_after=4,
)
LEASE = Lease("o", "here", 42, 7, renewed_at_ms=0, ttl_ms=TTL, run_id="abc")


def snapshot(number: int) -> SnapshotRef:
    return SnapshotRef(number, number, 1, f"manifest/{number}", 0, 0, 0, committed=True)


RUNNING = ExecutionRecord(
    "j", execution_id=3, status=JobStatus.RUNNING, lease=LEASE, snapshots=(snapshot(5),)
)
DOWN = replace(RUNNING, status=JobStatus.NOT_RUNNING, lease=None)
UNDONE = replace(snapshot(9), committed=False)
FAILED = replace(DOWN, status=JobStatus.FAILED, failure="disk full")
ASKED = Supervision(
    "j",
    generation=2,
    run_key="j:2",
    attempts=1,
    execution_id_seen=2,
    snapshot_id_seen=4,
)
PAUSED = replace(ASKED, intent=Intent.PAUSED)
UNTAKEN = replace(ASKED, execution_id_seen=3)
"""The request that no execution has answered yet."""
STUCK = replace(ASKED, snapshot_id_seen=5)
"""The execution that answered has brought no new snapshot."""

YEAR_MS = 365 * 86_400_000


def doing(what: Doing, for_ms: int, error: str = "") -> ExecutionRecord:
    lease = replace(LEASE, activity=Activity(what, for_ms, error))
    return replace(RUNNING, lease=lease)


CASES = {
    "never ran, never asked": (Situation(None, None, NOW), Verdict.START, "never run"),
    "only a pause was ever written": (
        Situation(None, Supervision("j", intent=Intent.PAUSED), NOW),
        Verdict.WAIT,
        "paused",
    ),
    "a user resumed a job that never ran": (
        Situation(None, Supervision("j"), NOW),
        Verdict.START,
        "never run",
    ),
    "alive, and here": (
        Situation(RUNNING, ASKED, NOW, 100, owner_alive=True),
        Verdict.ADOPT,
        "here, process 42, run abc",
    ),
    "alive, started by hand": (
        Situation(RUNNING, None, NOW, 100, owner_alive=None),
        Verdict.ADOPT,
        "execution 3 is RUNNING",
    ),
    "alive elsewhere, although Dagster says the run has ended": (
        Situation(RUNNING, ASKED, NOW, 9_000, None, RunHint.ENDED),
        Verdict.ADOPT,
        "not renewed for 9 s of 10 s",
    ),
    "draining after a cancel": (
        Situation(
            replace(RUNNING, status=JobStatus.COMPLETING),
            PAUSED,
            NOW,
            100,
            True,
        ),
        Verdict.ADOPT,
        "COMPLETING",
    ),
    "process gone, lease still young": (
        Situation(RUNNING, ASKED, NOW, 0, owner_alive=False),
        Verdict.RESTART,
        "process 42 is gone",
    ),
    "lease stood still elsewhere": (
        Situation(RUNNING, ASKED, NOW, TTL, None, RunHint.STARTED),
        Verdict.RESTART,
        "presumed dead",
    ),
    "process stopped (SIGSTOP): exists, but does not renew": (
        Situation(RUNNING, ASKED, NOW, TTL, owner_alive=True),
        Verdict.RESTART,
        "presumed dead",
    ),
    "process gone, started by hand": (
        Situation(RUNNING, None, NOW, 0, owner_alive=False),
        Verdict.RESTART,
        "process 42 is gone",
    ),
    "evicted: drained, nobody asked for it": (
        Situation(DOWN, ASKED, NOW, requested_run=RunHint.ENDED),
        Verdict.RESTART,
        "NOT_RUNNING",
    ),
    "process gone, a standby is there": (
        Situation(RUNNING, ASKED, NOW, 500, owner_alive=False, standby="s1"),
        Verdict.WAIT,
        "process 42 is gone; run s1, which stands by, takes over",
    ),
    "shut down, a standby is there": (
        Situation(DOWN, ASKED, NOW, 19_999, standby="s1"),
        Verdict.WAIT,
        "run s1, which stands by, takes over",
    ),
    "the standby did not take over in time": (
        Situation(DOWN, ASKED, NOW, 20_000, standby="s1"),
        Verdict.RESTART,
        "NOT_RUNNING",
    ),
    "it did not do so elsewhere": (
        Situation(RUNNING, ASKED, NOW, TTL + 20_000, standby="s1"),
        Verdict.RESTART,
        "presumed dead",
    ),
    "a standby ends with a job that gave up": (
        Situation(replace(DOWN, cause=StopCause.GAVE_UP), ASKED, NOW, standby="s1"),
        Verdict.RESTART,
        "NOT_RUNNING",
    ),
    "and with one that failed": (
        Situation(FAILED, ASKED, NOW, standby="s1"),
        Verdict.RESTART,
        "disk full",
    ),
    "completed": (
        Situation(replace(DOWN, status=JobStatus.COMPLETED), ASKED, NOW),
        Verdict.DONE,
        "COMPLETED",
    ),
    "completed wins over paused": (
        Situation(replace(DOWN, status=JobStatus.COMPLETED), PAUSED, NOW),
        Verdict.DONE,
        "COMPLETED",
    ),
    "cancelled on purpose": (
        Situation(replace(FAILED, cause=StopCause.CANCEL, failure="any words"), ASKED, NOW),
        Verdict.DONE,
        "cancelled",
    ),
    "cancelled, and what it has decided is not committed": (
        Situation(replace(FAILED, cause=StopCause.CANCEL, snapshots=(UNDONE,)), ASKED, NOW),
        Verdict.WAIT,
        "epoch 9, which is decided, is not known to be in all sinks",
    ),
    "failed with words that only look like a cancel": (
        Situation(replace(FAILED, failure="cancelled by the peer: connection reset"), None, NOW),
        Verdict.RESTART,
        "connection reset",
    ),
    "paused by a user's cancel": (
        Situation(DOWN, PAUSED, NOW),
        Verdict.WAIT,
        "paused",
    ),
    "suspended": (
        Situation(replace(FAILED, status=JobStatus.SUSPENDED), ASKED, NOW),
        Verdict.WAIT,
        "SUSPENDED (disk full)",
    ),
    "asked, queued": (
        Situation(DOWN, UNTAKEN, NOW, requested_run=RunHint.QUEUED),
        Verdict.WAIT,
        "run j:2 is waiting in Dagster's run queue",
    ),
    "asked, started, still loading Spark": (
        Situation(DOWN, UNTAKEN, NOW, requested_run=RunHint.STARTED),
        Verdict.WAIT,
        "started",
    ),
    "asked, the dead lease is still in the record": (
        Situation(RUNNING, UNTAKEN, NOW, TTL, False, RunHint.STARTING),
        Verdict.WAIT,
        "j:2 was requested 5 s ago",
    ),
    "asked, but the tick died: not yet": (
        Situation(DOWN, UNTAKEN, 74_999),
        Verdict.WAIT,
        "not known to Dagster",
    ),
    "asked, but the tick died: long enough": (
        Situation(DOWN, replace(UNTAKEN, snapshot_id_seen=5), 75_000),
        Verdict.RESTART,
        "NOT_RUNNING",
    ),
    "asked, the queue is full: another request would wait behind it": (
        Situation(DOWN, UNTAKEN, 10_000_000, requested_run=RunHint.QUEUED),
        Verdict.WAIT,
        "if it stays there, see 'dagster-jet doctor'",
    ),
    "asked, starts for ever": (
        Situation(DOWN, UNTAKEN, 180_000, requested_run=RunHint.STARTING),
        Verdict.RESTART,
        "NOT_RUNNING",
    ),
    "asked, the run died before it took the job": (
        Situation(DOWN, replace(STUCK, execution_id_seen=3), NOW, requested_run=RunHint.ENDED),
        Verdict.WAIT,
        "attempt 2 of 4 in 5 s",
    ),
    "first request failed before any execution": (
        Situation(
            None,
            Supervision("j", 1, run_key="j:1", attempts=1),
            10_000,
            requested_run=RunHint.ENDED,
        ),
        Verdict.START,
        "no run has taken the job up",
    ),
    "failed without progress: wait": (
        Situation(FAILED, STUCK, NOW, requested_run=RunHint.ENDED),
        Verdict.WAIT,
        "disk full; attempt 2 of 4 in 5 s",
    ),
    "failed without progress: waited": (
        Situation(FAILED, STUCK, 10_000, requested_run=RunHint.ENDED),
        Verdict.RESTART,
        "disk full",
    ),
    "failed without progress twice: wait twice as long": (
        Situation(FAILED, replace(STUCK, attempts=2), 10_000),
        Verdict.WAIT,
        "attempt 3 of 4 in 10 s",
    ),
    "failed after progress: at once": (
        Situation(FAILED, replace(ASKED, attempts=3), NOW, requested_run=RunHint.ENDED),
        Verdict.RESTART,
        "disk full",
    ),
    "failed too often": (
        Situation(FAILED, replace(STUCK, attempts=4), NOW + 10_000_000),
        Verdict.GIVE_UP,
        "4 runs in a row without progress",
    ),
    "evicted too often, but it had nothing to do and was well": (
        Situation(replace(DOWN, healthy_ms=90_000), replace(STUCK, attempts=4), NOW),
        Verdict.RESTART,
        "NOT_RUNNING",
    ),
    "well for a moment only": (
        Situation(
            replace(DOWN, healthy_ms=90_000),
            replace(STUCK, attempts=4, healthy_ms_seen=89_000),
            NOW + 10_000_000,
        ),
        Verdict.GIVE_UP,
        "without progress",
    ),
    "asked by a clock that was ahead a year": (
        Situation(FAILED, replace(STUCK, requested_at_ms=NOW + YEAR_MS), 10_000),
        Verdict.RESTART,
        "disk full",
    ),
    "the lease of an owner whose clock was ahead a year": (
        Situation(
            replace(RUNNING, lease=replace(LEASE, renewed_at_ms=YEAR_MS)), ASKED, NOW, TTL, None
        ),
        Verdict.RESTART,
        "presumed dead",
    ),
    "a person has launched it, it has no lease yet": (
        Situation(DOWN, STUCK, NOW + 10_000_000, launched={"xyz": 7_000}),
        Verdict.WAIT,
        "run xyz was launched and may take the job; seen for 7 s",
    ),
    "a run of which Dagster says for ever that it is started": (
        Situation(DOWN, STUCK, NOW + 10_000_000, launched={"xyz": 180_000}),
        Verdict.RESTART,
        "NOT_RUNNING",
    ),
    "lives, and commits in vain": (
        Situation(doing(Doing.COMMITTING, 300_000, "out (/o): disk full"), ASKED, NOW, 100, True),
        Verdict.STUCK,
        "process 42, run abc: committing a snapshot for 300 s: out (/o): disk full",
    ),
    "lives, and commits in vain for a moment": (
        Situation(doing(Doing.COMMITTING, 299_999), ASKED, NOW, 100, True),
        Verdict.ADOPT,
        "RUNNING",
    ),
    "lives, without input for a year": (
        Situation(doing(Doing.IDLE, YEAR_MS), ASKED, NOW, 100, True),
        Verdict.ADOPT,
        "RUNNING",
    ),
    "was stuck, and is dead": (
        Situation(doing(Doing.EPOCH, YEAR_MS), ASKED, NOW, 100, owner_alive=False),
        Verdict.RESTART,
        "process 42 is gone",
    ),
    "failed too often, but then came progress": (
        Situation(FAILED, replace(ASKED, attempts=4), NOW),
        Verdict.RESTART,
        "disk full",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_decision(case: str) -> None:
    situation, verdict, words = CASES[case]
    decision = decide(situation, POLICY)
    assert decision.verdict is verdict, decision
    assert words in decision.reason


def test_attempts_grow_without_progress_and_begin_again_with_it() -> None:
    late = NOW + 10_000_000
    assert decide(Situation(FAILED, replace(STUCK, attempts=3), late), POLICY).attempts == 4
    assert decide(Situation(FAILED, replace(ASKED, attempts=3), late), POLICY).attempts == 1


def test_progress_of_a_job_that_was_reset_counts_from_its_begin() -> None:
    """Failed before: its first snapshots were older ones than the request had seen."""
    late, asked = NOW + 10_000_000, replace(ASKED, attempts=3, snapshot_id_seen=500)
    for record, attempts in (
        (replace(FAILED, execution_id=9, first_execution_id=9), 1),
        (replace(FAILED, execution_id=9, first_execution_id=9, snapshots=()), 4),
        (replace(FAILED, execution_id=9, first_execution_id=1), 4),
    ):
        assert decide(Situation(record, asked, late), POLICY).attempts == attempts
    seen = replace(asked, healthy_ms_seen=10 * POLICY.healthy_ms)
    well = replace(FAILED, first_execution_id=3, snapshots=(), healthy_ms=POLICY.healthy_ms)
    assert decide(Situation(well, seen, late), POLICY).attempts == 1


def test_backoff_doubles_up_to_its_maximum() -> None:
    assert [POLICY.backoff_ms(n) for n in range(6)] == [0, 10_000, 20_000, 40_000, 60_000, 60_000]
    assert POLICY.backoff_ms(10_000) == 60_000

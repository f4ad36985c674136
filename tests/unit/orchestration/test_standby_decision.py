"""The supervisor requests a standby by this table; no store, no Dagster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_jet.orchestration.standby_decision import (
    StandbyRun,
    StandbySituation,
    decide_standby,
)
from dagster_jet.orchestration.supervisor import RestartPolicy, RunHint
from dagster_jet.ownership.supervision import Intent, Supervision
from dagster_jet.snapshot.record import (
    Activity,
    Doing,
    ExecutionRecord,
    JobStatus,
    Lease,
    SnapshotRef,
)

POLICY = RestartPolicy(backoff_initial_ms=10_000, backoff_max_ms=60_000)
LEASE = Lease("o", "here", 42, 7, renewed_at_ms=0, ttl_ms=10_000, run_id="owner")
RUNNING = ExecutionRecord(
    "j",
    execution_id=3,
    status=JobStatus.RUNNING,
    lease=LEASE,
    snapshots=(SnapshotRef(5, 5, 3, "manifest/5", 0, 0, 0),),
)
NEVER = Supervision("j")
ASKED = Supervision("j", standby=1, standby_attempts=1, standby_definition="new")
WAITING = StandbyRun("s1", waits=True, definition="new", seen_ms=10**9)
OLDER = replace(WAITING, run_id="s0", definition="old")
FIRST = StandbySituation(RUNNING, NEVER, definition="new")
KNOWN = StandbySituation(
    RUNNING, ASKED, (WAITING,), RunHint.STARTED, "s1", waited_ms=10**9, definition="new"
)
ENDED = replace(KNOWN, runs=(), requested_run=RunHint.ENDED, lasted_ms=5_000)
OUTDATED = replace(
    KNOWN, runs=(OLDER,), requested_id="s0", supervision=replace(ASKED, standby_definition="old")
)
IDLE = replace(LEASE, activity=Activity(Doing.IDLE, 5_000))

REQUESTED = {
    "there never was one": (FIRST, 1, ()),
    "an idle job decides no snapshots": (
        replace(FIRST, record=replace(RUNNING, snapshots=(), lease=IDLE)),
        1,
        (),
    ),
    "the last one has taken the job over": (
        replace(KNOWN, runs=(), record=replace(RUNNING, lease=replace(LEASE, run_id="s1"))),
        1,
        (),
    ),
    "the last one lasted for long": (replace(ENDED, lasted_ms=10**7), 1, ()),
    "the last one soon ended, long ago": (ENDED, 2, ()),
    "its process is gone, and Dagster does not know": (
        replace(KNOWN, runs=(replace(WAITING, is_gone=True),)),
        2,
        (),
    ),
    "its request never reached Dagster": (
        replace(KNOWN, runs=(), requested_run=RunHint.ABSENT, requested_id=None),
        2,
        (),
    ),
    "it never waited": (replace(KNOWN, runs=(replace(WAITING, waits=False),)), 2, ()),
    "it has an older definition than the one that is loaded": (OUTDATED, 1, ("s0",)),
    "so has one that a person launched": (
        replace(FIRST, runs=(OLDER, replace(OLDER, run_id="s9"))),
        1,
        ("s0", "s9"),
    ),
}
NOT_REQUESTED = {
    "it waits": (KNOWN, "run s1 stands by"),
    "a person launched it": (replace(FIRST, runs=(WAITING,)), "run s1 stands by"),
    "its definition is not known": (
        replace(KNOWN, runs=(replace(WAITING, definition=""),)),
        "run s1 stands by",
    ),
    "the loaded definition is not known": (replace(OUTDATED, definition=""), "run s0 stands by"),
    "it was requested for this definition, and its process loads another one": (
        replace(OUTDATED, supervision=ASKED),
        "run s0 stands by",
    ),
    "the execution has decided nothing, and would die again": (
        replace(FIRST, record=replace(RUNNING, execution_id=4)),
        "once the execution has decided a snapshot",
    ),
    "the execution is starting": (
        replace(FIRST, record=replace(RUNNING, status=JobStatus.STARTING)),
        "once the execution has decided a snapshot",
    ),
    "the execution ends": (
        replace(FIRST, record=replace(RUNNING, status=JobStatus.COMPLETING)),
        "",
    ),
    "the job is paused": (replace(FIRST, supervision=Supervision("j", intent=Intent.PAUSED)), ""),
    "the job only drains": (
        replace(FIRST, supervision=Supervision("j", intent=Intent.DRAINED)),
        "",
    ),
    "several soon ended, the last one just now": (
        replace(ENDED, waited_ms=5_000, supervision=replace(ASKED, standby_attempts=2)),
        "2 in a row soon ended, the next one follows in 15 s",
    ),
}
COMING = {
    "it waits in the queue": (
        replace(KNOWN, runs=(), requested_run=RunHint.QUEUED, waited_ms=5_000),
        "j:standby:1, a standby, is waiting in Dagster's run queue",
    ),
    "Dagster does not know the request yet": (
        replace(KNOWN, runs=(), requested_run=RunHint.ABSENT, waited_ms=1_000),
        "run j:standby:1 was requested to stand by",
    ),
    "it warms up": (
        replace(KNOWN, runs=(StandbyRun("s1", seen_ms=9_000),)),
        "run s1 is about to stand by",
    ),
}


@pytest.mark.parametrize("case", REQUESTED)
def test_it_is_requested(case: str) -> None:
    situation, attempts, replaces = REQUESTED[case]
    decision = decide_standby(situation, POLICY)
    assert (decision.attempts, decision.replaces) == (attempts, replaces), decision.text
    assert "a standby is requested" in decision.text and decision.is_coming
    assert ("place of" in decision.text) is bool(replaces)


@pytest.mark.parametrize("case", NOT_REQUESTED)
def test_it_is_not_requested(case: str) -> None:
    situation, text = NOT_REQUESTED[case]
    decision = decide_standby(situation, POLICY)
    assert decision.attempts is None and not decision.is_coming
    assert text in decision.text and bool(text) is bool(decision.text)


@pytest.mark.parametrize("case", COMING)
def test_it_is_waited_for(case: str) -> None:
    situation, text = COMING[case]
    decision = decide_standby(situation, POLICY)
    assert decision.attempts is None and decision.is_coming
    assert text in decision.text


def test_the_end_of_a_run_is_not_put_off_by_a_full_queue() -> None:
    queued = replace(KNOWN, runs=(), requested_run=RunHint.QUEUED)
    late = replace(queued, waited_ms=POLICY.start_timeout_ms)
    assert not decide_standby(late, POLICY).is_coming
    assert decide_standby(late, POLICY).attempts is None, "it is not requested twice"

"""The coordinator's main flows as transcripts: what happened, and what it then wants done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.snapshot.coordinator import Coordinator
from dagster_jet.snapshot.epoch_cycle import CycleState
from dagster_jet.snapshot.job_state import SNAPSHOT_ID_BLOCK, CoordinatorConfig
from dagster_jet.snapshot.manifest import (
    Ack,
    Artifact,
    ChunkSet,
    Manifest,
    Run,
    Saving,
    ShardState,
    checksum,
)
from dagster_jet.snapshot.pending_snapshot import PendingState
from dagster_jet.snapshot.protocol import (
    AbortOrphans,
    CancelRequested,
    Claim,
    Claimed,
    CollectGarbage,
    Command,
    Complete,
    Completed,
    Decide,
    Decided,
    EpochAcked,
    EpochFailed,
    Event,
    Failed,
    ImportSnapshot,
    LoadManifest,
    ManifestLoaded,
    OrphansAborted,
    Publish,
    Published,
    Purpose,
    RecordAnswer,
    Restore,
    Restored,
    RunEpoch,
    SnapshotImported,
    Stop,
    StopKind,
    Tick,
    WriteOutcome,
    WriteRecord,
)
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef, StopCause

CONFIG = CoordinatorConfig(
    job="flights",
    guarantee=Guarantee.EXACTLY_ONCE,
    snapshot_interval_ms=1000,
    retained_snapshots=2,
    shards={"hourly": 1, "out": 1},
    partition_count=271,
    plan_fingerprint="v1",
)
DIGEST = 4711
WRITTEN, UNKNOWN = WriteOutcome.WRITTEN, WriteOutcome.UNKNOWN
RUN_1, RUN_2 = (Run(f"run-{epoch_id}", 1, 8) for epoch_id in (1, 2))
NEW_JOB = ExecutionRecord("flights", 1, JobStatus.STARTING)


def answer(purpose: Purpose, outcome: WriteOutcome = WRITTEN, at: int = 0) -> RecordAnswer:
    return RecordAnswer(purpose, outcome, at)


def aborted(
    at: int = 0, retained: Mapping[int, Mapping[str, frozenset[str]]] | None = None
) -> Event:
    return OrphansAborted(retained or {}, {"inbox": 0}, {}, at)


def artifact(epoch_id: int, by: int = 1) -> Artifact:
    return Artifact("out", epoch_id, f"staged/{by}-{epoch_id}", f"{by}-{epoch_id}", 1, 8, 7)


def chunks(snapshot_id: int) -> ChunkSet:
    return ChunkSet(f"hourly/{snapshot_id}", 0, 1, 1, 8)


def acked(epoch: RunEpoch, at: int = 0, error: str | None = None) -> EpochAcked:
    """Every task did its work: one row of state, one staged file."""
    run = Run(f"run-{epoch.epoch_id}", 1, 8)
    saves = epoch.snapshot_id is not None and error is None
    state = Ack(
        "hourly",
        0,
        "a0",
        rows_in=1,
        unsaved=(run,),
        chunk_set=chunks(epoch.snapshot_id or 0) if saves else None,
        snapshot_error=error,
    )
    files = (artifact(epoch.epoch_id, epoch.execution_id),)
    writer = Ack("out", 0, "a0", rows_in=1, artifacts=files)
    return EpochAcked(
        epoch.execution_id, epoch.epoch_id, (state, writer), {"inbox": epoch.epoch_id}, {}, at
    )


def decided(
    commands: list[Command],
    outcome: WriteOutcome = WRITTEN,
    at: int = 0,
    reason: str = "",
    acks: tuple[Ack, ...] | None = None,
) -> Decided:
    """The answer of the snapshots' thread, whose one command this is."""
    (decide,) = commands
    assert isinstance(decide, Decide)
    acks = decide.acks if acks is None else acks
    manifest, record = decide.manifest.with_saved(acks), decide.record
    errors = [ack.snapshot_error for ack in acks if ack.snapshot_error]
    if errors or reason:
        outcome, reason = WriteOutcome.UNAVAILABLE, reason or errors[0] or ""
    else:
        record = record.with_snapshot(manifest.ref(DIGEST, at), decide.retained_snapshots)
    return Decided(manifest, acks, record, outcome, at, reason)


def completed(snapshot_id: int, at: int = 0, by: int = 1) -> Completed:
    return Completed(by, snapshot_id, WRITTEN, at)


def saved(
    job: Coordinator, epoch: RunEpoch, at: int = 0, error: str | None = None
) -> list[Command]:
    """Ends an epoch with a snapshot that is decided at once, or discarded."""
    return tell(job, decided(tell(job, acked(epoch, at, error)), at=at))


def tick(at: int, stop: StopKind | None = None) -> Tick:
    return Tick(at, wants_epoch=True, stop=stop)


def tell(job: Coordinator, *events: Event) -> list[Command]:
    """The commands that the last of `events` caused."""
    commands: list[Command] = []
    for event in events:
        commands = job.handle(event)
    return commands


def running_job(**settings: object) -> Coordinator:
    """A new job, its starting positions pinned as snapshot 1 at 0 ms, ready for data."""
    job = Coordinator(replace(CONFIG, **settings))
    pinned = tell(job, Claimed(NEW_JOB), answer(Purpose.STARTING), aborted())
    tell(job, decided(pinned))
    assert job.cycle.state is CycleState.READY
    return job


def run_epoch(job: Coordinator, at: int, stop: StopKind | None = None) -> RunEpoch:
    (command,) = tell(job, tick(at, stop))
    assert isinstance(command, RunEpoch)
    return command


def decide(job: Coordinator, at: int, stop: StopKind | None = None) -> list[Command]:
    """Runs an epoch that ends in a snapshot, up to the decision."""
    epoch = run_epoch(job, at, stop)
    assert epoch.snapshot_id is not None
    return saved(job, epoch, at)


# --- starting ------------------------------------------------------------------------------------


def test_a_new_job_pins_its_starting_positions_before_data() -> None:
    job = Coordinator(CONFIG)
    assert job.begin() == [Claim()]

    (reserve,) = tell(job, Claimed(NEW_JOB))
    assert isinstance(reserve, WriteRecord)
    assert reserve.record.reserved_snapshot_id == SNAPSHOT_ID_BLOCK

    assert tell(job, answer(Purpose.STARTING)) == [AbortOrphans(1, ())]

    (decide,) = tell(job, aborted())
    assert isinstance(decide, Decide)
    assert (decide.manifest.snapshot_id, decide.manifest.epoch_id) == (1, 0)
    assert decide.manifest.sources == {"inbox": 0}
    assert decide.record.snapshot is None

    assert tell(job, decided([decide])) == []
    assert job.record.snapshot is not None
    assert job.record.snapshot.manifest_checksum == DIGEST
    assert job.record.snapshot.committed, "nothing to commit: phase 2 is over"
    assert job.cycle.state is CycleState.READY


def test_no_snapshot_is_attempted_under_ids_that_may_not_be_reserved() -> None:
    job = Coordinator(CONFIG)
    (stop,) = tell(job, Claimed(NEW_JOB), answer(Purpose.STARTING, UNKNOWN))
    assert isinstance(stop, Stop)
    assert stop.restart and not stop.write_status


def crashed(*, committed: bool, completed: bool = False) -> tuple[ExecutionRecord, Manifest]:
    """Execution 1 decided snapshot 5 and died; the record is already under execution 2."""
    manifest = Manifest(
        job="flights",
        snapshot_id=5,
        epoch_id=9,
        execution_id=1,
        timeline=1,
        plan_fingerprint="v1",
        partition_count=271,
        sources={"inbox": 9},
        watermarks={},
        shards={"hourly": ((chunks(5),),)},
        artifacts=(artifact(9),),
        completed=completed,
    )
    ref = SnapshotRef(5, 9, 1, manifest.name, checksum(manifest.to_bytes()), 0, 8, committed)
    record = ExecutionRecord("flights", 2, JobStatus.STARTING, snapshots=(ref,))
    return replace(record, reserved_snapshot_id=64), manifest


def test_a_restart_commits_again_before_it_rolls_back() -> None:
    record, manifest = crashed(committed=False)
    job = Coordinator(CONFIG)
    assert tell(job, Claimed(record), answer(Purpose.STARTING)) == [
        LoadManifest(record.snapshots[0])
    ]
    assert tell(job, ManifestLoaded(manifest)) == [Restore(manifest)]

    states = {"hourly": (ShardState(chain=(chunks(5),)),)}
    (complete,) = tell(job, Restored(states))
    assert isinstance(complete, Complete)
    assert (complete.manifest, complete.recovering) == (manifest, True)
    assert complete.record.snapshots == record.snapshots

    (abort,) = tell(job, completed(5, 10, by=2))
    assert job.record.snapshots[0].committed
    assert abort == AbortOrphans(2, job.record.snapshots)

    (running,) = tell(job, aborted(10))
    assert isinstance(running, WriteRecord)
    assert running.record.status is JobStatus.RUNNING
    epoch = run_epoch(job, at=1010)
    assert (epoch.execution_id, epoch.epoch_id, epoch.snapshot_id) == (2, 10, 65)


def test_what_is_noted_as_committed_is_not_committed_again() -> None:
    record, manifest = crashed(committed=True)
    job = Coordinator(CONFIG)
    (abort,) = tell(
        job, Claimed(record), answer(Purpose.STARTING), ManifestLoaded(manifest), Restored({})
    )
    assert isinstance(abort, AbortOrphans)


def test_a_completed_job_commits_what_is_left_and_ends() -> None:
    record, manifest = crashed(committed=False, completed=True)
    job = Coordinator(CONFIG)
    tell(job, Claimed(record), answer(Purpose.STARTING), ManifestLoaded(manifest), Restored({}))
    (stop,) = tell(job, completed(5, by=2), aborted())
    assert stop == Stop(JobStatus.COMPLETED, StopCause.COMPLETE, "complete", write_status=True)


# --- back to an older snapshot --------------------------------------------------------------------


def rewinding_job() -> tuple[Coordinator, Manifest]:
    """Snapshots 7 and 5 are retained, and a start is to go back to 5; its ids are reserved."""
    record, manifest = crashed(committed=True)
    newer = replace(record.snapshots[0], snapshot_id=7, manifest_name="7", committed=False)
    record = replace(record, snapshots=(newer, *record.snapshots))
    job = Coordinator(replace(CONFIG, initial_snapshot=5))
    (reserve,) = tell(job, Claimed(record))
    assert isinstance(reserve, WriteRecord) and reserve.record.snapshots == record.snapshots
    assert tell(job, answer(Purpose.STARTING)) == [LoadManifest(record.snapshots[1])]
    return job, manifest


def test_what_is_newer_is_left_once_the_older_snapshot_is_restored() -> None:
    job, manifest = rewinding_job()
    assert tell(job, ManifestLoaded(manifest)) == [Restore(manifest)]
    (rewound,) = tell(job, Restored({}))
    assert isinstance(rewound, WriteRecord) and rewound.purpose is Purpose.REWOUND
    assert [ref.snapshot_id for ref in rewound.record.snapshots] == [5]
    assert (rewound.record.timeline, rewound.record.rewound_to) == (2, 5)
    assert job.record.timeline == 1, "until it is written, nothing has happened"
    assert tell(job, answer(Purpose.REWOUND)) == [AbortOrphans(2, rewound.record.snapshots)]
    tell(job, aborted(10))
    epoch = run_epoch(job, at=1010)
    assert epoch.epoch_id == 10 and epoch.snapshot_id == 65, "ids are not used a second time"


@pytest.mark.parametrize("restored", [False, True])
def test_a_rewind_that_fails_leaves_the_record_as_it_was(restored: bool) -> None:
    job, manifest = rewinding_job()
    tell(job, *([ManifestLoaded(manifest)] if restored else []))
    (stop,) = tell(job, Failed("a chunk is missing", restartable=False))
    assert isinstance(stop, Stop) and stop.status is JobStatus.FAILED
    assert [ref.snapshot_id for ref in job.record.snapshots] == [7, 5]
    assert (job.record.timeline, job.record.rewound_to) == (1, None)


@pytest.mark.parametrize("outcome", [UNKNOWN, WriteOutcome.UNAVAILABLE])
def test_a_rewind_that_may_not_be_written_is_the_next_starts(outcome: WriteOutcome) -> None:
    job, manifest = rewinding_job()
    tell(job, ManifestLoaded(manifest), Restored({}))
    (stop,) = tell(job, answer(Purpose.REWOUND, outcome))
    assert isinstance(stop, Stop) and stop.restart and not stop.write_status


# --- beginning with an export ---------------------------------------------------------------------


def importing_job() -> tuple[Coordinator, Manifest, ExecutionRecord, SnapshotRef]:
    """Snapshot 5 is the newest, and the start is to begin with the export "kept"."""
    record, manifest = crashed(committed=False)
    job = Coordinator(replace(CONFIG, initial_snapshot="kept"))
    tell(job, Claimed(record))
    assert tell(job, answer(Purpose.STARTING)) == [ImportSnapshot("kept", 65, 2)]
    imported = replace(manifest, snapshot_id=65, execution_id=2, timeline=2, artifacts=())
    ref = replace(record.snapshots[0], snapshot_id=65, execution_id=2, committed=True)
    return job, imported, record, ref


def test_an_export_is_restored_before_the_record_names_it() -> None:
    job, imported, record, ref = importing_job()
    assert tell(job, SnapshotImported(ref, imported)) == [Restore(imported)]
    assert job.record.snapshots == record.snapshots
    (write,) = tell(job, Restored({}))
    assert isinstance(write, WriteRecord) and write.purpose is Purpose.REWOUND
    assert write.record.snapshots == (ref,)
    assert (write.record.timeline, write.record.rewound_to) == (2, "kept")
    # What the old timeline had decided is no longer ours to commit, and its orphans go.
    assert tell(job, answer(Purpose.REWOUND)) == [AbortOrphans(2, (ref,))]
    tell(job, aborted(10))
    epoch = run_epoch(job, at=1010)
    assert (epoch.epoch_id, epoch.snapshot_id) == (10, 66)


def test_it_is_brought_in_once() -> None:
    _, _, record, ref = importing_job()
    job = Coordinator(replace(CONFIG, initial_snapshot="kept"))
    begun = replace(record, snapshots=(ref,), rewound_to="kept")
    tell(job, Claimed(begun))
    assert tell(job, answer(Purpose.STARTING)) == [LoadManifest(ref)]


def test_an_import_that_fails_leaves_the_record_as_it_was() -> None:
    job, _, record, _ = importing_job()
    (stop,) = tell(job, Failed("the pipeline does not fit", restartable=False))
    assert isinstance(stop, Stop) and stop.status is JobStatus.FAILED
    assert job.record.snapshots == record.snapshots and job.record.rewound_to is None


def test_a_failure_beside_the_write_of_a_rewind_waits_for_its_answer() -> None:
    """The status written over it would bring back what was left."""
    job, imported, _, ref = importing_job()
    tell(job, SnapshotImported(ref, imported), Restored({}))
    assert tell(job, Failed("a connector's thread ended", restartable=False)) == []
    (stop,) = tell(job, answer(Purpose.REWOUND))
    assert isinstance(stop, Stop) and stop.status is JobStatus.FAILED and stop.write_status
    assert job.record.snapshots == (ref,)


def test_a_new_job_begins_with_an_export_as_well() -> None:
    _, imported, _, ref = importing_job()
    job = Coordinator(replace(CONFIG, initial_snapshot="kept"))
    tell(job, Claimed(NEW_JOB))
    assert tell(job, answer(Purpose.STARTING)) == [ImportSnapshot("kept", 1, 2)]
    tell(job, SnapshotImported(ref, imported), Restored({}), answer(Purpose.REWOUND))
    (running,) = tell(job, aborted(10))
    assert isinstance(running, WriteRecord) and running.purpose is Purpose.RUNNING
    assert running.record.timeline == 2, (
        "its starting positions are the export's: no first snapshot"
    )


# --- a snapshot before its time -------------------------------------------------------------------


def test_somebody_who_waits_for_a_snapshot_does_not_wait_for_the_interval() -> None:
    job = running_job()
    epoch = run_epoch(job, at=20)
    assert epoch.snapshot_id is None
    tell(job, acked(epoch, 30))
    assert tell(job, Tick(40, wants_epoch=False)) == []
    (wanted,) = tell(job, Tick(50, wants_epoch=False, wants_snapshot=True))
    assert isinstance(wanted, RunEpoch) and wanted.snapshot_id is not None


def test_where_everything_is_in_the_last_snapshot_no_other_one_is_taken() -> None:
    assert tell(running_job(), Tick(50, wants_epoch=False, wants_snapshot=True)) == []


def test_a_cancel_at_an_export_takes_a_terminal_snapshot_first() -> None:
    job = running_job()
    tell(job, acked(run_epoch(job, at=20), 30))
    epoch = run_epoch(job, at=40, stop=StopKind.CANCEL_AND_EXPORT)
    assert epoch.terminal and epoch.snapshot_id is not None
    tell(job, EpochFailed(epoch.execution_id, epoch.epoch_id, "an executor is gone", True))
    assert not job.job.ending.may_begin_again, "cancelled, come what may"
    (stop,) = tell(
        again := running_job(), Tick(50, wants_epoch=False, stop=StopKind.CANCEL_AND_EXPORT)
    )
    assert stop == Stop(JobStatus.FAILED, StopCause.CANCEL, "cancelled", write_status=True)
    assert again.record.snapshots, "what is exported"


# --- damage ---------------------------------------------------------------------------------------


def test_a_damaged_older_snapshot_is_dropped_and_the_job_goes_on() -> None:
    record, manifest = crashed(committed=True)
    (ref,) = record.snapshots
    older = tuple(replace(ref, snapshot_id=i, manifest_name=f"{i}") for i in (4, 3))
    job = Coordinator(replace(CONFIG, retained_snapshots=3))
    tell(job, Claimed(replace(record, snapshots=(ref, *older))), answer(Purpose.STARTING))
    tell(job, ManifestLoaded(manifest), Restored({"hourly": (ShardState(chain=(chunks(5),)),)}))
    retained = {i: {"hourly": frozenset({chunks(5).name})} for i in (5, 3)}
    (running,) = tell(job, OrphansAborted(retained, {}, {}, 10, damaged=frozenset({4})))
    assert isinstance(running, WriteRecord)
    assert [r.snapshot_id for r in running.record.snapshots] == [5, 3]
    # What it may have shared with them is not garbage when they are dropped in their turn.
    for at in (2000, 4000, 6000):
        gone = [c.chunk_sets for c in decide(job, at) if isinstance(c, CollectGarbage)]
        assert not any(chunks(5).name in names for sets in gone for names in sets.values())
        tell(job, completed(job.record.snapshots[0].snapshot_id, at, by=2))


# --- epochs --------------------------------------------------------------------------------------


def test_an_ordinary_epoch_commits_nothing_and_saves_nothing() -> None:
    job = running_job()
    epoch = run_epoch(job, at=10)
    assert epoch == RunEpoch(1, 1, snapshot_id=None, terminal=False, final=False)
    assert tell(job, acked(epoch)) == []
    assert job.shards["hourly"][0].unsaved == (Run("run-1", 1, 8),)


def test_a_snapshot_names_the_artifacts_of_all_epochs_since_the_last() -> None:
    job = running_job()
    tell(job, acked(run_epoch(job, at=10)))
    epoch = run_epoch(job, at=1000)
    assert epoch.snapshot_id == 2

    (complete,) = tell(job, decided(tell(job, acked(epoch, 1000)), at=1000))
    assert isinstance(complete, Complete) and not complete.recovering
    assert complete.manifest.artifacts == (artifact(1), artifact(2))
    assert complete.manifest.shards["hourly"] == ((chunks(2),),)
    assert complete.manifest.counters["hourly"].rows_in == 2
    assert complete.record == job.record and job.pending.state is PendingState.COMPLETING
    assert tell(job, completed(2, 1020)) == []
    assert job.pending.state is PendingState.NONE


def test_phase_2_runs_beside_one_epoch_and_the_second_waits() -> None:
    job = running_job(snapshot_interval_ms=0)
    decide(job, at=10)

    beside = run_epoch(job, at=20)
    assert beside.snapshot_id is None, "a snapshot would need a third transaction"
    tell(job, acked(beside))
    assert tell(job, tick(30)) == []
    assert tell(job, tick(30, StopKind.SUSPEND)) == []

    tell(job, completed(2, 50))
    assert run_epoch(job, at=60).snapshot_id == 3


def test_the_interval_counts_from_the_end_of_phase_2() -> None:
    job = running_job()
    decide(job, at=1000)
    tell(job, completed(2, 1500))
    tell(job, acked(run_epoch(job, at=2499)))
    assert run_epoch(job, at=2500).snapshot_id == 3


@pytest.mark.parametrize(
    ("period_ms", "took_ms", "pause_ms"),
    [(250, 20, 230), (250, 250, 0), (250, 400, 150), (250, 9_000, 1_000), (1_000, 20, 980)],
)
def test_without_an_interval_a_snapshot_follows_after_its_period(
    period_ms: int, took_ms: int, pause_ms: int
) -> None:
    """The snapshot begins at the end of its epoch, which probably takes as long as the last one."""
    epoch_ms, ended_ms = 40, 1_040 + took_ms

    def next_epoch(at: int) -> RunEpoch:
        job = running_job(snapshot_interval_ms=None, snapshot_period_ms=period_ms)
        acks = acked(run_epoch(job, at=1_000), at=1_000 + epoch_ms)
        tell(job, decided(tell(job, acks), at=1_041))
        tell(job, completed(2, ended_ms))
        return run_epoch(job, at)

    due_ms = max(ended_ms, ended_ms + pause_ms - epoch_ms)
    assert next_epoch(due_ms).snapshot_id == 3
    if pause_ms:
        assert next_epoch(due_ms - 1).snapshot_id is None


def test_a_fixed_interval_does_not_count_on_an_epochs_duration() -> None:
    job = running_job()  # an interval of 1,000 ms
    tell(job, decided(tell(job, acked(run_epoch(job, at=1_000), at=1_400)), at=1_401))
    tell(job, completed(2, 1_450))
    tell(job, acked(run_epoch(job, at=2_000), at=2_400))
    assert run_epoch(job, at=2_449).snapshot_id is None


def test_without_an_interval_a_snapshot_waits_for_output() -> None:
    """An epoch without output takes no snapshot: the later epoch with output must not have to wait
    for its own."""
    job = running_job(snapshot_interval_ms=None, snapshot_period_ms=250)

    def run(at: int, *, writes_nothing: bool) -> RunEpoch:
        (command,) = tell(job, Tick(at, wants_epoch=True, writes_nothing=writes_nothing))
        assert isinstance(command, RunEpoch)
        return command

    def silent(epoch: RunEpoch) -> EpochAcked:
        done = acked(epoch)
        return replace(done, acks=tuple(replace(ack, artifacts=()) for ack in done.acks))

    tell(job, silent(run(300, writes_nothing=True)))
    assert job.view().snapshot_due_at_ms == 1_000
    epoch = run(400, writes_nothing=False)
    assert epoch.snapshot_id == 2
    tell(job, decided(tell(job, acked(epoch, at=420)), at=421))
    tell(job, completed(2, 430))
    tell(job, silent(run(800, writes_nothing=True)))
    tell(job, silent(run(1_429, writes_nothing=True)))
    assert run(1_430, writes_nothing=True).snapshot_id == 3, "not later than the longest pause"


def test_without_an_interval_a_discarded_snapshot_is_tried_again_after_the_longest_pause() -> None:
    job = running_job(snapshot_interval_ms=None)
    saved(job, run_epoch(job, at=300), 301, error="the disk is full")
    tell(job, acked(run_epoch(job, at=1299), at=1300))
    assert run_epoch(job, at=1300).snapshot_id == 3, "it begins a ms later"


def test_what_falls_due_within_the_first_epoch_is_its_own_snapshot() -> None:
    """Otherwise its rows would become visible only after the second epoch."""
    job = running_job(first_epoch_ms=1000)
    assert job.handle(Tick(1, wants_epoch=False)) == [], "not without a reason for an epoch"
    first = run_epoch(job, at=2)
    assert first.snapshot_id == 2
    saved(job, first, 500)
    tell(job, completed(2, 500))
    tell(job, acked(run_epoch(job, at=600)))
    assert run_epoch(job, at=1499).snapshot_id is None
    long_interval = running_job(first_epoch_ms=1000, snapshot_interval_ms=5000)
    assert run_epoch(long_interval, at=2).snapshot_id is None


def test_what_only_dropped_snapshots_needed_becomes_garbage() -> None:
    job = running_job(snapshot_interval_ms=0)
    decide(job, at=10)
    tell(job, completed(2, 20))
    _, garbage = decide(job, at=30)
    assert garbage == CollectGarbage(("manifest/000000000001-1",), {})


def test_an_epoch_without_an_ack_fails() -> None:
    job = running_job()
    whole = acked(run_epoch(job, at=10))
    (stop,) = tell(job, replace(whole, acks=whole.acks[1:]))
    assert isinstance(stop, Stop)
    assert stop.restart and "no ack from shards [0]" in stop.reason


def test_the_same_ack_twice_is_one_and_two_attempts_are_an_error() -> None:
    job = running_job()
    whole = acked(run_epoch(job, at=10))
    assert tell(job, replace(whole, acks=(*whole.acks, *whole.acks))) == []

    whole = acked(run_epoch(job, at=20))
    another = replace(whole.acks[1], attempt="a1")
    (stop,) = tell(job, replace(whole, acks=(*whole.acks, another)))
    assert isinstance(stop, Stop)
    assert stop.restart and "acked twice" in stop.reason


def test_answers_of_a_dead_execution_change_nothing() -> None:
    job = Coordinator(CONFIG)
    assert tell(job, completed(1, by=0)) == [], "even before our own claim is answered"

    job = running_job(snapshot_interval_ms=0)
    epoch = run_epoch(job, at=10)
    assert tell(job, replace(acked(epoch), execution_id=0)) == []
    assert tell(job, EpochFailed(0, epoch.epoch_id, "executor lost", restartable=True)) == []
    saved(job, epoch, 10)
    assert tell(job, completed(2, 20, by=0)) == []
    assert tell(job, replace(completed(2, 20, by=0), outcome=WriteOutcome.FENCED)) == []
    assert tell(job, completed(1, 20)) == [], "another snapshot's"
    assert job.pending.state is PendingState.COMPLETING


# --- what goes wrong around the decision ---------------------------------------------------------


def test_a_failed_snapshot_is_discarded_and_tried_again_under_a_new_id() -> None:
    job = running_job()
    deciding = tell(job, acked(run_epoch(job, at=1000), 1000))
    failed = decided(deciding, at=1000, reason="disk full")
    tell(job, replace(failed, manifest=replace(failed.manifest, snapshot_id=99)))
    assert job.pending.state is PendingState.DECIDING, "another snapshot's"

    (discard,) = tell(job, failed)
    assert discard == CollectGarbage(
        ("manifest/000000000002-1",), {"hourly": frozenset({"hourly/2"})}
    )
    assert (job.cycle.state, job.pending.last_failure) == (CycleState.READY, "disk full")
    assert job.shards["hourly"][0].unsaved, "still without a copy in the store"

    epoch = run_epoch(job, at=2000)
    assert epoch.snapshot_id == 3
    (again,) = tell(job, acked(epoch, 2000))
    assert isinstance(again, Decide)
    assert again.manifest.artifacts == (artifact(1), artifact(2))


def test_the_first_failure_after_a_restart_does_not_end_the_execution() -> None:
    record, manifest = crashed(committed=True)
    job = Coordinator(CONFIG)
    tell(job, Claimed(record), answer(Purpose.STARTING), ManifestLoaded(manifest), Restored({}))
    tell(job, aborted(0))
    (discard,) = saved(job, run_epoch(job, at=1000), 1000, error="disk full")
    assert isinstance(discard, CollectGarbage)
    assert job.cycle.state is CycleState.READY


@pytest.mark.parametrize("outcome", [WRITTEN, UNKNOWN, WriteOutcome.UNAVAILABLE])
def test_snapshots_may_fail_for_as_long_as_they_like(outcome: WriteOutcome) -> None:
    """Ids are reserved anew, before the last is used; a reservation that fails is tried again."""
    job = running_job()
    reserved, outcomes = SNAPSHOT_ID_BLOCK, [outcome] * 3
    ids = []
    for number in range(1, 4 * SNAPSHOT_ID_BLOCK):
        epoch = run_epoch(job, at=number * 1000)
        assert epoch.snapshot_id is not None and epoch.snapshot_id <= reserved
        ids.append(epoch.snapshot_id)
        discard, *commands = saved(job, epoch, number * 1000, error="no space left")
        assert isinstance(discard, CollectGarbage)
        for command in commands:
            assert isinstance(command, WriteRecord), "nothing else is due: the job lives on"
            assert command.record.snapshots == job.record.snapshots
            assert tell(job, tick(number * 1000, StopKind.SUSPEND)) == [], "one at a time"
            said = outcomes.pop() if outcomes else WRITTEN
            if said is WRITTEN:
                reserved = command.record.reserved_snapshot_id
            assert tell(job, answer(Purpose.RESERVED, said, number * 1000)) == []
    assert len(set(ids)) == len(ids)
    decide(job, 10**6)
    assert job.record.snapshots[0].snapshot_id == max(ids) + 1


def test_without_ids_no_snapshot_is_begun_and_a_stop_is_carried_out() -> None:
    job = running_job()
    number = 0
    while job.pending.has_ids:
        number += 1
        epoch = run_epoch(job, at=number * 1000)
        saved(job, epoch, number * 1000, error="no space left")
        tell(job, answer(Purpose.RESERVED, WriteOutcome.UNAVAILABLE, number * 1000))
    (again,) = tell(job, tick((number + 1) * 1000))
    assert isinstance(again, WriteRecord) and again.purpose is Purpose.RESERVED
    tell(job, answer(Purpose.RESERVED, WriteOutcome.UNAVAILABLE, (number + 1) * 1000))
    (stop,) = tell(job, tick((number + 2) * 1000, StopKind.SUSPEND))
    assert isinstance(stop, Stop) and stop.status is JobStatus.SUSPENDED


def test_chunks_that_could_not_be_stored_fail_the_snapshot_not_the_epoch() -> None:
    job = running_job()
    saved(job, run_epoch(job, at=1000), 1000, error="disk full")
    assert job.cycle.state is CycleState.READY
    assert job.counters["hourly"].rows_in == 1


def undecided(job: Coordinator, stop: StopKind | None = None) -> list[Command]:
    """A snapshot on its way: the command that `decided` answers."""
    deciding = tell(job, acked(run_epoch(job, at=1000, stop=stop), 1000))
    assert job.pending.state is PendingState.DECIDING
    return deciding


def test_a_record_that_was_certainly_not_written_fails_the_snapshot() -> None:
    job = running_job()
    deciding = undecided(job)
    (discard,) = tell(job, decided(deciding, WriteOutcome.UNAVAILABLE, at=1000))
    assert isinstance(discard, CollectGarbage)
    assert job.cycle.state is CycleState.READY


def test_after_an_unknown_outcome_nothing_is_committed_and_nothing_cleaned_up() -> None:
    job = running_job()
    deciding = undecided(job)
    (stop,) = tell(job, decided(deciding, UNKNOWN))
    assert isinstance(stop, Stop)
    assert stop.restart and not stop.write_status


def test_a_fenced_execution_stops_and_touches_nothing() -> None:
    job = running_job()
    deciding = undecided(job)
    (stop,) = tell(job, decided(deciding, WriteOutcome.FENCED))
    assert isinstance(stop, Stop)
    assert not stop.restart and not stop.write_status
    assert tell(job, completed(2), tick(9000)) == []


def test_a_lease_that_is_lost_before_the_claim_is_answered_ends_the_execution() -> None:
    job = Coordinator(CONFIG)
    job.begin()
    (stop,) = tell(job, answer(Purpose.LEASE, WriteOutcome.FENCED))
    assert isinstance(stop, Stop)
    assert stop.cause is StopCause.FENCED and not stop.restart and not stop.write_status


@pytest.mark.parametrize("outcome", [WRITTEN, WriteOutcome.UNAVAILABLE])
def test_a_failure_beside_the_decision_does_not_write_the_record_over_it(
    outcome: WriteOutcome,
) -> None:
    job = running_job()
    deciding = undecided(job)
    assert tell(job, Failed("a source ended", restartable=False)) == []
    assert tell(job, tick(9000)) == [], "nothing new is begun"
    first, *stops = tell(job, decided(deciding, outcome, at=1000))
    assert isinstance(first, Complete if outcome is WRITTEN else CollectGarbage)
    if isinstance(first, Complete):  # nobody starts a failed job to do it
        assert stops == []
        stops = tell(job, completed(2, 1004))
    assert stops == [Stop(JobStatus.FAILED, StopCause.ERROR, "a source ended", write_status=True)]
    newest = job.record.snapshots[0]
    assert bool(newest.epoch_id) == (outcome is WRITTEN) and newest.committed


def beside_a_commit(stop: StopKind | None = None) -> tuple[Coordinator, EpochFailed]:
    """An epoch runs; its failure, for good."""
    job = running_job()
    complete, *_ = decide(job, at=1000)
    assert isinstance(complete, Complete)
    epoch = run_epoch(job, at=1010)
    if stop is not None:
        job.job.ending.asked = stop
    return job, EpochFailed(1, epoch.epoch_id, "row 3", restartable=False)


ROW_3 = Stop(JobStatus.FAILED, StopCause.ERROR, "row 3", write_status=True)


@pytest.mark.parametrize("of_an_epoch", [True, False])
def test_what_fails_for_good_beside_a_commit_waits_for_it(of_an_epoch: bool) -> None:
    job, failed = beside_a_commit()
    assert tell(job, failed if of_an_epoch else Failed("row 3", restartable=False)) == []
    assert job.view().is_failing
    assert tell(job, tick(1020)) == [], "no other epoch begins"
    assert tell(job, completed(2, 1030)) == [ROW_3]
    assert job.record.snapshot is not None and job.record.snapshot.committed


def test_the_commit_that_it_waits_for_may_fail_too() -> None:
    """The cause is the first failure; the next start commits."""
    job, failed = beside_a_commit()
    tell(job, failed)
    assert tell(job, Failed("given up", restartable=True, completing=True)) == [ROW_3]
    assert job.record.snapshot is not None and not job.record.snapshot.committed


def test_a_failure_that_passes_leaves_the_commit_to_the_execution_that_follows() -> None:
    job, failed = beside_a_commit()
    (stop,) = tell(job, replace(failed, restartable=True))
    assert isinstance(stop, Stop) and stop.restart


def test_where_none_follows_it_waits_for_the_commit() -> None:
    job, failed = beside_a_commit(StopKind.SUSPEND)
    assert tell(job, replace(failed, restartable=True)) == []
    (stop,) = tell(job, completed(2, 1030))
    assert isinstance(stop, Stop) and stop.status is JobStatus.SUSPENDED
    assert job.record.snapshot is not None and job.record.snapshot.committed


def test_a_commit_that_fails_for_good_is_not_waited_for() -> None:
    job, _ = beside_a_commit()
    (stop,) = tell(job, Failed("the rows are refused", restartable=False, completing=True))
    assert stop == replace(ROW_3, reason="the rows are refused")


def test_what_fails_for_good_beside_the_commit_of_a_start_waits_for_it() -> None:
    record, manifest = crashed(committed=False)
    job = Coordinator(CONFIG)
    tell(job, Claimed(record), answer(Purpose.STARTING), ManifestLoaded(manifest))
    (complete,) = tell(job, Restored({}))
    assert isinstance(complete, Complete)
    assert tell(job, Failed("row 3", restartable=False)) == []
    assert tell(job, completed(manifest.snapshot_id, 9, by=2)) == [ROW_3]
    assert job.record.snapshot is not None and job.record.snapshot.committed


def test_a_job_that_is_cancelled_while_it_completes_does_not_begin_again() -> None:
    job = running_job()
    (epoch,) = tell(job, tick(10, StopKind.COMPLETE))
    assert isinstance(epoch, RunEpoch) and epoch.final
    assert tell(job, CancelRequested()) == [], "its last epoch may succeed"
    (stop,) = tell(job, EpochFailed(1, epoch.epoch_id, "an executor is lost", restartable=True))
    assert isinstance(stop, Stop)
    assert (stop.status, stop.cause, stop.restart) == (JobStatus.FAILED, StopCause.CANCEL, False)


def test_a_cancel_waits_for_the_decision_that_is_on_its_way_and_for_its_commit() -> None:
    """Nobody starts a cancelled job to commit what it has decided."""
    job = running_job()
    deciding = undecided(job)
    assert tell(job, tick(1001, StopKind.CANCEL)) == []
    complete, *_ = tell(job, decided(deciding, at=1002))
    assert isinstance(complete, Complete)
    assert tell(job, tick(1003, StopKind.CANCEL)) == []
    (stop,) = tell(job, completed(2, 1006))
    assert job.record.snapshot is not None and job.record.snapshot.committed
    assert stop == Stop(JobStatus.FAILED, StopCause.CANCEL, "cancelled", write_status=True)


def test_a_failure_that_suspends_keeps_its_cause() -> None:
    """A person who looks at the job is to see the error to repair before it is resumed."""
    job = running_job(suspend_on_failure=True)
    (stop,) = tell(job, Failed("row 3 does not fit", restartable=False))
    assert stop == Stop(
        JobStatus.SUSPENDED, StopCause.ERROR, "row 3 does not fit", write_status=True
    )
    again = running_job(suspend_on_failure=True)
    (stop,) = tell(again, Failed("an executor is gone", restartable=True))
    assert isinstance(stop, Stop) and stop.restart, "nobody has anything to repair"


@pytest.mark.parametrize("restartable", [True, False])
@pytest.mark.parametrize("steps", range(5))
def test_a_cancel_in_recovery_stays_a_cancel(steps: int, restartable: bool) -> None:
    """The cancel counts however the recovery ends, although the job suspends on failure."""
    record, manifest = crashed(committed=False)
    job = Coordinator(replace(CONFIG, suspend_on_failure=True))
    recovery = (
        Claimed(record),
        answer(Purpose.STARTING),
        ManifestLoaded(manifest),
        Restored({}),
    )
    tell(job, *recovery[:steps])
    stops = [*tell(job, CancelRequested()), *tell(job, *recovery[steps : steps + 1])]
    stops += tell(job, Failed("the sink does not answer", restartable, completing=steps >= 3))
    (stop,) = [command for command in stops if isinstance(command, Stop)]
    assert (stop.status, stop.cause) == (JobStatus.FAILED, StopCause.CANCEL)
    assert stop.write_status and not stop.restart


@pytest.mark.parametrize("steps", range(5))
def test_a_cancel_in_recovery_commits_first_what_is_decided(steps: int) -> None:
    record, manifest = crashed(committed=False)
    job = Coordinator(CONFIG)
    recovery = (
        Claimed(record),
        answer(Purpose.STARTING),
        ManifestLoaded(manifest),
        Restored({}),
    )
    tell(job, *recovery[:steps])
    commands = tell(job, CancelRequested(), *recovery[steps:])
    assert steps == 4 or isinstance(commands[-1], Complete)
    (stop,) = tell(job, completed(manifest.snapshot_id, 9, by=2))
    assert stop == Stop(JobStatus.FAILED, StopCause.CANCEL, "cancelled", write_status=True)
    assert job.record.snapshot is not None and job.record.snapshot.committed


# --- an epoch beside the decision ----------------------------------------------------------------


def test_one_epoch_runs_while_a_snapshot_is_being_decided() -> None:
    job = running_job()
    deciding = undecided(job)
    epoch = run_epoch(job, at=5000)
    assert epoch.snapshot_id is None, "however late it is, there is one at a time"
    assert tell(job, acked(epoch, 5001), tick(5002)) == [], "a third transaction would open"
    (complete,) = tell(job, decided(deciding, at=5003))
    assert isinstance(complete, Complete) and complete.manifest.artifacts == (artifact(1),)
    tell(job, completed(2, 5004))
    (decide,) = tell(job, acked(run_epoch(job, at=6004), 6005))
    assert isinstance(decide, Decide)
    assert decide.manifest.artifacts == (artifact(2), artifact(3))


@pytest.mark.parametrize("decided_first", [True, False])
@pytest.mark.parametrize("outcome", [WRITTEN, WriteOutcome.UNAVAILABLE])
def test_what_the_epoch_was_given_is_saved_or_unsaved_once_it_is_known(
    outcome: WriteOutcome, *, decided_first: bool
) -> None:
    """The epoch answers with the runs that it was given, whatever has been decided meanwhile."""
    job = running_job()
    deciding = undecided(job)
    epoch = run_epoch(job, at=1001)
    given = job.shards["hourly"][0]
    assert (given.saved, given.deciding, given.unsaved) == ((), (RUN_1,), ())
    events = [decided(deciding, outcome, at=1002), acked(epoch, 1002)]
    for event in events if decided_first else reversed(events):
        assert job.shards["hourly"][0] is given or event is events[0]
        tell(job, event)
    if outcome is WRITTEN:
        assert job.shards["hourly"][0] == ShardState((RUN_1,), (RUN_2,), (chunks(2),))
        assert (job.view().undecided_epochs, job.job.epochs_since_barrier) == (1, 1)
    else:
        assert job.shards["hourly"][0] == ShardState((), (RUN_1, RUN_2))
        assert (job.view().undecided_epochs, job.job.epochs_since_barrier) == (2, 2)
        (decide,) = tell(job, acked(run_epoch(job, at=2002), 2003))
        assert isinstance(decide, Decide)
        assert decide.manifest.artifacts == (artifact(1), artifact(2), artifact(3))


def saving(epoch: RunEpoch, at: int) -> EpochAcked:
    """The task of the stage has left its state on the way."""
    whole = acked(epoch, at)
    state = replace(whole.acks[0], chunk_set=None, saving=Saving("told", 1))
    return replace(whole, acks=(state, *whole.acks[1:]))


def test_a_snapshot_waits_for_state_that_is_still_being_saved() -> None:
    job = running_job()
    epoch = run_epoch(job, at=1000)
    deciding = tell(job, saving(epoch, 1000))
    beside = run_epoch(job, at=1001)
    assert beside.snapshot_id is None
    tell(job, acked(beside, 1002))
    whole = acked(epoch, 1000).acks
    (complete,) = tell(job, decided(deciding, at=1003, acks=whole))
    assert isinstance(complete, Complete)
    manifest = complete.manifest
    assert (manifest.epoch_id, manifest.sources) == (1, {"inbox": 1}), "of its barrier"
    assert manifest.counters["hourly"].rows_in == 1
    assert manifest.artifacts == (artifact(1),)
    assert manifest.shards["hourly"] == ((chunks(2),),)
    assert job.shards["hourly"][0].chain == (chunks(2),)


def test_state_that_could_not_be_saved_fails_the_snapshot_later_not_the_epoch() -> None:
    job = running_job()
    epoch = run_epoch(job, at=1000)
    deciding = tell(job, saving(epoch, 1000))
    failed = acked(epoch, 1000, error="disk full").acks
    tell(job, decided(deciding, at=1003, acks=failed))
    assert (job.pending.state, job.pending.last_failure) == (PendingState.NONE, "disk full")
    assert job.shards["hourly"][0].unsaved == (RUN_1,)


def test_where_processors_commit_no_epoch_runs_beside_the_decision() -> None:
    job = Coordinator(CONFIG)
    claimed = Claimed(NEW_JOB, decides_every_epoch=True)
    tell(job, decided(tell(job, claimed, answer(Purpose.STARTING), aborted())))
    tell(job, acked(run_epoch(job, at=10), 10))
    assert tell(job, tick(11)) == []


def test_no_epoch_runs_beside_the_decision_about_the_last_one() -> None:
    job = running_job()
    tell(job, acked(run_epoch(job, at=10)))
    deciding = undecided(job, StopKind.SUSPEND)
    assert tell(job, tick(1001)) == []
    assert tell(job, decided(deciding, WriteOutcome.UNAVAILABLE, at=1002))[-1] == Stop(
        JobStatus.SUSPENDED, StopCause.SUSPEND, "suspend", write_status=True
    )


# --- stopping ------------------------------------------------------------------------------------


def test_a_terminal_snapshot_is_committed_before_the_job_leaves_running() -> None:
    job = running_job()
    tell(job, acked(run_epoch(job, at=10)))
    epoch = run_epoch(job, at=20, stop=StopKind.SUSPEND)
    assert (epoch.snapshot_id, epoch.terminal, epoch.final) == (2, True, False)
    deciding = tell(job, acked(epoch))
    (complete,) = tell(job, decided(deciding, at=30))
    assert job.record.status is JobStatus.COMPLETING
    assert isinstance(complete, Complete)
    (stop,) = tell(job, completed(2, 40))
    assert stop == Stop(JobStatus.SUSPENDED, StopCause.SUSPEND, "suspend", write_status=True)


def test_an_idle_job_is_suspended_without_another_snapshot() -> None:
    job = running_job()
    (stop,) = tell(job, Tick(10, wants_epoch=False, stop=StopKind.SUSPEND))
    assert stop == Stop(JobStatus.SUSPENDED, StopCause.SUSPEND, "suspend", write_status=True)


def test_a_terminal_snapshot_that_fails_does_not_keep_the_job_up() -> None:
    job = running_job()
    tell(job, acked(run_epoch(job, at=10)))
    epoch = run_epoch(job, at=20, stop=StopKind.SUSPEND)
    _, stop = tell(job, decided(tell(job, acked(epoch)), at=30, reason="disk full"))
    assert stop == Stop(JobStatus.SUSPENDED, StopCause.SUSPEND, "suspend", write_status=True)


def test_whatever_fails_in_a_terminal_epoch_a_job_told_to_stop_does_not_restart() -> None:
    job = running_job()
    tell(job, acked(run_epoch(job, at=10)))
    epoch = run_epoch(job, at=20, stop=StopKind.SHUTDOWN)
    (stop,) = tell(job, EpochFailed(1, epoch.epoch_id, "executor lost", restartable=True))
    assert stop == Stop(
        JobStatus.NOT_RUNNING, StopCause.SHUTDOWN, "executor lost", write_status=True
    )

    job = running_job()
    tell(job, acked(run_epoch(job, at=10)))
    deciding = undecided(job, StopKind.SUSPEND)
    (stop,) = tell(job, decided(deciding, UNKNOWN))
    assert isinstance(stop, Stop)
    assert not stop.restart and not stop.write_status


def test_the_end_of_the_input_is_one_decision_for_all_sinks() -> None:
    job = running_job()
    (complete,) = decide(job, at=10, stop=StopKind.COMPLETE)
    assert isinstance(complete, Complete)
    (stop,) = tell(job, completed(2, 20))
    assert stop == Stop(JobStatus.COMPLETED, StopCause.COMPLETE, "complete", write_status=True)


# --- weaker guarantees ---------------------------------------------------------------------------


def test_below_exactly_once_rows_are_published_before_the_record() -> None:
    job = running_job(guarantee=Guarantee.AT_LEAST_ONCE)
    epoch = run_epoch(job, at=1000)
    assert tell(job, acked(epoch, 1000)) == [Publish(1, (artifact(1),))]
    assert tell(job, acked(epoch, 1000)) == [], "the answer once more"
    assert job.counters["hourly"].rows_in == 1

    deciding = tell(job, Published(1))
    assert isinstance(deciding[0], Decide) and deciding[0].manifest.artifacts == ()
    assert tell(job, Published(1)) == []
    assert tell(job, decided(deciding, at=1000)) == []
    assert job.cycle.state is CycleState.READY


def test_without_a_guarantee_there_are_no_snapshots() -> None:
    job = Coordinator(replace(CONFIG, guarantee=Guarantee.NONE))
    tell(job, Claimed(NEW_JOB), answer(Purpose.STARTING), aborted())
    epoch = run_epoch(job, at=5000)
    assert epoch.snapshot_id is None
    tell(job, acked(epoch), Published(1))
    (stop,) = tell(job, tick(6000, StopKind.SHUTDOWN))
    assert stop == Stop(JobStatus.NOT_RUNNING, StopCause.SHUTDOWN, "shutdown", write_status=True)


# --- processors that commit in two phases ---------------------------------------------------------


def two_phase_job() -> Coordinator:
    """Job like `running_job`, with two-phase processors and an hour between snapshots."""
    job = Coordinator(replace(CONFIG, snapshot_interval_ms=3_600_000))
    claimed = Claimed(NEW_JOB, decides_every_epoch=True)
    tell(job, decided(tell(job, claimed, answer(Purpose.STARTING), aborted())))
    return job


def prepared(epoch: RunEpoch, at: int = 0, error: str | None = None) -> EpochAcked:
    """The stage's processor has prepared something; no sink was given anything."""
    whole = acked(epoch, at, error)
    stage, sink = whole.acks
    return replace(whole, acks=(replace(stage, prepared=True), replace(sink, artifacts=())))


def test_every_epoch_is_decided_and_its_phase_2_waited_for() -> None:
    job = two_phase_job()
    epoch = run_epoch(job, at=10)
    assert epoch.snapshot_id == 2
    (complete,) = tell(job, decided(tell(job, prepared(epoch, 10)), at=10))
    assert isinstance(complete, Complete)
    assert (complete.manifest.artifacts, complete.manifest.prepared) == ((), ("hourly",))
    assert complete.record.snapshot is not None
    assert not complete.record.snapshot.committed, "no artifacts, and yet phase 2 is to come"
    assert tell(job, tick(20)) == [], "the next instances would commit the same"
    tell(job, completed(2, 30))
    assert run_epoch(job, at=31).snapshot_id == 3


def test_the_end_waits_for_what_processors_have_prepared() -> None:
    job = two_phase_job()
    epoch = run_epoch(job, at=10)
    tell(job, decided(tell(job, prepared(epoch, 10)), at=10))
    assert tell(job, tick(20, StopKind.SHUTDOWN)) == []
    tell(job, completed(2, 30))
    (stop,) = tell(job, tick(40, StopKind.SHUTDOWN))
    assert stop == Stop(JobStatus.NOT_RUNNING, StopCause.SHUTDOWN, "shutdown", write_status=True)


def test_a_restart_lets_processors_commit_again() -> None:
    record, manifest = crashed(committed=False)
    manifest = replace(manifest, artifacts=(), prepared=("hourly",))
    job = Coordinator(CONFIG)
    tell(job, Claimed(record, decides_every_epoch=True), answer(Purpose.STARTING))
    tell(job, ManifestLoaded(manifest))
    (complete,) = tell(job, Restored({}))
    assert isinstance(complete, Complete) and complete.manifest.prepared == ("hourly",)
    (abort,) = tell(job, completed(5, 10, by=2))
    assert isinstance(abort, AbortOrphans)


@pytest.mark.parametrize("where", ["in a task", "before the record", "at the record"])
def test_what_was_prepared_for_a_failed_snapshot_is_never_restored(where: str) -> None:
    """The shards' state has the ids already: an epoch that began from it would commit them."""
    job = two_phase_job()
    epoch = run_epoch(job, at=10)
    deciding = tell(job, prepared(epoch, 10, error="disk full" if where == "in a task" else None))
    if where == "at the record":
        stop = tell(job, decided(deciding, WriteOutcome.UNAVAILABLE))[-1]
    else:
        reason = "disk full" if where == "before the record" else ""
        stop = tell(job, decided(deciding, reason=reason))[-1]
    assert isinstance(stop, Stop)
    assert stop.restart and not stop.write_status
    assert job.pending.failures == 1

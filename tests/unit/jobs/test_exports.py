"""Exports on a real store, without Spark: what is kept, what is garbage, who makes them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dagster_jet.errors import (
    ConfigurationError,
    JobStateError,
    SnapshotInvalidError,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.exports.copying import copy_snapshot
from dagster_jet.exports.export import Export, Exports, ExportState, check_name
from dagster_jet.exports.export_list import (
    ExportList,
    collect_export_garbage,
    delete_export,
    export_data,
    read_exports,
)
from dagster_jet.exports.exporting import Exporting
from dagster_jet.exports.making import carry_out, export_snapshot
from dagster_jet.exports.watcher import ExportWatcher
from dagster_jet.jobs.deletion import delete_job
from dagster_jet.jobs.remote_job import RemoteJob
from dagster_jet.jobs.stored_snapshot import find_snapshot
from dagster_jet.ownership.garbage import collect_garbage
from dagster_jet.ownership.lease import new_lease
from dagster_jet.ownership.record_keeper import (
    JOB_DIRECTORY,
    last_execution_id,
    record_register,
)
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.manifest import Manifest, checksum
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef
from dagster_jet.snapshot.storage.chunks import PARTITION_COLUMN, ChunkSetName, write_chunk_set
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import OwnedRegister, Store, StoreConfig

JOB, PARTITIONS = "flights", 3
DEAD = replace(new_lease("", 0, None), pid=2**22 + 1)
"""Lease of a process whose id is above the kernel's largest one."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    config = StoreConfig((f"file://{tmp_path}/a",), backup_count=0, partition_count=PARTITIONS)
    with Store.open(config) as store:
        yield store


def remote_job(store: Store, name: str = JOB) -> RemoteJob:
    return RemoteJob(store, name, no_session)


def no_session() -> SparkSession:
    raise AssertionError("this test has no Spark")


class Life:
    """A job that takes snapshots: each adds a chunk set to one chain, and needs those before."""

    def __init__(self, store: Store) -> None:
        self.store, self.refs, self.chain, self.expected = store, [], (), {}
        self.execution_id = 1
        directory = store.map(JOB_DIRECTORY)
        directory.put_all({directory.key(JOB): b""})

    def snapshot(
        self, snapshot_id: int, *, base: bool = False, committed: bool = True,
        held: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        rows = {PARTITION_COLUMN: [0, 1, 2], "n": [snapshot_id * 10 + i for i in range(3)]}
        table = pa.table(rows, pa.schema([(PARTITION_COLUMN, pa.int32()), ("n", pa.int64())]))
        name = ChunkSetName("hourly", snapshot_id, self.execution_id, 0, "a")
        state = self.store.map(f"jobs/{JOB}/state")
        one = write_chunk_set(
            state, name, table, range(3) if base else (), sequence=snapshot_id, is_base=base,
            partition_count=PARTITIONS,
        )  # fmt: skip
        before = [] if base else self.expected.get(self._newest, [])
        self.chain = (one,) if base else (*self.chain, one)
        self.expected[snapshot_id] = sorted([*before, *rows["n"]])
        manifest = Manifest(
            JOB, snapshot_id, snapshot_id + 100, self.execution_id, 1, "", PARTITIONS,
            {"inbox": {"next": snapshot_id}}, {}, {"hourly": (self.chain,)}, (), held=held,
        )  # fmt: skip
        SnapshotStore(self.store, JOB).write(manifest)
        ref = SnapshotRef(
            snapshot_id, snapshot_id + 100, self.execution_id, manifest.name,
            checksum(manifest.to_bytes()), 1_000, manifest.state_bytes, committed=committed,
        )  # fmt: skip
        self.refs = [ref, *self.refs][:2]

    @property
    def _newest(self) -> int:
        return self.refs[0].snapshot_id if self.refs else 0

    def record(self, status: JobStatus = JobStatus.SUSPENDED) -> ExecutionRecord:
        """Decides: what the record does not name is garbage from here on."""
        lease = new_lease("o", 60_000, None) if status.is_live else None
        record = ExecutionRecord(
            JOB, self.execution_id, status, snapshots=tuple(self.refs), lease=lease
        )
        register = self.store.register(record_register(JOB))
        highest = register.highest_ballot()
        register.claim(highest.number + 1 if highest else 1, "o").write(record.to_bytes())
        return record


def three_snapshots(store: Store) -> Life:
    """A job with the snapshots 2 and 3."""
    life = Life(store)
    for snapshot_id in (1, 2, 3):
        life.snapshot(snapshot_id, base=snapshot_id == 1)
    life.record()
    return life


@pytest.fixture
def life(store: Store) -> Life:
    return three_snapshots(store)


def state(store: Store, wanted: int | str | None = None) -> list[int]:
    table = find_snapshot(store, JOB, wanted).state("hourly")
    assert table is not None
    return sorted(table["n"].to_pylist())


def maps(store: Store) -> list[str]:
    return store.map_names("exports/")


def test_an_export_outlives_all_that_becomes_of_the_job(store: Store, life: Life) -> None:
    export = remote_job(store).export_snapshot("before-upgrade")
    assert export.is_done and (export.snapshot_id, export.epoch_id) == (3, 103)
    assert export.bytes > life.refs[0].state_bytes
    for snapshot_id in (4, 5, 6, 7):
        life.snapshot(snapshot_id, base=snapshot_id == 5)
    life.execution_id = 9
    life.record()
    collect_garbage(store)
    collect_export_garbage(store)
    assert store.verify().is_whole
    store.drop_orphans()
    with pytest.raises(JobStateError, match=r"snapshot 3 is not retained; there are: 7, 6\."):
        state(store, 3)
    assert state(store, "before-upgrade") == life.expected[3]
    assert state(store) == life.expected[7]
    manifest = find_snapshot(store, JOB, "before-upgrade").manifest
    assert manifest.sources == {"inbox": {"next": 3}}


def test_it_outlives_the_member_that_it_was_written_to(
    store: Store, life: Life, tmp_path: Path
) -> None:
    remote_job(store).export_snapshot("kept")
    (first,) = store.status().members
    store.add_member(f"file://{tmp_path}/d")
    store.remove_member(first.member_id)
    assert store.verify().is_whole and state(store, "kept") == life.expected[3]
    delete_export(store, "kept")
    assert maps(store) == [] and read_exports(store) == ()


def test_a_name_is_taken_until_it_is_deleted(store: Store, life: Life) -> None:
    job = remote_job(store)
    job.export_snapshot("kept")
    with pytest.raises(
        JobStateError, match=r"an export named 'kept' of job .* already exists \(done\)"
    ):
        job.export_snapshot("kept")
    delete_export(store, "kept")
    assert maps(store) == []
    life.snapshot(4)
    life.record()
    assert job.export_snapshot("kept").snapshot_id == 4
    with pytest.raises(
        JobStateError, match="'other' does not exist; the finished exports are: kept"
    ):
        delete_export(store, "other")


@pytest.mark.parametrize("name", ["", "7", "a/b", "../x", "a b", "x" * 101, ".hidden"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a valid name for an exported snapshot"):
        check_name(name)


def test_only_what_is_committed_is_exported(store: Store, life: Life) -> None:
    """The newest snapshot may still await phase 2, which only the job itself runs."""
    life.snapshot(4, committed=False)
    life.record(JobStatus.FAILED)
    assert remote_job(store).export_snapshot("kept").snapshot_id == 3


def test_an_export_can_be_read_after_a_start_has_committed_what_its_snapshot_held_back(
    store: Store, life: Life
) -> None:
    """The record says that nothing is held back any longer; the manifest is never changed."""
    life.snapshot(4, held=("lake",))
    life.record()
    assert remote_job(store).export_snapshot("kept").snapshot_id == 4
    exported = find_snapshot(store, JOB, "kept")
    assert exported.manifest.held == () and state(store, "kept") == life.expected[4]


def test_an_export_can_be_read_if_an_older_version_has_written_its_snapshot(
    store: Store, life: Life
) -> None:
    own = store.map(f"jobs/{JOB}/state")
    newest = life.refs[0]
    fields = json.loads(own.get_all([own.key(newest.manifest_name)])[0] or b"")
    del fields["held"], fields["watermarks_before"]
    old = json.dumps(fields).encode()
    own.put_all({own.key(newest.manifest_name): old})
    life.refs[0] = replace(newest, manifest_checksum=checksum(old))
    life.record()
    assert state(store) == life.expected[3]
    assert remote_job(store).export_snapshot("kept").snapshot_id == 3
    assert state(store, "kept") == life.expected[3]


def test_a_job_without_a_committed_snapshot_says_so(store: Store, life: Life) -> None:
    life.refs = []
    life.record()
    with pytest.raises(JobStateError, match="no committed snapshot to export"):
        remote_job(store).export_snapshot("kept")
    (failed,) = read_exports(store)
    assert failed.state is ExportState.FAILED and maps(store) == []
    life.snapshot(4, base=True)
    life.record()
    assert remote_job(store).export_snapshot("kept").is_done, "what failed gives way"


def test_a_job_that_nobody_knows(store: Store) -> None:
    with pytest.raises(JobStateError, match="cannot export: the job is unknown"):
        remote_job(store, "nobody").export_snapshot("kept")


def test_one_that_is_down_cannot_be_cancelled(store: Store, life: Life) -> None:
    with pytest.raises(JobStateError, match="cannot cancel_and_export: the job is SUSPENDED"):
        remote_job(store).cancel_and_export_snapshot("kept")
    with pytest.raises(JobStateError, match="a stop has no name"):
        remote_job(store).request_stop(StopKind.CANCEL_AND_EXPORT)


def test_a_damaged_chunk_is_found_at_the_export_not_at_its_use(store: Store, life: Life) -> None:
    chunks = store.map(f"jobs/{JOB}/state")
    key = next(k for k in chunks.keys() if k.name == life.chain[1].name)
    chunks.put_all({key: b"another chunk"})
    with pytest.raises(SnapshotInvalidError, match=f"the state chunk of partition {key.partition}"):
        remote_job(store).export_snapshot("kept")
    (failed,) = read_exports(store)
    assert failed.state is ExportState.FAILED and maps(store) == [], "no copied bytes are left"
    delete_export(store, "kept")
    assert read_exports(store) == ()


def test_what_a_late_writer_of_a_failed_export_leaves_is_garbage(store: Store, life: Life) -> None:
    exports, snapshots = ExportList(store), SnapshotStore(store, JOB)
    begun = exports.begin(exports.ask(Export("kept", JOB, token="t")), life.refs[0])
    assert begun is not None and exports.fail(begun, "its job was deleted")
    copy_snapshot(snapshots, export_data(store, begun), snapshots.load(life.refs[0]))
    assert maps(store) and exports.finish(begun, life.refs[0], 1) is None
    assert collect_export_garbage(store) > 0 and maps(store) == []


# --- crashes ------------------------------------------------------------------------------------


def begun_by_the_dead(store: Store, ref: SnapshotRef, token: str = "t") -> Export:
    """An attempt of a process that has died while it wrote."""
    exports = ExportList(store)
    begun = exports.begin(exports.ask(Export("kept", JOB, token=token)), ref)
    assert begun is not None
    dead = replace(begun, writer=DEAD)
    assert exports._move(begun, dead)
    data = store.map(dead.map_name)
    data.put_all({data.key("hourly/half"): b"half a chunk set"})
    return dead


def test_what_a_dead_process_has_begun_is_made_by_the_next(store: Store, life: Life) -> None:
    dead = begun_by_the_dead(store, life.refs[0])
    done = carry_out(store, dead, lambda: life.refs[0])
    assert done is not None and done.is_done and done.attempt != dead.attempt
    assert maps(store) == [done.map_name], "nothing is left of the dead one's"
    assert state(store, "kept") == life.expected[3]


def test_what_a_dead_process_has_written_is_garbage_and_the_wish_stays(
    store: Store, life: Life
) -> None:
    begun_by_the_dead(store, life.refs[0])
    assert collect_export_garbage(store) == 1 and maps(store) == []
    (asked,) = read_exports(store)
    assert asked.state is ExportState.ASKED


def test_an_attempt_under_way_is_no_garbage(store: Store, life: Life) -> None:
    exports = ExportList(store)
    begun = exports.begin(exports.ask(Export("kept", JOB, token="t")), life.refs[0])
    assert begun is not None
    data = export_data(store, begun)
    own = SnapshotStore(store, JOB)
    copy_snapshot(own, data, own.load(life.refs[0]))
    assert collect_export_garbage(store) == 0
    assert exports.finish(begun, life.refs[0], 8) is not None
    assert state(store, "kept") == life.expected[3]


def test_deleted_while_it_was_written_it_comes_to_nothing(store: Store, life: Life) -> None:
    def delete_then_choose() -> SnapshotRef:
        delete_export(store, "kept")
        return life.refs[0]

    asked = ExportList(store).ask(Export("kept", JOB, token="t"))
    assert carry_out(store, asked, delete_then_choose) is None
    begun = ExportList(store).begin(
        ExportList(store).ask(Export("kept", JOB, token="u")), life.refs[0]
    )
    assert begun is not None
    delete_export(store, "kept")
    assert ExportList(store).finish(begun, life.refs[0], 8) is None
    assert read_exports(store) == () and maps(store) == []


def test_of_two_that_make_one_export_one_counts(store: Store, life: Life) -> None:
    dead = begun_by_the_dead(store, life.refs[0])
    slow = ExportList(store)
    fast = carry_out(store, dead, lambda: life.refs[0])
    assert fast is not None
    assert slow.finish(dead, life.refs[0], 8) is None, "the sleeper wakes up"
    assert carry_out(store, dead, lambda: life.refs[0]) is None
    assert state(store, "kept") == life.expected[3]


def test_a_decision_that_seems_to_have_failed_is_not_taken_back(
    store: Store, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data must not be taken for that of an attempt that failed."""
    write = OwnedRegister.write

    def answer_is_lost(self: OwnedRegister, value: bytes) -> None:
        write(self, value)
        if b'"state":"done"' in value:
            raise WriteOutcomeUnknownError("too few members have confirmed it.")

    monkeypatch.setattr(OwnedRegister, "write", answer_is_lost)
    with pytest.raises(WriteOutcomeUnknownError):
        remote_job(store).export_snapshot("kept")
    monkeypatch.undo()
    (done,) = read_exports(store)
    assert done.is_done and state(store, "kept") == life.expected[3]


def test_what_the_store_refuses_is_given_back(
    store: Store, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = OwnedRegister.write

    def is_away(self: OwnedRegister, value: bytes) -> None:
        if b'"state":"done"' in value:
            raise StoreUnavailableError("the members are away.")
        write(self, value)

    monkeypatch.setattr(OwnedRegister, "write", is_away)
    with pytest.raises(StoreUnavailableError):
        remote_job(store).export_snapshot("kept")
    monkeypatch.undo()
    (asked,) = read_exports(store)
    assert asked.state is ExportState.ASKED and maps(store) == []
    with watcher(store, Exporting(), StopSignal()):
        pass  # whoever has the job next
    assert read_exports(store)[0].is_done


def test_a_snapshot_that_is_dropped_meanwhile_is_not_needed(store: Store, life: Life) -> None:
    """The job starts and drops the snapshot while somebody who found the job down is copying it."""
    chosen = []

    def choose() -> SnapshotRef:
        if not chosen:
            for snapshot_id in (4, 5, 6):
                life.snapshot(snapshot_id, base=snapshot_id == 4)
            life.execution_id = 2
            record = life.record()
            retained = SnapshotStore(store, JOB).load_retained(record.snapshots)
            stale = SnapshotRef(3, 103, 1, f"manifest/{3:012d}-1", 0, 0, 0, committed=True)
            SnapshotStore(store, JOB).delete_unreferenced(3, retained)
            chosen.append(stale)
            return stale
        return life.refs[0]

    asked = ExportList(store).ask(Export("kept", JOB, token="t"))
    done = carry_out(store, asked, choose)
    assert done is not None and done.snapshot_id == 6
    assert state(store, "kept") == life.expected[6] and maps(store) == [done.map_name]


# --- the owner ----------------------------------------------------------------------------------


def watcher(
    store: Store, exporting: Exporting, stop: StopSignal, *, takes: bool = True, last: int = 0
) -> ExportWatcher:
    return ExportWatcher(store, JOB, exporting, stop, takes_snapshots=takes, last_execution_id=last)


def test_the_owner_waits_for_a_snapshot_of_all_that_was_read(store: Store, life: Life) -> None:
    record = life.record(JobStatus.RUNNING)
    exporting, wanted = Exporting(), []

    def view() -> CoordinatorView:
        nonlocal record
        wanted.append(exporting.wants_snapshot)
        if len(wanted) == 2:
            life.snapshot(4)
            record = life.record(JobStatus.RUNNING)
        return CoordinatorView(record=record, undecided_epochs=1 if len(wanted) < 2 else 0)

    exporting.follow(view)
    ExportList(store).ask(Export("kept", JOB, token="t"))
    watcher(store, exporting, StopSignal()).look()
    (done,) = read_exports(store)
    assert done.is_done and done.epoch_id == 104, "not 103: epoch 104 had been read"
    assert all(wanted[1:]) and not exporting.wants_snapshot
    assert not exporting.garbage.locked()


def test_a_cancel_at_an_export_is_carried_out_at_the_end(store: Store, life: Life) -> None:
    exporting, stop = Exporting(), StopSignal()
    record = life.record(JobStatus.RUNNING)
    exporting.follow(lambda: CoordinatorView(record=record))
    asked = Export("final", JOB, token="t", cancels=True, asked_execution_id=1)
    ExportList(store).ask(asked)
    with watcher(store, exporting, stop) as watching:
        watching.look()
        assert stop.kind is StopKind.CANCEL_AND_EXPORT
        assert not read_exports(store)[0].is_done
        life.snapshot(4)
        life.record(JobStatus.FAILED)
        exporting.follow(None)
    (done,) = read_exports(store)
    assert done.is_done and done.snapshot_id == 4


def test_a_cancel_of_an_execution_that_is_over_is_none_of_the_next(
    store: Store, life: Life
) -> None:
    exporting, stop = Exporting(), StopSignal()
    record = life.record(JobStatus.RUNNING)
    exporting.follow(lambda: CoordinatorView(record=record))
    ExportList(store).ask(Export("final", JOB, token="t", cancels=True, asked_execution_id=1))
    watcher(store, exporting, stop, last=1).look()
    (failed,) = read_exports(store)
    assert failed.state is ExportState.FAILED and "had already ended" in (failed.failure or "")
    assert stop.kind is None


def test_a_cancel_of_a_deleted_job_is_none_of_the_next_of_its_name(
    store: Store, life: Life
) -> None:
    exporting, stop = Exporting(), StopSignal()
    ExportList(store).ask(Export("old", JOB, token="t", cancels=True, asked_execution_id=1))
    delete_job(store, JOB)
    last = last_execution_id(store, JOB)
    record = ExecutionRecord(JOB, last + 1, JobStatus.RUNNING)
    exporting.follow(lambda: CoordinatorView(record=record))
    watching = watcher(store, exporting, stop, last=last)
    watching.look()
    (failed,) = read_exports(store)
    assert failed.state is ExportState.FAILED and stop.kind is None
    # One from the process that starts it, before it has claimed the record.
    with pytest.raises(TimeoutError):
        export_snapshot(store, JOB, "new", 0, cancels=True, drives=lambda: True)
    watching.look()
    assert stop.kind is StopKind.CANCEL_AND_EXPORT


def test_without_a_guarantee_there_is_nothing_to_export(store: Store, life: Life) -> None:
    ExportList(store).ask(Export("kept", JOB, token="t"))
    watcher(store, Exporting(), StopSignal(), takes=False).look()
    (failed,) = read_exports(store)
    assert 'the guarantee "none"' in (failed.failure or "")


def test_what_another_living_process_writes_is_left_to_it(store: Store, life: Life) -> None:
    exports = ExportList(store)
    begun = exports.begin(exports.ask(Export("kept", JOB, token="t")), life.refs[0])
    assert begun is not None and begun.writer is not None
    parent = os.getppid()
    lease = replace(begun.writer, pid=parent, process_started_at_ms=_started(parent))
    theirs = replace(begun, writer=lease)
    assert exports._move(begun, theirs)
    with watcher(store, Exporting(), StopSignal()):
        pass
    assert read_exports(store) == (theirs,)


def _started(pid: int) -> int:
    from dagster_jet.system.process import start_ticks

    return start_ticks(pid) or 0


# --- the list -----------------------------------------------------------------------------------


def test_the_list_round_trips_and_newer_formats_are_refused() -> None:
    ref = SnapshotRef(3, 103, 1, "m", 5, 1_000, 8, committed=True)
    done = Export("b", JOB, "t", ExportState.DONE, attempt="x", ref=ref, bytes=9)
    exports = Exports().with_(done).with_(Export("a", "other", writer=DEAD))
    assert Exports.from_bytes(exports.to_bytes()) == exports
    assert [one.name for one in exports.entries] == ["a", "b"]
    newer = exports.to_bytes().replace(b'"format":1,"exports"', b'"format":2,"exports"')
    with pytest.raises(Exception, match="Upgrade dagster-jet"):
        Exports.from_bytes(newer)


def test_a_write_that_was_overtaken_and_adopted_counts_once() -> None:
    asked = Export("a", JOB, "t")
    exports = Exports().asked(asked)
    assert exports.asked(asked) == exports
    begun = replace(asked, state=ExportState.WRITING, attempt="1")
    moved = exports.moved(asked, begun)
    assert moved is not None and moved.moved(asked, begun) == moved
    assert moved.moved(asked, replace(begun, attempt="2")) is None

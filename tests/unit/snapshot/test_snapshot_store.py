"""Retained snapshots of which one is damaged: known by name, and nothing that it may need is
deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.ownership.garbage import JobGarbage, collect_garbage
from dagster_jet.ownership.record_keeper import JOB_DIRECTORY, record_register
from dagster_jet.snapshot.manifest import ChunkSet, Manifest, checksum
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store, StoreConfig

JOB = "flights"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    config = StoreConfig((f"file://{tmp_path}/m",), backup_count=0, partition_count=3)
    with Store.open(config) as store:
        yield store


def chunk_set(snapshot_id: int) -> str:
    return f"hourly/{snapshot_id:012d}-1-0-a0"


def taken(store: Store, snapshot_id: int, *needs: int) -> SnapshotRef:
    """A snapshot of execution 1 with a chunk set of its own, which needs those of others, too."""
    chain = tuple(ChunkSet(chunk_set(i), 0, 1, 1, 8) for i in (*needs, snapshot_id))
    manifest = Manifest(JOB, snapshot_id, 9, 1, 1, "", 3, {}, {}, {"hourly": (chain,)}, ())
    state = store.map(f"jobs/{JOB}/state")
    own = chunk_set(snapshot_id)
    state.put_all({state.key(manifest.name): manifest.to_bytes()})
    state.put_all({state.key(f"{own}/index"): b"index", state.key(own): b"chunk"})
    digest = checksum(manifest.to_bytes())
    return SnapshotRef(snapshot_id, 9, 1, manifest.name, digest, 0, 8, committed=True)


def names(store: Store) -> set[str]:
    return {key.name.removesuffix("/index") for key in store.map(f"jobs/{JOB}/state").keys("")}


def test_a_damaged_older_one_is_named_and_what_it_may_need_stays(store: Store) -> None:
    refs = [taken(store, i, *needs) for i, needs in ((9, (5,)), (7, (3, 5)), (5, ()), (3, ()))]
    taken(store, 8)  # nobody's
    newest, damaged, good, lost = refs
    state = store.map(f"jobs/{JOB}/state")
    state.put_all({state.key(damaged.manifest_name): b"another manifest"})
    state.delete_all([state.key(lost.manifest_name)])
    snapshots = SnapshotStore(store, JOB)

    retained = snapshots.load_retained(refs)
    assert set(retained.manifests) == {9, 5} and set(retained.damaged) == {7, 3}
    assert "not the one" in retained.damaged[7] and "missing" in retained.damaged[3]
    snapshots.delete_unreferenced(2, retained)
    assert {chunk_set(i) for i in (9, 7, 5, 3)} < names(store), "7 may need all but 9"
    assert chunk_set(8) not in names(store), "newer than 7: it cannot be its"

    record = ExecutionRecord(JOB, 1, JobStatus.SUSPENDED, snapshots=tuple(refs))
    directory = store.map(JOB_DIRECTORY)
    directory.put_all({directory.key(JOB): b""})
    register = store.register(record_register(JOB))
    register.claim(1, "me").write(record.to_bytes())
    assert collect_garbage(store) == [JobGarbage(JOB)], "nor when the job is at rest"

    # The record has dropped them: nobody can go back there any more.
    dropped = replace(record, snapshots=(newest, good))
    register.claim(2, "me").write(dropped.to_bytes())
    collect_garbage(store)
    kept = {newest.manifest_name, good.manifest_name, chunk_set(9), chunk_set(5)}
    assert names(store) == kept


def test_the_newest_one_must_be_whole(store: Store) -> None:
    refs = [taken(store, 9), taken(store, 7)]
    state = store.map(f"jobs/{JOB}/state")
    state.delete_all([state.key(refs[0].manifest_name)])
    with pytest.raises(SnapshotInvalidError, match="missing"):
        SnapshotStore(store, JOB).load_retained(refs)

"""Snapshots of local jobs in the store: which is the latest, and that it is whole."""

import pickle

import pytest

from dagster_jet.core.saved_entry import SavedEntry
from dagster_jet.engine.local import Snapshot, StoredSnapshots
from dagster_jet.store import Store, StoreConfig


@pytest.fixture
def store(tmp_path):
    config = StoreConfig((f"file://{tmp_path}/a",), backup_count=0, partition_count=7)
    with Store.open(config) as store:
        yield store


def snapshot(snapshot_id: int, data: bytes, **others) -> Snapshot:
    return Snapshot(snapshot_id, {"v": (SavedEntry(3, data), SavedEntry(None, data))}, **others)


def test_the_latest_is_the_last_that_was_kept_and_nothing_of_the_others_remains(store):
    snapshots, chunks = StoredSnapshots(store, "job"), store.map("local_jobs/job")
    assert snapshots.latest() is None
    for kept in (
        snapshot(7, b"first", partition_count=271),
        snapshot(8, b"first", partition_count=271),
        snapshot(8, b"restored from 7"),
        snapshot(8, b"and again"),
        snapshot(2, b"restored from 1"),
    ):
        snapshots.put(kept)
        assert snapshots.latest() == kept
        assert len(chunks.keys()) == 3, "two chunks and the header"
    snapshots.clear()
    assert chunks.keys() == [] and snapshots.latest() is None


def test_another_timeline_that_comes_to_the_same_id_and_crashes_leaves_the_latest_whole(store):
    snapshots, kept = StoredSnapshots(store, "job"), snapshot(8, b"first")
    snapshots.put(kept)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        snapshots.put(snapshot(8, b"restored from 7", ended={"v": lambda: "no header of this"}))
    assert snapshots.latest() == kept


def test_a_header_of_an_older_version_does_not_say_how_many_partitions_there_were(store):
    snapshots, chunks = StoredSnapshots(store, "job"), store.map("local_jobs/job")
    snapshots.put(snapshot(8, b"old", partition_count=271))
    header = pickle.loads(chunks.get(chunks.key("latest")))
    del header.__dict__["partition_count"]
    chunks.put_all({chunks.key("latest"): pickle.dumps(header)})
    assert snapshots.latest() == snapshot(8, b"old", partition_count=None)

"""A running job drops snapshots while somebody reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import Jet
from dagster_jet.errors import JobStateError, SnapshotInvalidError
from dagster_jet.ownership.garbage import collect_garbage
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store, StoreConfig
from tests.unit.orchestration.recorded_job import RecordedJob

from .test_exports import JOB, PARTITIONS, Life, remote_job, three_snapshots


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    config = StoreConfig((f"file://{tmp_path}/a",), backup_count=0, partition_count=PARTITIONS)
    with Store.open(config) as store:
        yield store


@pytest.fixture
def life(store: Store) -> Life:
    return three_snapshots(store)


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Does something before each of the first reads of the store."""

    def arrange(method: str, times: int, act: Callable[[], None]) -> None:
        read, left = getattr(SnapshotStore, method), [None] * times

        def after_the_act(self: SnapshotStore, *args: Any) -> Any:
            if left:
                left.pop()
                act()
            return read(self, *args)

        monkeypatch.setattr(SnapshotStore, method, after_the_act)

    return arrange


def going_on(life: Life) -> Callable[[], None]:
    """Takes two more snapshots, and deletes the data of all before."""

    def go_on() -> None:
        newest = life.refs[0].snapshot_id
        life.execution_id += 1
        life.snapshot(newest + 1, base=True)
        life.snapshot(newest + 2)
        life.record()
        collect_garbage(life.store)

    return go_on


@pytest.mark.parametrize("method", ["load", "read_state"])
def test_the_newest_is_the_one_that_is_there(
    store: Store, life: Life, before: Callable[..., None], method: str
) -> None:
    before(method, 2, going_on(life))
    table = remote_job(store).read_state("hourly", as_saved=True)
    assert table is not None and life.refs[0].snapshot_id == 7
    assert sorted(table["n"].to_pylist()) == life.expected[7]


def test_a_job_that_is_faster_than_its_reader(
    store: Store, life: Life, before: Callable[..., None]
) -> None:
    before("read_state", 99, going_on(life))
    with pytest.raises(JobStateError, match=r"has dropped snapshot \d+ while it was read"):
        remote_job(store).read_state("hourly")


@pytest.mark.parametrize("method", ["load", "read_state"])
def test_one_that_was_asked_for_by_its_id_is_said_to_be_dropped(
    store: Store, life: Life, before: Callable[..., None], method: str
) -> None:
    before(method, 1, going_on(life))
    with pytest.raises(JobStateError, match=r"has dropped snapshot 3 .*Export the snapshot"):
        remote_job(store).read_state("hourly", snapshot=3)
    before(method, 1, going_on(life))
    older, newer = (ref.snapshot_id for ref in reversed(life.refs))
    with pytest.raises(JobStateError, match=f"has dropped snapshot ({older}|{newer}) "):
        remote_job(store).diff(older, newer)


def test_one_that_is_damaged_is_not_called_dropped(store: Store, life: Life) -> None:
    newest = SnapshotStore(store, JOB).load(life.refs[0])
    SnapshotStore(store, JOB).delete([], newest.chunk_sets())
    with pytest.raises(SnapshotInvalidError, match="is missing"):
        remote_job(store).read_state("hourly")


def test_the_ledger_begins_anew(tmp_path: Path, before: Callable[..., None]) -> None:
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        job, number = RecordedJob(jet, "j", listed=True), count(1)

        def go_on() -> None:
            known = [ref.snapshot_id for ref in jet.job("j").snapshots()]
            for _ in range(2):
                job.commits(next(number), {"out": 1})
            job.drops(*known)

        go_on()
        before("load", 2, go_on)
        entry = jet.job("j").ledger().entries["out"]
        assert (entry.epoch_id, entry.decided_epoch_id) == (6, 6)
        before("load", 99, go_on)
        with pytest.raises(SnapshotInvalidError, match="is missing"):
            jet.job("j").ledger()


def test_the_ledger_does_not_need_older_snapshots(tmp_path: Path) -> None:
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        job = RecordedJob(jet, "j", listed=True)
        for snapshot_id in (1, 2, 3):
            job.commits(snapshot_id, {"out": 1})
        newest, middle, _ = jet.job("j").snapshots()
        SnapshotStore(jet.store, "j").delete([middle.manifest_name], {})
        entry = jet.job("j").ledger().entries["out"]
        assert (entry.epoch_id, entry.decided_epoch_id) == (3, 3)
        SnapshotStore(jet.store, "j").delete([newest.manifest_name], {})
        with pytest.raises(SnapshotInvalidError, match="is missing"):
            jet.job("j").ledger()

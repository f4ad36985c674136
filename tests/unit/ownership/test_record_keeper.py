"""Claims of a job: an owner whose lease is renewed before our eyes lives, whatever the clocks
say."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_jet.errors import LeaseHeldError
from dagster_jet.ownership import lease as leases
from dagster_jet.ownership import record_keeper
from dagster_jet.ownership.record_keeper import RecordKeeper, read_record
from dagster_jet.snapshot.protocol import Failed, Purpose, WriteOutcome
from dagster_jet.snapshot.record import Doing, ExecutionRecord, JobStatus, Lease
from dagster_jet.store import Store, StoreConfig
from dagster_jet.store.members.file import FileMember

TTL_MS = 600
HOUR_MS = 3_600_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(StoreConfig(tuple(f"file://{tmp_path}/{m}" for m in "abc")))
    yield store
    store.close()


def keeper(store: Store) -> RecordKeeper:
    return RecordKeeper(store, "j", TTL_MS, run_id=None)


def claimed(keeper: RecordKeeper) -> ExecutionRecord:
    return keeper.claim(change=None)


def pretend_another_host(monkeypatch: pytest.MonkeyPatch, clock_ahead_ms: int) -> None:
    """Makes this process look like one on another host with another clock."""
    real = leases.wall_clock_ms
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    for module in (leases, record_keeper):
        monkeypatch.setattr(module, "wall_clock_ms", lambda: real() + clock_ahead_ms)


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, HOUR_MS])
def test_a_living_owner_keeps_the_job_whatever_our_clock_says(
    store: Store, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    owner = keeper(store)
    record = claimed(owner)
    pretend_another_host(monkeypatch, ahead_ms)
    with pytest.raises(LeaseHeldError, match="execution 1 is alive"):
        claimed(keeper(store))
    assert not owner.fenced.is_set()
    owner.release(record)


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, HOUR_MS])
def test_a_dead_owner_is_waited_for_as_long_as_its_lease_lives_and_no_longer(
    store: Store, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    owner = keeper(store)
    claimed(owner)
    owner.abandon()  # as if dead: it renews nothing, and its lease stands in the record
    pretend_another_host(monkeypatch, ahead_ms)
    successor = keeper(store)
    began = time.monotonic()
    assert claimed(successor).execution_id == 2
    assert TTL_MS / 1000 <= time.monotonic() - began < 10 * TTL_MS / 1000
    successor.release(None)


def test_a_dead_owner_of_this_host_is_not_waited_for(store: Store) -> None:
    owner = keeper(store)
    record = claimed(owner)
    owner.abandon()
    assert record.lease is not None
    gone = replace(record.lease, pid=2**22 + 1, ttl_ms=HOUR_MS)  # above the largest pid there is
    leave(store, replace(record, lease=gone))
    successor = keeper(store)
    assert claimed(successor).restarts == 1
    successor.release(None)


@pytest.mark.parametrize(
    "elsewhere", ["another boot pid:[4026531836]", "{boot} pid:[4026532999]", ""]
)
def test_a_process_id_of_another_container_says_nothing(store: Store, elsewhere: str) -> None:
    """The owner has the same host name, or is on the same machine in another namespace. Its process
    is not found here; that must not make a living owner look dead."""
    owner = keeper(store)
    lease = claimed(owner).lease
    assert lease is not None and leases.is_owner_alive(lease) is True
    boot = lease.pid_scope.split(" ")[0]
    far = replace(lease, pid=2**22 + 1, pid_scope=elsewhere.format(boot=boot))
    assert leases.is_owner_alive(far) is None
    near = replace(lease, pid=2**22 + 1)
    assert leases.is_owner_alive(near) is False
    owner.release(None)


def leave(store: Store, record: ExecutionRecord) -> None:
    """Write a record as its owner would have, and vanish."""
    register = store.register(record_keeper.record_register("j"))
    register.claim(record.execution_id + 1, "gone").write(record.to_bytes())


def test_a_clock_that_is_set_back_does_not_silence_the_heartbeat(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = keeper(store)
    record = claimed(owner)
    real = leases.wall_clock_ms
    for module in (leases, record_keeper):
        monkeypatch.setattr(module, "wall_clock_ms", lambda: real() - HOUR_MS)
    assert record.lease is not None
    renewed = wait_for_renewal(store, record.lease)
    assert renewed.renewed_at_ms < record.lease.renewed_at_ms
    wait_for_renewal(store, renewed)
    owner.release(record)


def test_a_heartbeat_that_too_few_confirm_ends_the_ownership(tmp_path: Path) -> None:
    """The execution must learn of it and begin anew, as it can decide nothing more."""
    with Store.open(StoreConfig(tuple(f"file://{tmp_path}/{m}" for m in "abc"))) as store:
        owner = keeper(store)
        record = claimed(owner)
        for member in "bc":
            (tmp_path / member).rename(tmp_path / f"lost-{member}")
        deadline = time.monotonic() + 10 * TTL_MS / 1000
        while owner.ended_because is None:
            assert time.monotonic() < deadline, "the heartbeat says nothing"
            threading.Event().wait(0.02)
        assert "outcome" in owner.ended_because and f"{tmp_path}/b" in owner.ended_because
        for member in "bc":
            (tmp_path / f"lost-{member}").rename(tmp_path / member)
        assert owner.write(record, Purpose.RUNNING) is WriteOutcome.UNKNOWN
        successor = RecordKeeper(store, "j", TTL_MS, run_id=None, predecessor=owner)
        successor.release(claimed(successor))
        owner.abandon()


def test_a_resting_owner_renews_its_lease_and_decides_nothing(store: Store) -> None:
    owner = keeper(store)
    record = claimed(owner)
    owner.rest("the sink is away")
    assert owner.write(replace(record, members_max=9), Purpose.SNAPSHOT) is WriteOutcome.FENCED
    assert record.lease is not None
    renewed = wait_for_renewal(store, wait_for_renewal(store, record.lease))
    assert "starting" in str(renewed.activity) and "the sink is away" in str(renewed.activity)
    assert read_record(store, "j") == replace(record, lease=renewed)
    successor = RecordKeeper(store, "j", TTL_MS, run_id=None, predecessor=owner)
    second = claimed(successor)
    owner.release(None)
    assert second.execution_id == 2 and not successor.is_lost
    successor.release(second)


def test_an_idle_owner_that_rests_was_not_fruitless(store: Store) -> None:
    predecessor, fruitless = None, []
    for is_idle in (True, True, False):
        owner = RecordKeeper(store, "j", TTL_MS, run_id=None, predecessor=predecessor)
        fruitless.append(claimed(owner).fruitless)
        owner.activity_tracker.at(Doing.IDLE if is_idle else Doing.EPOCH)
        record = owner.record
        assert record is not None and record.lease is not None
        owner.write(replace(record, status=JobStatus.RUNNING), Purpose.RUNNING)
        owner.rest("the source is away")
        assert owner.record is not None and owner.record.lease is not None
        wait_for_renewal(store, owner.record.lease)
        if predecessor is not None:
            predecessor.release(None)
        predecessor = owner
    last = RecordKeeper(store, "j", TTL_MS, run_id=None, predecessor=predecessor)
    assert [*fruitless, claimed(last).fruitless] == [0, 0, 0, 1]
    assert predecessor is not None
    predecessor.release(None)
    last.release(last.record)


def test_a_heartbeat_that_raises_what_no_store_foresees_ends_the_ownership(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = keeper(store)
    record = claimed(owner)
    told: queue.SimpleQueue[object] = queue.SimpleQueue()
    owner.listen(told.put)
    with fail_once(monkeypatch, FileMember, "compare_and_set", MemoryError("no room")):
        assert told.get(timeout=10 * TTL_MS / 1000) == Failed(
            "a write of the record raised MemoryError: no room", restartable=True
        )
    assert owner.is_lost and owner.write(record, Purpose.RUNNING) is WriteOutcome.UNKNOWN
    successor = RecordKeeper(store, "j", TTL_MS, run_id=None, predecessor=owner)
    successor.release(claimed(successor))
    owner.abandon()


def test_a_heartbeat_that_fails_before_its_write_beats_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = keeper(store)
    record = claimed(owner)
    assert record.lease is not None
    with fail_once(monkeypatch, record_keeper, "new_lease", MemoryError()) as failed:
        assert failed.wait(10 * TTL_MS / 1000)
    wait_for_renewal(store, record.lease)
    assert not owner.is_lost
    owner.release(record)


@contextmanager
def fail_once(
    monkeypatch: pytest.MonkeyPatch, of: Any, name: str, error: Exception
) -> Iterator[threading.Event]:
    """Makes the next call raise; yields an event that is set when it has."""
    real, failed = getattr(of, name), threading.Event()

    def call(*args: Any, **kwargs: Any) -> Any:
        if failed.is_set():
            return real(*args, **kwargs)
        failed.set()
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(of, name, call)
        yield failed


def wait_for_renewal(store: Store, lease: Lease) -> Lease:
    deadline = time.monotonic() + 10 * TTL_MS / 1000
    while time.monotonic() < deadline:
        record = read_record(store, "j")
        assert record is not None and record.lease is not None
        if record.lease != lease:
            return record.lease
        threading.Event().wait(0.02)
    raise AssertionError("the lease is not renewed")

"""A process carries out the requests that are meant for it, each once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.jobs.requests import RequestWatcher, request
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.store import Store, StoreConfig
from dagster_jet.store.quorum.client import OwnedRegister

LAST, OURS = 3, 4
"""The last execution before this process's first, and that one."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(StoreConfig(tuple(f"file://{tmp_path}/{m}" for m in "abc")))
    yield store
    store.close()


@pytest.fixture
def stop() -> StopSignal:
    return StopSignal()


def watcher(store: Store, stop: StopSignal) -> RequestWatcher:
    return RequestWatcher(store, "j", stop, last_execution_id=LAST)


def look_in_vain(watcher: RequestWatcher, store: Store, folder: Path) -> None:
    """A look while no majority of the members is there."""
    for member in "bc":
        (folder / member).rename(folder / f"lost-{member}")
    with pytest.raises(StoreUnavailableError):
        read_record(store, "j")
    watcher.look()
    for member in "bc":
        (folder / f"lost-{member}").rename(folder / member)


def test_a_request_is_heard_on_the_watchers_own_thread(store: Store, stop: StopSignal) -> None:
    with watcher(store, stop):
        request(store, "j", StopKind.SUSPEND, OURS)
        assert stop.event.wait(30)
    assert stop.kind is StopKind.SUSPEND


def test_a_request_of_a_newer_version_ends_nothing(store: Store, stop: StopSignal) -> None:
    with watcher(store, stop):
        register = store.register("jobs/j/request")
        unknown = json.dumps({"kind": "hibernate", "execution_id": OURS}).encode()
        register.claim(1, "newer").write(unknown)
        watcher(store, StopSignal()).look()
        request(store, "j", StopKind.SUSPEND, OURS)
        assert stop.event.wait(30)
    assert stop.kind is StopKind.SUSPEND


def test_a_request_is_carried_out_once(store: Store, stop: StopSignal) -> None:
    watching = watcher(store, stop)
    watching.look()
    request(store, "j", StopKind.RESTART, OURS)
    watching.look()
    assert stop.kind is StopKind.RESTART
    stop.restarted()
    watching.look()
    assert stop.kind is None
    request(store, "j", StopKind.RESTART, OURS + 1)
    watching.look()
    assert stop.kind is StopKind.RESTART


def test_one_that_was_there_before_is_not_for_us(store: Store, stop: StopSignal) -> None:
    request(store, "j", StopKind.CANCEL, LAST)
    watching = watcher(store, stop)
    watching.look()
    watching.look()
    assert stop.kind is None


def test_nor_is_it_when_the_first_looks_were_in_vain(
    store: Store, stop: StopSignal, tmp_path: Path
) -> None:
    request(store, "j", StopKind.CANCEL, LAST)
    watching = watcher(store, stop)
    look_in_vain(watching, store, tmp_path)
    watching.look()
    assert stop.kind is None
    request(store, "j", StopKind.SUSPEND, OURS)
    watching.look()
    assert stop.kind is StopKind.SUSPEND


def test_one_for_us_is_heard_although_all_looks_before_were_in_vain(
    store: Store, stop: StopSignal, tmp_path: Path
) -> None:
    watching = watcher(store, stop)
    look_in_vain(watching, store, tmp_path)
    request(store, "j", StopKind.SUSPEND, OURS)
    watching.look()
    assert stop.kind is StopKind.SUSPEND


def test_one_while_we_wait_for_a_dead_owners_lease_is_for_us(
    store: Store, stop: StopSignal
) -> None:
    """The dead owner's record says RUNNING until we have the job: the request is for the job."""
    watching = watcher(store, stop)
    watching.look()
    request(store, "j", StopKind.CANCEL, LAST)
    watching.look()
    assert stop.kind is StopKind.CANCEL


def test_a_look_in_vain_forgets_nothing(store: Store, stop: StopSignal, tmp_path: Path) -> None:
    request(store, "j", StopKind.CANCEL, OURS)
    watching = watcher(store, stop)
    watching.look()
    stop.kind = None
    look_in_vain(watching, store, tmp_path)
    watching.look()
    assert stop.kind is None


def test_a_look_between_the_claim_and_the_write_of_a_request_does_not_lose_it(
    store: Store, stop: StopSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim puts the old request under the new ballot: not to be taken for the new request."""
    watching = watcher(store, stop)
    request(store, "j", StopKind.RESTART, OURS)
    watching.look()
    write = OwnedRegister.write

    def look_first(self: OwnedRegister, value: bytes) -> None:
        watching.look()
        write(self, value)

    monkeypatch.setattr(OwnedRegister, "write", look_first)
    request(store, "j", StopKind.SUSPEND, OURS)
    watching.look()
    assert stop.kind is StopKind.SUSPEND


@pytest.mark.parametrize("first", [StopKind.CANCEL, StopKind.SUSPEND])
def test_a_later_request_does_not_hide_one_that_counts_more(
    store: Store, stop: StopSignal, first: StopKind
) -> None:
    watching = watcher(store, stop)
    watching.look()
    request(store, "j", first, OURS)
    request(store, "j", StopKind.RESTART, OURS)
    watching.look()
    assert stop.kind is first
    request(store, "j", StopKind.RESTART, OURS + 1)
    stop.kind = None
    watching.look()
    assert stop.kind is StopKind.RESTART, "another execution, which nobody asked for the first"

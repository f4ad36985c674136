"""The store is repaired around members that stay away: by one process, once, never too far."""

import queue
from typing import Any

import pytest

from dagster_jet.errors import MembersChangedError, StoreUnavailableError, StoreUnwritableError
from dagster_jet.execution.events import JobEvent, MembersNotRepaired, MembersRepaired
from dagster_jet.jobs.members_repairer import MembersRepairer
from dagster_jet.store import MemoryMember, Store
from dagster_jet.store.upkeep import administration

from .copies import assert_whole, filled

Events = queue.SimpleQueue[JobEvent]


def repairer(store: Store, events: Events, timeout_s: float = 0.2) -> MembersRepairer:
    return MembersRepairer(store, "job", timeout_s, events.put)


def test_a_member_that_stays_away_is_repaired_around_by_one_of_those_who_wait(places: Any) -> None:
    events: Events = queue.SimpleQueue()
    with (
        Store.open(places.config()) as store,
        Store.open(places.config()) as other,
        repairer(store, events),
        repairer(other, events),
    ):
        items = filled(store)
        places.take_away("b")
        repaired = events.get(timeout=30)
        assert isinstance(repaired, MembersRepaired)
        assert repaired.members == (places.url("b"),)
        assert repaired.partitions > 0
        assert_whole(store, places, items, "ac")
        number = store.configuration_number
        # It is a stranger now: nobody takes it in again unasked, and nobody repairs a second time.
        places.bring_back("b")
        with pytest.raises(queue.Empty):
            events.get(timeout=1)
        store.refresh()
        assert store.configuration_number == number
        store.add_member(places.url("b"))
        assert_whole(store, places, items, "abc")


def test_a_store_that_cannot_do_without_is_left_alone_and_that_is_told_once(places: Any) -> None:
    events: Events = queue.SimpleQueue()
    with (
        Store.open(places.config(backup_count=2)) as store,
        repairer(store, events) as waiting,
    ):
        places.take_away("b")
        assert not waiting.expects_repair(), "a job does not wait for what will not come"
        told = events.get(timeout=30)
        assert isinstance(told, MembersNotRepaired)
        assert "backup_count=2 needs 3. Add another member first" in told.reason
        with pytest.raises(queue.Empty):
            events.get(timeout=1)
        places.bring_back("b")
        assert store.configuration_number == 0
        assert store.is_safe()


def test_below_a_majority_nothing_is_done(places: Any) -> None:
    events: Events = queue.SimpleQueue()
    with Store.open(places.config("abcde")) as store, repairer(store, events) as waiting:
        for name in "abc":
            places.take_away(name)
        assert not waiting.expects_repair()
        with pytest.raises(queue.Empty):
            events.get(timeout=1)
        for name in "abc":
            places.bring_back(name)
        store.refresh()
        assert store.configuration_number == 0


def test_a_member_that_answers_and_refuses_is_not_away(
    places: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(member: MemoryMember) -> None:
        if member.member_id == places.url("b"):
            raise StoreUnwritableError(f"{member.member_id}: no space left on device.")

    with Store.open(places.config()) as store:
        monkeypatch.setattr(MemoryMember, "ping", full)
        assert store.away() == {}
        assert store.give_up([places.url("b")]).left == []


def test_a_turn_is_one_processs_until_it_ends_or_is_not_heard_of(places: Any) -> None:
    with Store.open(places.config()) as store:
        first, second = store.repair_lease(), store.repair_lease()
        assert not first.is_abandoned(0)
        assert first.acquire(60)
        assert not second.acquire(60)
        first.renew()
        assert not second.acquire(60), "it lives"
        assert first.acquire(60), "to go on with what it broke off"
        assert second.is_abandoned(0)
        assert second.acquire(0)
        first._next_beat = 0
        with pytest.raises(MembersChangedError, match="another process"):
            first.renew()
        first.release()
        assert not first.acquire(60), "what another has is not given back"
        second.release()
        assert first.acquire(60)


def test_what_one_has_left_half_done_another_finishes(
    places: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: Events = queue.SimpleQueue()
    with Store.open(places.config()) as store, Store.open(places.config()) as other:
        items = filled(store)
        places.take_away("b")

        def die(*_: object, **__: object) -> None:
            raise StoreUnavailableError("the process died while it was copying.")

        with monkeypatch.context() as patched:
            patched.setattr(administration, "migrate", die)
            assert store.repair_lease().acquire(60)
            with pytest.raises(StoreUnavailableError, match="died"):
                store.give_up([places.url("b")])
        monkeypatch.setattr("dagster_jet.jobs.members_repairer._DEAD_AFTER_S", 0.3)
        with repairer(other, events):
            while other.repair_lease().is_abandoned(-1):
                other.refresh()
        assert_whole(store, places, items, "ac")

"""Verifying reads every copy, names what is wrong, and repairs it from good copies."""

from typing import Any

import pytest

from dagster_jet.store import MapKey, Store, UpkeepProgress
from dagster_jet.store.values.envelope import seal


@pytest.fixture
def store(places: Any) -> Any:
    with Store.open(places.config()) as store:
        store.map("m").put_all({MapKey(p, f"k{i}"): b"v" * 50 for p in range(12) for i in range(3)})
        store.map("other/map").put_all({MapKey(3, "k"): b""})
        yield store


def copies_of(store: Store, places: Any, partition: int) -> list[Any]:
    return [places.member(m[9:10]) for m in store.table.replicas[partition]]


def stored(partition: int, name: str = "k0") -> bytes:
    return f"map/default/m/{partition:04d}/{name}".encode()


def test_a_whole_store_is_read_to_the_last_copy(store: Store) -> None:
    told: list[UpkeepProgress] = []
    found = store.verify(on_progress=told.append)
    assert (found.keys, found.copies, found.is_whole) == (37, 74, True)
    assert found.bytes == 36 * 2 * len(seal(b"v" * 50)) + 2 * len(seal(b""))
    assert (told[-1].done, told[-1].total, told[-1].bytes) == (12, 12, found.bytes)


def spoil(store: Store, places: Any) -> None:
    copies_of(store, places, 0)[0].delete_many([stored(0)])
    copies_of(store, places, 1)[1].delete_many([stored(1)])
    copies_of(store, places, 2)[0].put_many({stored(2): seal(b"v" * 50)[:-1]})
    copies_of(store, places, 3)[1].put_many({stored(3): b""})
    copies_of(store, places, 4)[1].put_many({stored(4): seal(b"another value")})


def test_what_is_wrong_is_counted_and_left_alone(store: Store, places: Any) -> None:
    spoil(store, places)
    for _ in range(2):
        found = store.verify()
        assert (found.missing, found.damaged, found.differing) == (2, 2, 0)
        assert (found.repaired, found.lost, found.is_whole) == (0, [], False)
        assert found.undecided == ["default:m [4] k0"]


def test_what_is_wrong_is_repaired_and_what_nothing_decides_is_left_and_named(
    store: Store, places: Any
) -> None:
    spoil(store, places)
    found = store.verify(repair=True)
    assert (found.missing, found.damaged, found.repaired) == (2, 2, 4)
    assert (found.undecided, found.is_whole) == (["default:m [4] k0"], False)
    store.map("m").put_all({MapKey(4, "k0"): b"v" * 50})
    found = store.verify()
    assert (found.keys, found.copies, found.is_whole) == (37, 74, True)
    assert found.missing + found.damaged + found.differing == 0


@pytest.mark.parametrize("at", [0, 1])
def test_of_two_versions_the_newer_one_is_kept_wherever_it_is(
    store: Store, places: Any, at: int
) -> None:
    values = store.map("user/m")
    old, new = b"\0" * 7 + b"\x07old", b"\0" * 7 + b"\x08new"
    values.put_newer({MapKey(0, "k"): new})
    older = copies_of(store, places, 0)[at]
    older.put_many({b"map/default/user%2Fm/0000/k": seal(old)})
    found = store.verify(repair=True)
    assert (found.differing, found.repaired, found.is_whole) == (1, 1, True)
    assert values.get(MapKey(0, "k")) == new
    assert {
        c.get_many([b"map/default/user%2Fm/0000/k"])[0] for c in copies_of(store, places, 0)
    } == {seal(new)}


def test_a_key_without_a_good_copy_is_lost_and_named(store: Store, places: Any) -> None:
    for member in copies_of(store, places, 5):
        member.put_many({stored(5, "k2"): b"damaged"})
    copies_of(store, places, 6)[0].put_many({stored(6, "k1"): b"damaged"})
    copies_of(store, places, 6)[1].delete_many([stored(6, "k1")])
    found = store.verify(repair=True)
    assert found.lost == ["default:m [5] k2", "default:m [6] k1"]
    assert not found.is_whole


def test_a_member_that_does_not_answer_is_named(store: Store, places: Any) -> None:
    places.take_away("b")
    found = store.verify(repair=True)
    assert list(found.unreachable) == [places.url("b")]
    assert (found.keys, found.missing, found.is_whole) == (37, 0, False)


def test_a_damaged_value_moves_as_it_is_and_is_still_refused(store: Store, places: Any) -> None:
    """A copy that nobody can read must not turn into a key that does not exist."""
    for partition in range(12):
        for member in copies_of(store, places, partition):
            member.put_many({stored(partition): b"damaged"})
    changes = store.add_member(places.url("d"))
    moved = sum(places.url("d") in held for held in store.table.replicas)
    assert len(changes.migrated.damaged) == moved == 6
    assert len(store.verify().lost) == 12


def test_values_that_do_not_fit_a_batch_are_copied_too(
    places: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_jet.store.map.batching.BATCH_BYTES", 1_000)
    with Store.open(places.config("abc", partition_count=2)) as store:
        items = {MapKey(0, f"k{i}"): b"x" * (i * 37) for i in range(100)}
        store.map("m").put_all(items)
        for name in "def":
            store.add_member(places.url(name))
        for name in "abc":
            store.remove_member(places.url(name))
        assert store.map("m").get_all(list(items)) == list(items.values())
        assert store.verify().is_whole

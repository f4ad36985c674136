"""Members join, leave, are lost and replaced: afterwards every copy is where the table says."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from dagster_jet.errors import (
    ConfigurationError,
    MembersChangedError,
    StoreCorruptedError,
    StoreMismatchError,
    StoreUnavailableError,
    StoreUnwritableError,
)
from dagster_jet.store import MapKey, MemoryMember, Store, UpkeepProgress
from dagster_jet.store.metadata import StoreMetadata
from dagster_jet.store.values.envelope import seal
from tests.unit.store.copies import Items, assert_whole, filled

# --- one change -------------------------------------------------------------------------------


def test_a_member_that_joins_gets_its_share(places: Any) -> None:
    with Store.open(places.config()) as store:
        items = filled(store)
        changes = store.add_member(places.url("d"))
        assert changes.joined == [places.url("d")]
        assert changes.registers >= 2
        assert_whole(store, places, items, "abcd")
        held = {m.member_id: (m.primaries, m.backups) for m in store.status().members}
        assert held[places.url("d")] == (3, 3)


def test_a_member_that_leaves_gives_away_what_it_has(places: Any) -> None:
    with Store.open(places.config()) as store:
        items = filled(store)
        assert store.remove_member(places.url("a")).left == [places.url("a")]
        assert_whole(store, places, items, "bc")
        assert places.member("a").list_keys(b"map/") == []
    with Store.open(places.config("abc")) as store:
        assert "a-" in store.status().notices[0]
        assert "is not a member of this store" in store.status().notices[0]
    with Store.open(places.config("bc")) as store:
        assert_whole(store, places, items, "bc")


@pytest.mark.parametrize("how", ["repair", "remove"])
def test_a_member_that_is_gone_is_replaced_by_its_backups(places: Any, how: str) -> None:
    with Store.open(places.config()) as store:
        items = filled(store)
        places.take_away("b")
        status = store.status()
        assert not status.is_safe
        assert {p.away for p in status.under_replicated} == {(places.url("b"),)}
        changes = store.repair() if how == "repair" else store.remove_member(places.url("b"))
        assert changes.left == [places.url("b")]
        assert_whole(store, places, items, "ac")


def test_a_full_member_gives_away_what_it_has(places: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: a member that could not be written counted as lost, with its only copies."""
    with Store.open(places.config(backup_count=0)) as store:
        items = filled(store)
        no_more_writes(monkeypatch, places.url("a"))
        with pytest.raises(StoreUnwritableError, match="store remove memory://a"):
            store.repair()
        changes = store.remove_member(places.url("a"))
        assert changes.left == [places.url("a")]
        assert changes.migrated.partitions == 4
        assert_whole(store, places, items, "bc")


def test_a_full_member_that_was_emptied_is_removed_as_lost(
    places: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(places.config(backup_count=0)) as store:
        filled(store)
        places.empty("a")
        no_more_writes(monkeypatch, places.url("a"))
        with pytest.raises(StoreCorruptedError, match="4 partitions"):
            store.remove_member(places.url("a"))
        assert store.remove_member(places.url("a"), accept_loss=True).left == [places.url("a")]


def no_more_writes(monkeypatch: pytest.MonkeyPatch, member_id: str) -> None:
    """The member can be read, and refuses every write, as on a full disk."""

    def refuse(name: str) -> None:
        work = getattr(MemoryMember, name)

        def write(member: MemoryMember, *arguments: Any) -> Any:
            if member.member_id == member_id:
                raise StoreUnwritableError(f"{member_id}: no space left on device.")
            return work(member, *arguments)

        monkeypatch.setattr(MemoryMember, name, write)

    for name in ("put_many", "replace_many", "delete_many", "compare_and_set", "ping"):
        refuse(name)


def test_a_member_that_lost_its_data_is_given_it_again(places: Any) -> None:
    with Store.open(places.config()) as store:
        items, table = filled(store), store.table
        places.empty("b")
        assert not Store.open(places.config()).status().is_safe
        changes = store.repair()
        assert (changes.readmitted, changes.left) == ([places.url("b")], [])
        assert changes.verified is not None
        assert changes.verified.is_whole
        assert_whole(store, places, items, "abc")
        assert store.table.replicas == table.replicas
        # Now another one may go, and then what b was given is all there is.
        places.empty("a")
        store.repair()
        assert_whole(store, places, items, "abc")


def test_a_member_that_comes_back_after_it_was_given_up_is_a_new_one(places: Any) -> None:
    with Store.open(places.config()) as store:
        items = filled(store)
        places.take_away("b")
        store.repair()
        items = {key: value + b" newer" for key, value in items.items()}
        gone = store.map("m").key("key 0")
        store.map("m").put_all(items)
        store.map("m").delete_all([gone])
        del items[gone]
        places.bring_back("b")
        store.add_member(places.url("b"))
        assert_whole(store, places, items, "abc")


def test_repairing_a_whole_store_changes_nothing(places: Any) -> None:
    with Store.open(places.config()) as store:
        items, number = filled(store), store.configuration_number
        changes = store.repair()
        assert (changes.left, changes.joined, changes.migrated.keys) == ([], [], 0)
        assert store.configuration_number == number
        assert_whole(store, places, items, "abc")


def test_progress_is_told(places: Any) -> None:
    told: list[UpkeepProgress] = []
    with Store.open(places.config()) as store:
        filled(store)
        store.add_member(places.url("d"), on_progress=told.append)
    copied = [progress for progress in told if progress.step == "copy"]
    assert (copied[-1].done, copied[-1].total) == (6, 6)
    assert copied[-1].bytes > 0
    assert {progress.step for progress in told} == {"registers", "copy", "gc"}


# --- what is refused --------------------------------------------------------------------------


def test_changes_that_make_no_sense_are_refused_and_change_nothing(places: Any) -> None:
    with Store.open(places.config("ab")) as store:
        items = filled(store)
        with pytest.raises(ConfigurationError, match="is already a member of the store"):
            store.add_member(places.url("a"))
        with pytest.raises(ConfigurationError, match=r"1 members, backup_count=1 needs 2.*store a"):
            store.remove_member(places.url("a"))
        with pytest.raises(ConfigurationError, match=r"d-.* is not a member of the store"):
            store.remove_member(places.url("d"))
        places.take_away("d")
        with pytest.raises(StoreUnavailableError, match=r"d-.* does not answer"):
            store.add_member(places.url("d"))
        assert store.configuration_number == 0
        assert_whole(store, places, items, "ab")


def test_a_member_of_another_store_is_not_taken_in(places: Any) -> None:
    with Store.open(places.config("xyz")) as other, Store.open(places.config()) as store:
        items = filled(other)
        with pytest.raises(StoreMismatchError, match=r"x-.*belongs to another store, of .*y-"):
            store.add_member(places.url("x"))
        assert_whole(other, places, items, "xyz")


def test_lost_partitions_are_named_and_only_given_up_when_asked(places: Any) -> None:
    with Store.open(places.config("abcde")) as store:
        items = filled(store)
        places.take_away("a")
        places.take_away("b")
        lost = store.status().lost
        assert lost
        numbers = ", ".join(map(str, lost))
        with pytest.raises(StoreCorruptedError, match=rf"lost: {numbers}.*--accept-loss"):
            store.repair()
        assert store.configuration_number == 0
        store.repair(accept_loss=True)
        items = {key: value for key, value in items.items() if key.partition not in lost}
        assert_whole(store, places, items, "cde")
        assert store.map("m").get_all(list(items)) == list(items.values())


def test_without_a_majority_nothing_is_changed(places: Any) -> None:
    with Store.open(places.config()) as store:
        items = filled(store)
        places.take_away("a")
        places.take_away("b")
        for change in (store.repair, lambda: store.add_member(places.url("d"))):
            with pytest.raises(StoreUnavailableError, match="needs 2 of 3 members"):
                change()
        places.bring_back("a")
        places.bring_back("b")
        assert_whole(store, places, items, "abc")


def test_a_change_that_would_lose_the_majority_is_not_begun(places: Any) -> None:
    with Store.open(places.config("abcde", backup_count=0)) as store:
        places.take_away("a")
        places.take_away("b")
        with pytest.raises(StoreUnavailableError, match="4 members, of which 3 must answer"):
            store.remove_member(places.url("e"))
        assert store.configuration_number == 0


def test_the_configuration_must_name_every_member(places: Any) -> None:
    with Store.open(places.config()) as store:
        items = filled(store)
        store.add_member(places.url("d"))
    with pytest.raises(StoreMismatchError, match=r"does not name memory://d-.*Add the URL"):
        Store.open(places.config())
    with Store.open(places.config("abcd")) as store:
        assert_whole(store, places, items, "abcd")


def test_a_store_is_found_by_any_of_its_members_when_the_others_are_named(places: Any) -> None:
    with Store.open(places.config()) as store:
        items = filled(store)
        for name in "def":
            store.add_member(places.url(name))
        for name in "abc":
            store.remove_member(places.url(name))
    for name in "abc":
        places.take_away(name)
    with Store.open(places.config("abcdef")) as store:
        assert_whole(store, places, items, "def")


# --- those who work meanwhile -----------------------------------------------------------------


def test_a_map_of_the_former_table_says_so_instead_of_missing_keys(places: Any) -> None:
    with Store.open(places.config()) as store, Store.open(places.config()) as other:
        items = filled(store)
        old, handle, owned = other.map("m"), other.handle(), other.register("r").claim(1, "me")
        store.add_member(places.url("d"))
        store.remove_member(places.url("a"))
        with pytest.raises(MembersChangedError):
            old.get_all(list(items))
        with pytest.raises(MembersChangedError):
            handle.map("m").get_all(list(items))
        with pytest.raises(MembersChangedError):
            old.keys()
        with pytest.raises(MembersChangedError):
            old.put_all(items)
        with pytest.raises(MembersChangedError):
            old.delete_all([old.key("never there")])
        with pytest.raises(MembersChangedError):
            owned.write(b"decided too late")
        assert other.refresh()
        assert not other.refresh()
        assert other.map("m").get_all(list(items)) == list(items.values())
        assert other.handle().map("m").get_all(list(items)) == list(items.values())
        other.register("r").claim(2, "me").write(b"decided")
        store.drop_orphans()
        assert_whole(store, places, items, "bcd")


def test_a_reader_of_the_former_table_does_not_bring_back_what_was_deleted(places: Any) -> None:
    with Store.open(places.config()) as store, Store.open(places.config()) as other:
        items = filled(store)
        old, table = other.map("m"), other.table
        store.add_member(places.url("d"))
        store.map("m").delete_all(list(items))
        for key, value in items.items():  # leftovers that were not dropped yet
            left = set(table.replicas[key.partition]) - set(store.table.replicas[key.partition])
            for member_id in left:
                stored = f"map/default/m/{key.partition:04d}/{key.name}".encode()
                places.member(member_id[9:10]).put_many({stored: seal(value)})
        for key in items:
            with suppress(MembersChangedError):
                old.get(key)
        assert store.map("m").get_all(list(items)) == [None] * len(items)
        store.drop_orphans()
        assert_whole(store, places, {}, "abcd")


def delete_when_refreshed(store: Store, key: MapKey) -> None:
    while True:
        store.refresh()
        try:
            store.map("m").delete_all([key])
        except MembersChangedError:
            continue
        return


def test_writers_and_readers_go_on_while_members_come_and_go(places: Any) -> None:
    """Each writer refreshes when it is told to, as a job does, and loses nothing."""
    stop = threading.Event()
    failures: list[BaseException] = []
    written: list[Items] = [{}, {}]

    def write(number: int) -> None:
        try:
            with Store.open(places.config("abcdef", backup_count=2)) as store:
                turn = 0
                while not stop.is_set():
                    turn += 1
                    key = store.map("m").key(f"{number}/{turn % 50}")
                    try:
                        if turn % 7:
                            value = b"%d" % turn
                            store.map("m").put_all({key: value})
                            written[number][key] = value
                        else:
                            store.map("m").delete_all([key])
                            written[number].pop(key, None)
                        assert store.map("m").get(key) == written[number].get(key)
                    except MembersChangedError:
                        delete_when_refreshed(store, key)
                        written[number].pop(key, None)
        except BaseException as error:
            failures.append(error)

    with Store.open(places.config("abcdef", backup_count=2)) as store:
        store.register("job").claim(1, "me").write(b"record")
        writers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
        for writer in writers:
            writer.start()
        for name in "abc":
            store.remove_member(places.url(name))
            store.add_member(places.url(name))
        stop.set()
        for writer in writers:
            writer.join()
        assert failures == []
        store.drop_orphans()
        assert_whole(store, places, {**written[0], **written[1]}, "abcdef")


def test_several_operators_at_once_get_one_store(places: Any) -> None:
    """Each of them succeeds, or is told why to try again: the store has changed, or b has lost its
    data and nobody has repaired that yet."""
    with Store.open(places.config("abcdef")) as store:
        items = filled(store)
    places.empty("b")
    failures: list[BaseException] = []

    def work(change: Callable[[Store], object]) -> None:
        try:
            with Store.open(places.config("abcdefgh")) as store:
                while True:
                    try:
                        change(store)
                    except MembersChangedError:
                        continue
                    except StoreUnavailableError as error:
                        if "rebuild the member with 'dagster-jet store repair'" not in str(error):
                            raise
                        time.sleep(0.01)  # others here are doing that
                        continue
                    return
        except BaseException as error:
            failures.append(error)

    operators = [
        threading.Thread(target=work, args=(change,))
        for change in (
            lambda store: store.repair(),
            lambda store: store.repair(),
            lambda store: store.add_member(places.url("g")),
            lambda store: store.remove_member(places.url("a")),
        )
    ]
    for operator in operators:
        operator.start()
    for operator in operators:
        operator.join()
    # Who was overtaken in the middle and tries again finds it done.
    done = ("is already a member of the store", "is not a member of the store")
    assert [f for f in failures if not any(said in str(f) for said in done)] == []
    with Store.open(places.config("abcdefgh")) as store:
        store.repair()
        store.drop_orphans()
        assert_whole(store, places, items, "bcdefg")


# --- formats ----------------------------------------------------------------------------------


def test_metadata_comes_back_from_bytes(places: Any) -> None:
    with Store.open(places.config()) as store:
        filled(store)
        metadata = store.handle().metadata
        assert StoreMetadata.from_bytes(metadata.to_bytes()) == metadata


def test_memory_is_really_in_one_place(places: Any) -> None:
    places.member("a").put_many({b"k": b"v"})
    assert MemoryMember(places.url("a").removeprefix("memory://")).get_many([b"k"]) == [b"v"]

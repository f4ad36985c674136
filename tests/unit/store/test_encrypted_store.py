"""A store whose values are encrypted: what members hold, which keys open it, and rotation."""

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dagster_jet.core.secret import Secret
from dagster_jet.errors import ConfigurationError, StoreCorruptedError, StoreMismatchError
from dagster_jet.store import MapKey, MemoryMember, Store, Versioned
from dagster_jet.store.quorum.acceptor_on_member import state_of
from dagster_jet.store.register import AcceptorState, Ballot
from dagster_jet.store.values.encryption import Keyring
from dagster_jet.store.values.envelope import seal
from dagster_jet.store.values.sealed_member import UnsealableError
from tests.unit.store.copies import Items, filled

VARIABLE = "TEST_JET_KEYS"
OLD, NEW, OTHER = (bytes([n]) * 32 for n in (1, 2, 3))
SECRET = b"a value that nobody shall read " * 4

SetKeys = Callable[..., Secret]


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> SetKeys:
    def set_keys(*given: bytes) -> Secret:
        text = ",".join(base64.b64encode(key).decode() for key in given)
        monkeypatch.setenv(VARIABLE, text)
        return Secret(env=VARIABLE)

    return set_keys


def assert_readable(store: Store, items: Items) -> None:
    assert store.map("m").get_all(list(items)) == list(items.values())
    assert store.is_safe() and store.verify().is_whole


def raw(places: Any, names: str = "abc") -> list[bytes]:
    found = []
    for name in names:
        member = places.member(name)
        found += [copy for copy in member.get_many(member.list_keys(b"map/")) if copy is not None]
    return found


def test_members_hold_nothing_that_can_be_read(places: Any, keys: SetKeys) -> None:
    config = places.config(encryption_keys=keys(NEW))
    with Store.open(config) as store:
        for n in range(20):
            store.map("m").put_all({MapKey.of(f"k{n}", 12): SECRET})
        assert store.map("m").get(MapKey.of("k3", 12)) == SECRET
        assert store.handle().map("m").get(MapKey.of("k3", 12)) == SECRET
        assert store.verify().is_whole, "copies of one key are equal on all replicas"
    copies = raw(places)
    assert len(copies) == 40
    assert not [copy for copy in copies if SECRET[:16] in copy]
    assert base64.b64encode(NEW).decode() not in repr(config)


def test_a_value_put_by_version_is_encrypted_once_for_all_replicas(
    places: Any, keys: SetKeys
) -> None:
    with Store.open(places.config(encryption_keys=keys(NEW))) as store:
        values = store.map("m")
        for version in (1, 3, 2):
            values.put_newer({MapKey.of("k", 12): version.to_bytes(8, "big") + SECRET})
        assert values.get(MapKey.of("k", 12)) == (3).to_bytes(8, "big") + SECRET
        assert store.verify().is_whole


@pytest.mark.parametrize("opened_with", [(), (OTHER,)])
def test_without_the_right_key_the_store_is_refused(
    places: Any, keys: SetKeys, opened_with: tuple[bytes, ...]
) -> None:
    with Store.open(places.config(encryption_keys=keys(NEW))) as store:
        items = filled(store)
    settings = {"encryption_keys": keys(*opened_with)} if opened_with else {}
    with pytest.raises(StoreMismatchError) as refused:
        Store.open(places.config(**settings))
    assert f"encrypted with the key {Keyring([NEW]).newest_id}" in str(refused.value)
    cure = "Add that key" if opened_with else "Name the environment variable"
    assert cure in str(refused.value)
    with Store.open(places.config(encryption_keys=keys(NEW))) as store:
        assert_readable(store, items)


def test_keys_for_a_store_that_is_not_encrypted_are_refused(places: Any, keys: SetKeys) -> None:
    Store.open(places.config()).close()
    for create in (True, False):
        with pytest.raises(StoreMismatchError, match=r"not encrypted.*rotate-keys"):
            Store.open(places.config(encryption_keys=keys(NEW)), create=create)


def test_a_variable_without_keys_is_refused(places: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{VARIABLE} holds no key"):
        Store.open(places.config(encryption_keys=Secret(env=VARIABLE)))


def test_a_member_that_lost_its_data_is_repaired(places: Any, keys: SetKeys) -> None:
    with Store.open(places.config(encryption_keys=keys(NEW))) as store:
        items = filled(store)
    places.empty("b")
    with Store.open(places.config(encryption_keys=keys(NEW)), create=False) as operator:
        assert operator.repair().readmitted == [places.url("b")]
        assert operator.verify().is_whole
    with Store.open(places.config(encryption_keys=keys(NEW))) as store:
        assert_readable(store, items)


def test_rotation(places: Any, keys: SetKeys) -> None:
    with Store.open(places.config(encryption_keys=keys(OLD))) as store:
        items = filled(store)
    with Store.open(places.config(encryption_keys=keys(NEW, OLD))) as store:
        done = store.rotate_keys()
        assert (done.copies, done.left) == (2 * len(items), 0)
        assert done.registers >= 2 * 2, "the store's own and the job's, on a majority at least"
        assert store.verify().is_whole
        assert store.rotate_keys().copies == 0, "once is enough"
    with Store.open(places.config(encryption_keys=keys(NEW))) as store:
        assert_readable(store, items)
    with pytest.raises(StoreMismatchError):
        Store.open(places.config(encryption_keys=keys(OLD)))


def test_a_plain_store_becomes_an_encrypted_one(places: Any, keys: SetKeys) -> None:
    with Store.open(places.config()) as store:
        items = filled(store)
        store.map("m").put_all({MapKey.of("s", 12): SECRET, MapKey.of("t", 12): SECRET})
    config = places.config(encryption_keys=keys(NEW))
    with Store.open(replace(config, accept_unencrypted=True)) as store:
        assert_readable(store, items)
        assert store.rotate_keys().left == 0
    assert not [copy for copy in raw(places) if SECRET[:16] in copy]
    with Store.open(config) as store:
        assert store.map("m").get(MapKey.of("t", 12)) == SECRET
        assert_readable(store, items)
        assert store.register("job").read().value == b"record"


def test_what_is_written_without_the_key_is_never_read(places: Any, keys: SetKeys) -> None:
    """Failed before: a plain value was taken as it was, from whoever had written it."""
    with Store.open(places.config(encryption_keys=keys(NEW))) as store:
        items = filled(store)
        key = next(iter(items))
        first, second = store.table.replicas[key.partition]
        stored = f"map/default/m/{key.partition:04d}/{key.name}".encode()
        members = {places.url(name): places.member(name) for name in "abc"}
        members[first].put_many({stored: seal(b"forged")})
        assert not store.verify().is_whole
        values = store.map("m")
        assert values.get(key) == items[key] and values.stats.repaired == 1
        assert not store.is_safe() and store.verify().is_whole
        assert_readable(store, items)
        for member_id in (first, second):
            members[member_id].put_many({stored: seal(b"forged")})
        with pytest.raises(StoreCorruptedError, match="no good copy"):
            store.map("m").get(key)


def test_values_of_another_store_and_of_other_keys_are_bad_copies(
    places: Any, keys: SetKeys
) -> None:
    config = places.config("ab", encryption_keys=keys(NEW), backup_count=0)
    other = places.config("cd", encryption_keys=keys(NEW), backup_count=0)
    with Store.open(config) as store, Store.open(other) as stranger:
        items, _ = filled(store), filled(stranger)
        for name in "cd":  # all that it has, under the same keys
            place = places.member(name)
            for stored in place.list_keys(b"map/"):
                for victim in map(places.member, "ab"):
                    if victim.get_many([stored]) != [None]:
                        victim.put_many({stored: place.get_many([stored])[0]})
        for key in items:
            with pytest.raises(StoreCorruptedError):
                store.map("m").get(key)


def register_copy(member: MemoryMember, name: str) -> Versioned:
    found = member.get_versioned(f"register/{name}".encode())
    assert found is not None
    return found


def forge(member: MemoryMember, name: str, copy: bytes) -> None:
    held = register_copy(member, name)
    assert member.compare_and_set(f"register/{name}".encode(), held.version, copy)


def test_a_register_that_was_written_without_the_key_has_no_say(places: Any, keys: SetKeys) -> None:
    """Failed before: a higher ballot on one member was adopted by every reader."""
    with Store.open(places.config(encryption_keys=keys(NEW))) as store:
        filled(store)
        evil = Ballot(9, "evil")
        state = AcceptorState(evil, evil, 9, b"forged record", configuration=0)
        forge(places.member("a"), "default/job", seal(state.to_bytes()))
        assert store.register("job").read().value == b"record"
        owned = store.register("job").claim(2, "heir")
        owned.write(b"next")
        assert store.register("job").read().value == b"next"
        assert "forged" not in str(register_copy(places.member("b"), "default/job"))


def test_registers_are_not_moved_between_members_keys_stores_and_versions(
    places: Any, keys: SetKeys
) -> None:
    settings = {"encryption_keys": keys(NEW)}
    with (
        Store.open(places.config("abc", **settings)) as store,
        Store.open(places.config("xyz", **settings)) as stranger,
    ):
        filled(store)
        early = register_copy(places.member("a"), "default/job").value
        for name in ("job", "other"):
            store.register(name).claim(2, "owner").write(b"value of " + name.encode())
        stranger.register("job").claim(7, "stranger").write(b"of another store")
        a = places.member("a")
        own = register_copy(a, "default/job")
        for copy in (
            early,  # of a version that it had before
            own.value,  # of this version, given out as a newer one
            register_copy(places.member("b"), "default/job").value,
            register_copy(a, "default/other").value,
            register_copy(places.member("x"), "default/job").value,
        ):
            forge(a, "default/job", copy)
            with pytest.raises(UnsealableError, match="bad copy of register/default/job"):
                state_of(store._view.members[places.url("a")], "default/job")
            assert store.register("job").read().value == b"value of job"


def test_nobody_learns_positions_from_a_register(places: Any, keys: SetKeys) -> None:
    with Store.open(places.config(encryption_keys=keys(NEW))) as store:
        store.register("job").claim(1, "me").write(SECRET)
    for name in "abc":
        assert SECRET[:16] not in register_copy(places.member(name), "default/job").value


def test_members_come_and_go_under_encryption(places: Any, keys: SetKeys) -> None:
    config = places.config("abc", encryption_keys=keys(NEW))
    with Store.open(config) as store:
        items = filled(store)
        store.add_member(places.url("d"))
        store.remove_member(places.url("a"))
        assert_readable(store, items)
        assert store.register("job").read().value == b"record"


def test_a_member_that_was_put_back_as_a_whole_is_found_by_the_others(
    places: Any, keys: SetKeys
) -> None:
    """Nothing can be forged without the key, but an older state of a member is a valid one."""
    config = places.config("abc", encryption_keys=keys(NEW), backup_count=2)
    with Store.open(config) as store:
        filled(store)
        room = places.member("a")._room()
        older = dict(room.values), dict(room.versioned)
        job = store.register("job").claim(2, "heir")
        job.write(b"decided")
        store.map("m").put_all({MapKey.of("new", 12): b"value"})
    room.values, room.versioned = older
    with Store.open(config) as store:
        assert store.register("job").read().value == b"decided"
        assert store.repair().readmitted == [places.url("a")]
    places.take_away("b")
    with Store.open(config) as store:
        assert store.register("job").read().value == b"decided"
        assert store.map("m").get(MapKey.of("new", 12)) == b"value"


def test_rotation_leaves_what_is_damaged_and_says_so(places: Any, keys: SetKeys) -> None:
    with Store.open(places.config(encryption_keys=keys(OLD))) as store:
        items = filled(store)
    member = places.member("a")
    spoilt = member.list_keys(b"map/")[0]
    (copy,) = member.get_many([spoilt])
    member.put_many({spoilt: copy[:-1] + bytes([copy[-1] ^ 1])})
    with Store.open(places.config(encryption_keys=keys(NEW, OLD))) as store:
        assert store.rotate_keys().left == 1
        assert store.verify(repair=True).repaired == 1
        assert store.rotate_keys().left == 0
    with Store.open(places.config(encryption_keys=keys(NEW))) as store:
        assert_readable(store, items)


def test_keys_in_text_are_refused(places: Any) -> None:
    assert places.config(encryption_keys=f"env:{VARIABLE}").encryption_keys == Secret(VARIABLE)
    key = base64.b64encode(NEW).decode()
    for text in (VARIABLE, key):
        with pytest.raises(ConfigurationError, match=r"expected a Secret.*Secret\(env=") as told:
            places.config(encryption_keys=text)
        assert text not in str(told.value)

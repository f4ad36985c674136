"""A store whose values are encrypted: what members hold, which keys open it, and rotation."""

import base64
from collections.abc import Callable
from typing import Any

import pytest

from dagster_jet.errors import ConfigurationError, StoreMismatchError
from dagster_jet.store import MapKey, Store
from dagster_jet.store.encryption import Keyring
from tests.unit.store.copies import Items, filled

VARIABLE = "TEST_JET_KEYS"
OLD, NEW, OTHER = (bytes([n]) * 32 for n in (1, 2, 3))
SECRET = b"a value that nobody shall read " * 4

SetKeys = Callable[..., str]


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> SetKeys:
    def set_keys(*given: bytes) -> str:
        text = ",".join(base64.b64encode(key).decode() for key in given)
        monkeypatch.setenv(VARIABLE, text)
        return VARIABLE

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
    assert "Name the environment variable" in str(refused.value)
    with Store.open(places.config(encryption_keys=keys(NEW))) as store:
        assert_readable(store, items)


def test_keys_for_a_store_that_is_not_encrypted_are_refused(places: Any, keys: SetKeys) -> None:
    Store.open(places.config()).close()
    with pytest.raises(StoreMismatchError, match=r"not encrypted.*rotate-keys"):
        Store.open(places.config(encryption_keys=keys(NEW)))


def test_a_variable_without_keys_is_refused(places: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{VARIABLE} holds no key"):
        Store.open(places.config(encryption_keys=VARIABLE))


def test_repair_and_verification_need_no_keys(places: Any, keys: SetKeys) -> None:
    with Store.open(places.config(encryption_keys=keys(NEW))) as store:
        items = filled(store)
    places.empty("b")
    with Store.open(places.config(), create=False) as operator:
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
    with Store.open(config, create=False) as store:
        assert store.rotate_keys().left == 0
    assert not [copy for copy in raw(places) if SECRET[:16] in copy]
    with Store.open(config) as store:
        assert store.map("m").get(MapKey.of("t", 12)) == SECRET
        assert_readable(store, items)


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

"""Encrypted data is read only if it is whole, in its place, and with its key."""

import base64
import pickle

import pytest

from dagster_jet.errors import ConfigurationError, StoreMismatchError
from dagster_jet.store.values.encryption import OVERHEAD_BYTES, Keyring
from dagster_jet.store.values.envelope import BadCopyError

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
PLACE = b"map/default/m/0001/k"


def text(*keys: bytes) -> str:
    return ", ".join(base64.b64encode(key).decode() for key in keys)


@pytest.mark.parametrize("value", [b"", b"x", bytes(100_000)])
def test_what_was_encrypted_comes_back(value: bytes) -> None:
    keys = Keyring([NEW])
    encrypted = keys.encrypt(value, PLACE)
    assert keys.decrypt(encrypted, PLACE) == value
    assert len(encrypted) == len(value) + OVERHEAD_BYTES
    assert value[:8] not in encrypted or len(value) < 8
    assert keys.encrypt(value, PLACE) != encrypted, "the same value twice does not show"


def test_a_changed_copy_does_not_decrypt() -> None:
    keys = Keyring([NEW])
    encrypted = keys.encrypt(b"a value", PLACE)
    for at in range(8, len(encrypted)):
        changed = bytearray(encrypted)
        changed[at] ^= 1
        with pytest.raises(BadCopyError):
            keys.decrypt(bytes(changed), PLACE)
    for length in range(8, len(encrypted)):
        with pytest.raises(BadCopyError):
            keys.decrypt(encrypted[:length], PLACE)


def test_a_copy_from_another_place_does_not_decrypt() -> None:
    keys = Keyring([NEW])
    with pytest.raises(BadCopyError, match="another key or store"):
        keys.decrypt(keys.encrypt(b"a value", PLACE), PLACE + b"2")


def test_rotation_reads_old_values_and_writes_new_ones() -> None:
    old, both = Keyring([OLD]), Keyring.from_environment("K", {"K": text(NEW, OLD)})
    before = old.encrypt(b"a value", PLACE)
    assert both.decrypt(before, PLACE) == b"a value"
    assert not both.is_newest(before)
    after = both.encrypt(b"a value", PLACE)
    assert both.is_newest(after)
    with pytest.raises(StoreMismatchError, match=f"{Keyring([NEW]).newest_id}.*Add that key"):
        old.decrypt(after, PLACE)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "holds no key"),
        (" ", "holds no key"),
        ("hunter2", "key 1 .* not the base64 of 32 bytes"),
        (text(NEW) + ",c2hvcnQ=", "key 2 .* not the base64 of 32 bytes"),
    ],
)
def test_wrong_keys_are_told_without_repeating_them(value: str | None, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        Keyring.from_environment("K", {} if value is None else {"K": value})
    assert "hunter2" not in str(refused.value) and "c2hvcnQ" not in str(refused.value)


def test_keys_are_neither_shown_nor_pickled() -> None:
    keys = Keyring([NEW])
    shown = repr(keys)
    assert NEW.hex() not in shown and base64.b64encode(NEW).decode() not in shown
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(keys)

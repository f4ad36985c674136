"""A sealed value comes back whole or not at all."""

import struct

import pytest
import xxhash

from dagster_jet.errors import StoreMismatchError
from dagster_jet.store.values.envelope import OVERHEAD_BYTES, BadCopyError, seal, unseal


@pytest.mark.parametrize("payload", [b"", b"x", b"a small value", bytes(100_000)])
def test_what_was_sealed_comes_back(payload: bytes) -> None:
    assert unseal(seal(payload)) == payload
    assert len(seal(payload)) == len(payload) + OVERHEAD_BYTES


def test_every_truncation_is_noticed() -> None:
    sealed = seal(b"a small value")
    for length in range(len(sealed)):
        with pytest.raises(BadCopyError):
            unseal(sealed[:length])
    with pytest.raises(BadCopyError):
        unseal(sealed + b"\0")


def test_every_flipped_bit_is_noticed() -> None:
    sealed = seal(b"a small value")
    for bit in range(8 * len(sealed)):
        damaged = bytearray(sealed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadCopyError):
            unseal(bytes(damaged))


def test_a_newer_version_is_refused_and_not_called_damaged() -> None:
    head = struct.pack("<2sBBI", b"DJ", 4, 0, 3)
    checksum = struct.pack("<Q", xxhash.xxh3_64_intdigest(head + b"new"))
    with pytest.raises(StoreMismatchError, match="format 4"):
        unseal(head + checksum + b"new")


def test_the_layout_is_frozen() -> None:
    assert seal(b"jet").hex() == "444a010003000000" + seal(b"jet")[8:16].hex() + b"jet".hex()

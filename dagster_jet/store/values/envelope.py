"""The envelope around every stored value: format version, length and checksum.

A disk, a network or an incomplete write may change a member's copy. The envelope makes every such
copy recognisable, so that the value is read from another replica.

Layout, little endian: ``magic(2) version(1) zero(1) length(4) checksum(8) payload(length)``. The
checksum is xxh3_64 over the first eight bytes and the payload. Magic, version, length and checksum
keep their position and meaning in **every** future version. So an old reader can distinguish
"written by a newer version" (checksum right, version unknown) from "damaged" (checksum wrong).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TypeAlias

import xxhash

from dagster_jet.core.stored_format import check_format
from dagster_jet.errors import StoreMismatchError


class Form(IntEnum):
    """Kind of a payload: the envelope's format version."""

    PLAIN = 1
    """Not encrypted."""
    ENCRYPTED = 2
    """Encrypted (``encryption.py``), bound to its place (``sealing.py``)."""


FORMAT_VERSION = max(Form)
"""Newest version that can be read."""

OVERHEAD_BYTES = 16
MAX_PAYLOAD_BYTES = 2**32 - 1 - OVERHEAD_BYTES

Payload: TypeAlias = bytes | memoryview
"""A value to be stored: not copied until it is written into its envelope."""

_MAGIC = b"DJ"
_HEAD = struct.Struct("<2sBBI")
_CHECKSUM = struct.Struct("<Q")


class BadCopyError(ValueError):
    """This copy of a value is truncated or changed; another replica may have a good one."""


def seal(payload: Payload, form: Form = Form.PLAIN) -> bytes:
    """Wrap ``payload`` so that any later change of it is detected.

    Raises:
        ValueError: the payload is too large for a length field of four bytes.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a value of {len(payload)} bytes is too large to store in one piece")
    head = _HEAD.pack(_MAGIC, form, 0, len(payload))
    return b"".join((head, _CHECKSUM.pack(_checksum(head, payload)), payload))


def unseal(sealed: bytes) -> bytes:
    """Return the payload of an unencrypted value; see ``open_envelope``."""
    payload, form = open_envelope(sealed)
    if form is not Form.PLAIN:
        raise StoreMismatchError(
            f"a stored value is encrypted with the key {payload[:8].hex()}, and no keys are "
            "configured.",
            cure="Name the environment variable that holds them: "
            'encryption_keys=Secret(env="NAME").',
        )
    return payload


def open_envelope(sealed: bytes) -> tuple[bytes, Form]:
    """Return the payload and its form, after verifying every byte.

    Raises:
        BadCopyError: the copy is truncated, extended or changed. Read another replica.
        StoreMismatchError: the copy is intact, but written by a newer version of this library.
    """
    if len(sealed) < OVERHEAD_BYTES:
        raise BadCopyError(f"a copy has {len(sealed)} bytes, fewer than its envelope")
    head = sealed[: _HEAD.size]
    magic, version, _, length = _HEAD.unpack(head)
    payload = sealed[OVERHEAD_BYTES:]
    if magic != _MAGIC:
        raise BadCopyError("a copy does not begin with the envelope's magic bytes")
    if length != len(payload):
        raise BadCopyError(f"a copy has {len(payload)} bytes, its envelope says {length}")
    (expected,) = _CHECKSUM.unpack_from(sealed, _HEAD.size)
    if _checksum(head, payload) != expected:
        raise BadCopyError("a copy does not match its checksum")
    # After the checksum: a flipped bit in the version is damage, not a newer version.
    check_format("a stored value", version, FORMAT_VERSION)
    if version < Form.PLAIN:
        raise BadCopyError(f"a copy says it has format version {version}")
    return payload, Form(version)


def _checksum(head: bytes, payload: Payload) -> int:
    digest = xxhash.xxh3_64(head)
    digest.update(payload)
    return digest.intdigest()

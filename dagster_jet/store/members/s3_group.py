"""Layout of values in S3 objects: the keys that share an object, its name and its format. Pure.

Values that are written together are read and removed together: a snapshot's shard writes one chunk
for each of up to 271 partitions, and one index. Those keys differ only in their partition::

    map/<namespace>/<map>/<4-digit partition>/<name>            a chunk
    map/<namespace>/<map>/<4-digit partition>/<name>/index      their index

and share the object ``map/<namespace>/<map>/<name>``. So do the slots of one number in the rings of
all partitions of a user's map. Its entries have an object each, because a name is in one partition.
Readers do not rely on this assignment: every object lists its keys.

Format of an object, big endian: ``magic(2) version(1) zero(1) index length(4)``, the index, then
the values one after the other. The index is compressed: per key ``key length(2) value length(4)``
and the key, in the order of the values.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

FORMAT_VERSION = 1

_HEAD = struct.Struct(">2sBBI")
_ENTRY = struct.Struct(">HI")
_MAGIC = b"JG"

_CHUNK = re.compile(rb"(map/[^/]+/[^/]+/)[0-9]{4}/(.+)", re.DOTALL)
_CHUNK_PREFIX = re.compile(rb"(map/[^/]+/[^/]+/)(?:[0-9]{4}/(.*))?", re.DOTALL)
_INDEX = b"/index"

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=")
_NOT_AFTER_SLASH = frozenset(b"/.")
_SLASH = ord("/")
_NAME_MAX = 700
_NAME_KEPT = 600
"""S3 accepts names of up to 1,024 bytes, including the member's prefix."""


class BadObjectError(ValueError):
    """An object was not written by ``encode``, or is damaged."""


class NewerObjectError(BadObjectError):
    """An object was written by a newer version; it is not damaged."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Position of a value in its object: [begin, end)."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Index:
    """The keys of one object and the positions of their values."""

    extents: dict[bytes, Extent]
    size: int


def object_of(key: bytes) -> str:
    """Return the name of a key's object."""
    chunk = _CHUNK.fullmatch(key)
    name = key if chunk is None else chunk[1] + chunk[2].removesuffix(_INDEX)
    return name_of(name)


def listing_prefix(prefix: bytes) -> str:
    """Return a common name prefix of all objects that may hold keys with ``prefix``."""
    chunk = _CHUNK_PREFIX.match(prefix)
    if chunk is not None:
        prefix = chunk[1] + _without_index(chunk[2] or b"")
    return _encoded(prefix)[:_NAME_KEPT]


def name_of(key: bytes) -> str:
    """Return an object name for any bytes; a name that is too long ends in a hash."""
    name = _encoded(key)
    if len(name) <= _NAME_MAX:
        return name
    return f"{name[:_NAME_KEPT]}~{hashlib.sha256(key).hexdigest()}"


def encode(items: Mapping[bytes, bytes]) -> bytes:
    """Return the object with these items: a shard's index first, then sorted by key.

    A restore reads a shard's index first, and gets it with the first request.
    """
    keys = sorted(items, key=lambda key: (not key.endswith(_INDEX), key))
    index = zlib.compress(b"".join(_ENTRY.pack(len(key), len(items[key])) + key for key in keys))
    head = _HEAD.pack(_MAGIC, FORMAT_VERSION, 0, len(index))
    return b"".join((head, index, *(items[key] for key in keys)))


def index_end(head: bytes) -> int:
    """Return the offset at which an object's index ends, from its first eight bytes or more.

    Raises:
        BadObjectError: not such an object, or written by a newer version.
    """
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        raise BadObjectError("it does not begin as a group of values does")
    _, version, _, length = _HEAD.unpack_from(head)
    if version > FORMAT_VERSION:
        raise NewerObjectError(
            f"it has format version {version}, this library reads up to {FORMAT_VERSION}"
        )
    return _HEAD.size + int(length)


def decode_index(head: bytes) -> Index:
    """Return the index of an object from its first ``index_end`` bytes or more.

    Raises:
        BadObjectError: the index is damaged.
    """
    at = index_end(head)
    try:
        packed = zlib.decompress(head[_HEAD.size : at])
        extents: dict[bytes, Extent] = {}
        read = 0
        while read < len(packed):
            key_bytes, value_bytes = _ENTRY.unpack_from(packed, read)
            read += _ENTRY.size + key_bytes
            extents[packed[read - key_bytes : read]] = Extent(at, at + value_bytes)
            at += value_bytes
    except (zlib.error, struct.error) as error:
        raise BadObjectError(f"its index is damaged: {error}") from error
    return Index(extents, at)


def _encoded(key: bytes) -> str:
    """Percent-encode so that a prefix of a key becomes a prefix of its name.

    Slashes and dots stay readable, but the name has no empty, ``.`` or ``..`` segment, because
    some servers and proxies would normalise such a path.
    """
    name = []
    before = _SLASH
    for byte in key:
        is_plain = byte in _PLAIN or (byte in _NOT_AFTER_SLASH and before != _SLASH)
        name.append(chr(byte) if is_plain else f"%{byte:02X}")
        before = byte
    return "".join(name)


def _without_index(name: bytes) -> bytes:
    """Remove a trailing (partial) ``/index``: the name of the object ends before it."""
    for length in range(len(_INDEX), 0, -1):
        if name.endswith(_INDEX[:length]):
            return name[:-length]
    return name

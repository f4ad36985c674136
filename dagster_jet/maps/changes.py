"""Binary format of a map: batches of changes, and stored records.

A record is a change with its version. The map keeps the newest record per key (the *entry*; without
a value for a deleted key, see ``log.py``), the journal the latest records per partition.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

PUT, DELETE = "put", "delete"

_KINDS = (PUT, DELETE)
_RECORD = struct.Struct(">QBqI")
"""The version comes first, big endian, because `ReplicatedMap.put_newer` compares it."""
_CHANGE = struct.Struct(">BHII")


@dataclass(frozen=True, slots=True)
class MapChange:
    """A put or delete that is not decided yet.

    Attributes:
        kind: ``PUT`` or ``DELETE``.
        partition: partition of the key.
        key: the key's text (``key_encoding.py``).
        value: empty for a delete.
    """

    kind: str
    partition: int
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """A decided change.

    Attributes:
        version: for an entry, the number of its batch in the map; in the journal, the sequence
            number in the partition, from 0.
        timestamp_ms: time of the decision by the decider's clock; never decreases within a map.
    """

    version: int
    kind: str
    timestamp_ms: int
    key: str
    value: bytes

    def to_bytes(self) -> bytes:
        """Return the record's bytes; they begin with the version."""
        key = self.key.encode()
        head = _RECORD.pack(self.version, _KINDS.index(self.kind), self.timestamp_ms, len(key))
        return b"".join((head, key, self.value))

    @staticmethod
    def from_bytes(data: bytes) -> Record:
        version, kind, timestamp_ms, length = _RECORD.unpack_from(data)
        end = _RECORD.size + length
        key = data[_RECORD.size : end].decode()
        return Record(version, _KINDS[kind], timestamp_ms, key, data[end:])


def encode_changes(changes: Iterable[MapChange]) -> bytes:
    """Return the bytes of a batch."""
    parts: list[bytes] = []
    for change in changes:
        key = change.key.encode()
        kind = _KINDS.index(change.kind)
        parts.append(_CHANGE.pack(kind, change.partition, len(key), len(change.value)))
        parts += (key, change.value)
    return b"".join(parts)


def decode_changes(data: bytes) -> Iterator[MapChange]:
    at = 0
    while at < len(data):
        kind, partition, key_length, value_length = _CHANGE.unpack_from(data, at)
        key_at = at + _CHANGE.size
        value_at = key_at + key_length
        at = value_at + value_length
        yield MapChange(_KINDS[kind], partition, data[key_at:value_at].decode(), data[value_at:at])


def size_of(change: MapChange) -> int:
    """Return the approximate size of a change within a batch, in bytes."""
    return _CHANGE.size + len(change.key) + len(change.value)

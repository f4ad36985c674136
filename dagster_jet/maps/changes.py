"""The bytes of a map: batches of changes on their way in, records as they are kept.

A record is a change with its version. The map keeps, per key, the record of the newest change
(the *entry*; of a deleted key one without value, see ``log.py``); the journal keeps the last ones
of each partition.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

PUT, DELETE = "put", "delete"

_KINDS = (PUT, DELETE)
_RECORD = struct.Struct(">QBqI")
"""Version first, big endian: `ReplicatedMap.put_newer` goes by it."""
_CHANGE = struct.Struct(">BHII")


@dataclass(frozen=True, slots=True)
class MapChange:
    """One put or delete, not yet decided.

    Attributes:
        kind: ``PUT`` or ``DELETE``.
        partition: of the key.
        key: the key's text (``keys.py``).
        value: empty for a delete.
    """

    kind: str
    partition: int
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """A change that was decided.

    Attributes:
        version: of an entry: number of its batch in the map; in the journal: the sequence number
            in the partition, from 0.
        timestamp_ms: when it was decided, by the clock of who decided; never goes back in a map.
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
        """Read what ``to_bytes`` wrote."""
        version, kind, timestamp_ms, length = _RECORD.unpack_from(data)
        end = _RECORD.size + length
        key = data[_RECORD.size : end].decode()
        return Record(version, _KINDS[kind], timestamp_ms, key, data[end:])


def encode_changes(changes: Iterable[MapChange]) -> bytes:
    """Return a batch's bytes."""
    parts: list[bytes] = []
    for change in changes:
        key = change.key.encode()
        kind = _KINDS.index(change.kind)
        parts.append(_CHANGE.pack(kind, change.partition, len(key), len(change.value)))
        parts += (key, change.value)
    return b"".join(parts)


def decode_changes(data: bytes) -> Iterator[MapChange]:
    """Read what ``encode_changes`` wrote."""
    at = 0
    while at < len(data):
        kind, partition, key_length, value_length = _CHANGE.unpack_from(data, at)
        key_at = at + _CHANGE.size
        value_at = key_at + key_length
        at = value_at + value_length
        yield MapChange(_KINDS[kind], partition, data[key_at:value_at].decode(), data[value_at:at])


def size_of(change: MapChange) -> int:
    """Return how many bytes a change takes in a batch, about."""
    return _CHANGE.size + len(change.key) + len(change.value)

"""The values of a folder in one LMDB transaction: kept by LMDB itself, or in a segment.

A key has its value in one of the two. The number of values left in a segment is counted in the same
transaction; once it is zero, the segment is deleted after the commit.
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter
from collections.abc import Iterator

import lmdb

from dagster_jet.store.members.lmdb_environment import Batch
from dagster_jet.store.members.segments import Place

_COUNT = struct.Struct(">Q")


class FileValues:
    """Reads and changes the values in a batch; ``finish`` ends it."""

    def __init__(self, batch: Batch) -> None:
        self._transaction, self._spaces = batch
        self._changes: Counter[bytes] = Counter()
        """Change of the number of values, by segment."""

    def get(self, key: bytes) -> bytes | Place | None:
        """Return a key's value, or its place in a segment."""
        value = self._transaction.get(key, db=self._spaces.values)
        return value if value is not None else self._place(key)

    def put(self, key: bytes, value: bytes | Place) -> None:
        """Set a key's value; replaces an existing one."""
        self._leave_place(key)
        if isinstance(value, Place):
            self._transaction.delete(key, db=self._spaces.values)
            self._transaction.put(key, value.pack(), db=self._spaces.places)
            self._changes[value.segment] += 1
        else:
            self._transaction.put(key, value, db=self._spaces.values)

    def delete(self, key: bytes) -> None:
        """Remove a key; ignores an unknown one."""
        if not self._transaction.delete(key, db=self._spaces.values):
            self._leave_place(key)

    def keys(self, prefix: bytes) -> list[bytes]:
        """Return every key that starts with ``prefix``, in byte order."""
        return list(
            heapq.merge(
                keys_of(self._transaction, self._spaces.values, prefix),
                keys_of(self._transaction, self._spaces.places, prefix),
            )
        )

    def finish(self, written: set[bytes]) -> set[bytes]:
        """Update the counts of old and just written segments; return those without values."""
        emptied = set()
        for segment in written | self._changes.keys():
            stored = self._transaction.get(segment, db=self._spaces.segments)
            count = self._changes[segment] + (_COUNT.unpack(stored)[0] if stored is not None else 0)
            if count > 0:
                self._transaction.put(segment, _COUNT.pack(count), db=self._spaces.segments)
            else:
                self._transaction.delete(segment, db=self._spaces.segments)
                emptied.add(segment)
        return emptied

    def _place(self, key: bytes) -> Place | None:
        packed = self._transaction.get(key, db=self._spaces.places)
        return None if packed is None else Place.unpack(packed)

    def _leave_place(self, key: bytes) -> None:
        place = self._place(key)
        if place is not None:
            self._transaction.delete(key, db=self._spaces.places)
            self._changes[place.segment] -= 1


def keys_of(
    transaction: lmdb.Transaction[bytes], space: lmdb._Database, prefix: bytes
) -> Iterator[bytes]:
    """Yield every key of a key space that starts with ``prefix``, in byte order."""
    with transaction.cursor(db=space) as cursor:
        if not (cursor.set_range(prefix) if prefix else cursor.first()):
            return
        for key in cursor.iternext(keys=True, values=False):
            if not key.startswith(prefix):
                return
            yield key

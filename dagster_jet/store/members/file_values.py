"""The values of a folder in one LMDB transaction: kept by LMDB itself, or in a segment.

A key has its value in one of the two. What is left in a segment is counted in the same transaction.
If it is little, the transaction moves it to LMDB: a value that never changes must not keep the
space of its former neighbours. A segment without values is deleted after the commit.
"""

from __future__ import annotations

import heapq
import os
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress

import lmdb

from dagster_jet.store.members.lmdb_environment import Batch
from dagster_jet.store.members.segments import Place, Segments, UnknownPlaceError

SPARSE_SHARE = 1 / 3
"""A segment with a smaller share of its values' bytes left is sparse. So segments take at most
three times the bytes of their values, and at most one byte is moved for two that are freed."""

MOVED_BYTES_MAX = 8 * 2**20
"""A batch moves about this much at most, because other writers wait; later ones move the rest."""

_LEFT = struct.Struct(">QQQ")
"""Number and bytes of the values left in a segment, and bytes of all that were written to it."""


class FileValues:
    """Reads and changes the values in a batch; ``finish`` ends it."""

    def __init__(self, batch: Batch) -> None:
        self._transaction, self._spaces = batch
        self._counts: Counter[bytes] = Counter()
        """Change of the number of values, by segment."""
        self._bytes: Counter[bytes] = Counter()
        """Change of their bytes, by segment."""
        self._moved = 0
        """Bytes of the values moved to LMDB."""

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
            self._count(value, 1)
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

    def finish(self, written: Iterable[Place], files: Segments | None) -> set[bytes]:
        """Update what is left in segments, and move the values of sparse ones to LMDB.

        Args:
            written: places of just written values, used or not.
            files: the segments' files; None: nothing is moved.

        Returns:
            The segments without values.
        """
        sizes: Counter[bytes] = Counter()
        for place in written:
            sizes[place.segment] += place.length
        emptied = set()
        for segment in {*sizes, *self._counts, *self._any_segment()}:
            stored = self._transaction.get(segment, db=self._spaces.segments)
            count, left, size = (0, 0, sizes[segment]) if stored is None else _unpacked(stored)
            if files is not None and 0 < left + self._bytes[segment] < size * SPARSE_SHARE:
                self._move(segment, size, files)
            count, left = count + self._counts[segment], max(0, left + self._bytes[segment])
            if count <= 0:
                self._transaction.delete(segment, db=self._spaces.segments)
                emptied.add(segment)
            elif (packed := _LEFT.pack(count, left, size)) != stored:
                self._transaction.put(segment, packed, db=self._spaces.segments)
        return emptied

    def _any_segment(self) -> list[bytes]:
        """Return a segment by chance: one may be sparse that no write changes any more."""
        with self._transaction.cursor(db=self._spaces.segments) as cursor:
            return [cursor.key()] if cursor.set_range(os.urandom(16)) else []

    def _move(self, segment: bytes, size: int, files: Segments) -> None:
        """Move the values left in a segment to LMDB; they stay if they cannot be read."""
        places: dict[bytes, Place] = {}
        with suppress(OSError, UnknownPlaceError):
            for key in files.keys(segment, size):
                place = self._place(key)
                if place is not None and place.segment == segment and self._moved < MOVED_BYTES_MAX:
                    places[key] = place
                    self._moved += place.length
            for key, value in files.read(places).items():
                self.put(key, value)

    def _count(self, place: Place, change: int) -> None:
        self._counts[place.segment] += change
        self._bytes[place.segment] += change * place.length

    def _place(self, key: bytes) -> Place | None:
        packed = self._transaction.get(key, db=self._spaces.places)
        return None if packed is None else Place.unpack(packed)

    def _leave_place(self, key: bytes) -> None:
        place = self._place(key)
        if place is not None:
            self._transaction.delete(key, db=self._spaces.places)
            self._count(place, -1)


def _unpacked(left: bytes) -> tuple[int, int, int]:
    # Older versions stored the number alone. A segment without a size is never sparse.
    return _LEFT.unpack(left.ljust(_LEFT.size, b"\0"))


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

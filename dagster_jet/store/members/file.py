"""``file:///folder``: a member in a folder of a local disk, in LMDB and, for the large values of
large batches, in files beside it (``segments.py``).

Several processes of one host may use it concurrently; a batch costs one write transaction and one
sync. Three such folders with ``backup_count=1`` are the embedded default: no server to start. Use
different disks if there are any: folders on one disk survive a deleted folder or a damaged file,
but not the loss of the disk.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar, cast

from dagster_jet.errors import StoreError, StoreUnavailableError, StoreUnwritableError
from dagster_jet.store.members.file_values import FileValues, keys_of
from dagster_jet.store.members.lmdb_environment import (
    Batch,
    EmptyFolderError,
    EnvironmentUse,
    LmdbEnvironment,
)
from dagster_jet.store.members.member import Replacement, Versioned
from dagster_jet.store.members.segments import Place, Segments

T = TypeVar("T")

LARGE_VALUE_BYTES = 16 * 1024
SEGMENT_BYTES_MIN = 2**20
"""Batches with at least this total of large values write them beside LMDB. Below, an extra file
and its syncs cost more than LMDB's copies."""

_VERSION = struct.Struct(">Q")
_PING = b"ping"
_PINGS_MAX = 20


class FileMember:
    """A member in one folder. Nothing is accessed before the first call; only ``create`` creates
    the folder."""

    def __init__(self, folder: str) -> None:
        self.folder = self.normalise(folder)
        self._member_id = self.id_of(self.folder)
        self._use = EnvironmentUse(self.folder)

    @staticmethod
    def normalise(folder: str) -> str:
        """Return the canonical path of a folder: absolute, without ``..`` or links."""
        return os.path.realpath(folder)

    @staticmethod
    def id_of(folder: str) -> str:
        """Return the member id of a canonical path; it is also a URL of this folder."""
        return "file://" + folder.replace("?", "%3F").replace("#", "%23")

    @property
    def member_id(self) -> str:
        """``file://`` and the folder's real path."""
        return self._member_id

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``Member.get_many``; a value with a missing segment is empty: a damaged copy."""
        found = self._look_up(keys)
        while places := {key: one for key, one in found.items() if isinstance(one, Place)}:
            with self._shared.errors_named(write=False):
                found.update(self._shared.segments.read(places))
            gone = [key for key, place in places.items() if found[key] is place]
            # Values that were deleted or replaced since the lookup have another place now, or none.
            # Values whose place is unchanged are lost.
            for key, now in self._look_up(gone).items():
                found[key] = b"" if now == places[key] else now
        return [cast("bytes | None", found[key]) for key in keys]

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """See ``Member.put_many``. All or nothing, also after a crash inside."""

        def work(values: FileValues, places: Mapping[bytes, Place]) -> None:
            for key in sorted(items):  # in key order LMDB fills its pages densely
                values.put(key, places[key] if key in places else items[key])

        if items:
            self._write(work, items)

    def replace_many(self, items: Mapping[bytes, Replacement]) -> int:
        """See ``Member.replace_many``. All or nothing, also after a crash inside."""

        def work(values: FileValues, places: Mapping[bytes, Place]) -> int:
            unchanged = [
                key for key in sorted(items) if self._read(values.get(key)) == items[key].seen
            ]
            for key in unchanged:
                value = items[key].value
                if value is None:
                    values.delete(key)
                else:
                    values.put(key, places.get(key, value))
            return len(unchanged)

        values = {key: item.value for key, item in items.items() if item.value is not None}
        return self._write(work, values) if items else 0

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """See ``Member.delete_many``. All or nothing, also after a crash inside."""

        def work(values: FileValues, _: Mapping[bytes, Place]) -> None:
            for key in keys:
                values.delete(key)

        if keys:
            self._write(work)

    def list_keys(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_keys``; a consistent snapshot of the keys."""

        return self._looked(lambda batch: FileValues(batch).keys(prefix), [])

    def get_versioned(self, key: bytes) -> Versioned | None:
        """See ``Member.get_versioned``."""

        def work(batch: Batch) -> Versioned | None:
            return self._versioned(batch, key)

        return self._looked(work, None)

    def written_last(self, key: bytes) -> Versioned | None:
        """See ``Member.written_last``: versions are compared here, not bytes."""
        return None

    def list_versioned(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_versioned``; a consistent snapshot of the keys."""

        def work(batch: Batch) -> list[bytes]:
            return list(keys_of(batch.transaction, batch.spaces.versioned, prefix))

        return self._looked(work, [])

    def compare_and_set(self, key: bytes, expected_version: int, value: bytes) -> bool:
        """See ``Member.compare_and_set``: LMDB's single writer makes test and set atomic."""

        def work(batch: Batch) -> bool:
            current = self._versioned(batch, key)
            if (current.version if current else 0) != expected_version:
                return False
            stored = _VERSION.pack(expected_version + 1) + value
            batch.transaction.put(key, stored, db=batch.spaces.versioned)
            return True

        return self._shared.run(work, write=True)

    def create(self) -> None:
        """See ``Member.create``: creates the folder if its parent exists."""
        self._shared.create()

    def ping(self) -> None:
        """See ``Member.ping``."""

        def write(batch: Batch) -> None:
            batch.transaction.put(_PING, token)  # beside the key spaces, in none of them

        for _ in range(_PINGS_MAX):
            token = os.urandom(16)
            self._shared.run(write, write=True)
            if self._shared.run(lambda batch: batch.transaction.get(_PING), write=False) == token:
                return  # else another process may have written its own token in between
        raise StoreUnavailableError(
            f"the store member {self._member_id} did not return the value that was just written "
            "to it."
        )

    def close(self) -> None:
        """See ``Member.close``."""
        self._use.release()

    @property
    def _shared(self) -> LmdbEnvironment:
        return self._use.environment()

    def _look_up(self, keys: Sequence[bytes]) -> dict[bytes, bytes | Place | None]:
        def work(batch: Batch) -> dict[bytes, bytes | Place | None]:
            values = FileValues(batch)
            return {key: values.get(key) for key in keys}

        return self._looked(work, dict.fromkeys(keys)) if keys else {}

    def _looked(self, work: Callable[[Batch], T], empty: T) -> T:
        """Run `work` in a read transaction; return `empty` if no member was created here."""
        try:
            return self._shared.run(work, write=False)
        except EmptyFolderError:
            return empty

    def _write(
        self,
        work: Callable[[FileValues, Mapping[bytes, Place]], T],
        values: Mapping[bytes, bytes] | None = None,
    ) -> T:
        """Run `work` in one write transaction, with the large values in a segment."""
        large = _large(values or {})
        if not large:
            return self._commit(work, {})
        self._shared.open()  # checks that the folder exists and is still the same
        written = self._shared.segments.written(large, self._may_be_named)
        with self._shared.errors_named(write=True), written as places:
            return self._commit(work, places)

    def _may_be_named(self, segment: bytes) -> bool:
        def is_named(batch: Batch) -> bool:
            return batch.transaction.get(segment, db=batch.spaces.segments) is not None

        try:
            return self._shared.run(is_named, write=False)
        except StoreError:
            return True  # it cannot be read now

    def _commit(
        self,
        work: Callable[[FileValues, Mapping[bytes, Place]], T],
        places: Mapping[bytes, Place],
    ) -> T:
        def in_batch(batch: Batch, files: Segments | None = None) -> tuple[T, set[bytes]]:
            values = FileValues(batch)
            return work(values, places), values.finish(places.values(), files)

        try:
            moving = partial(in_batch, files=self._shared.segments)
            result, emptied = self._shared.run(moving, write=True)
        except StoreUnwritableError:
            # A disk may have room for the batch, but not for values that are moved.
            result, emptied = self._shared.run(in_batch, write=True)
        with self._shared.errors_named(write=True):
            self._shared.segments.delete(emptied)
        return result

    def _read(self, held: bytes | Place | None) -> bytes | None:
        """Return a value, also from a segment; only while no other process may write."""
        if isinstance(held, Place):
            return self._shared.segments.read({b"": held}).get(b"", b"")
        return held

    def _versioned(self, batch: Batch, key: bytes) -> Versioned | None:
        stored = batch.transaction.get(key, db=batch.spaces.versioned)
        if stored is None:
            return None
        if len(stored) < _VERSION.size:
            raise StoreUnavailableError(
                f"the store member {self._member_id} holds a versioned value of only "
                f"{len(stored)} bytes under {key!r}."
            )
        (version,) = _VERSION.unpack_from(stored)
        return Versioned(version, stored[_VERSION.size :])


def _large(values: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the values for a segment; none if they are not worth a file."""
    large = {key: value for key, value in values.items() if len(value) >= LARGE_VALUE_BYTES}
    return large if sum(map(len, large.values())) >= SEGMENT_BYTES_MIN else {}

"""``file:///folder``: a member in a folder of a local disk, kept by LMDB.

Several processes of one host may use it at once; a batch costs one write transaction and one sync.
Three such folders with ``backup_count=1`` are the embedded default: no server to start. Put them
on different disks where there are any: folders on one disk survive a deleted folder or a damaged
file, not the disk.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence

import lmdb

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.store.members.lmdb_environment import Batch, acquire, release
from dagster_jet.store.members.member import Replacement, Versioned

_VERSION = struct.Struct(">Q")


class FileMember:
    """A member in one folder. Nothing is touched before the first call."""

    def __init__(self, folder: str) -> None:
        self.folder = self.normalise(folder)
        self._member_id = f"file://{self.folder}"
        self._shared = acquire(self.folder)
        self._closed = False

    @staticmethod
    def normalise(folder: str) -> str:
        """Return the one spelling of a folder's path: absolute, without ``..`` or links."""
        return os.path.realpath(folder)

    @property
    def member_id(self) -> str:
        """``file://`` and the folder's real path."""
        return self._member_id

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``Member.get_many``; all keys are read as of one moment."""

        def work(batch: Batch) -> list[bytes | None]:
            return [batch.transaction.get(key, db=batch.values) for key in keys]

        return self._shared.run(work, write=False)

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """See ``Member.put_many``. A crash inside leaves all of it or nothing."""

        def work(batch: Batch) -> None:
            for key in sorted(items):  # in key order LMDB fills its pages densely
                batch.transaction.put(key, items[key], db=batch.values)

        if items:
            self._shared.run(work, write=True)

    def replace_many(self, items: Mapping[bytes, Replacement]) -> int:
        """See ``Member.replace_many``. A crash inside leaves all of it or nothing."""

        def work(batch: Batch) -> int:
            unchanged = [
                key
                for key in sorted(items)
                if batch.transaction.get(key, db=batch.values) == items[key].seen
            ]
            for key in unchanged:
                batch.transaction.put(key, items[key].value, db=batch.values)
            return len(unchanged)

        return self._shared.run(work, write=True) if items else 0

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """See ``Member.delete_many``. A crash inside leaves all of it or nothing."""

        def work(batch: Batch) -> None:
            for key in keys:
                batch.transaction.delete(key, db=batch.values)

        if keys:
            self._shared.run(work, write=True)

    def list_keys(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_keys``; all keys as of one moment."""

        return self._shared.run(lambda batch: _keys(batch, batch.values, prefix), write=False)

    def get_versioned(self, key: bytes) -> Versioned | None:
        """See ``Member.get_versioned``."""

        def work(batch: Batch) -> Versioned | None:
            return self._versioned(batch, key)

        return self._shared.run(work, write=False)

    def list_versioned(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_versioned``; all keys as of one moment."""
        return self._shared.run(lambda batch: _keys(batch, batch.versioned, prefix), write=False)

    def compare_and_set(self, key: bytes, expected_version: int, value: bytes) -> bool:
        """See ``Member.compare_and_set``: LMDB's single writer makes test and set one step."""

        def work(batch: Batch) -> bool:
            current = self._versioned(batch, key)
            if (current.version if current else 0) != expected_version:
                return False
            stored = _VERSION.pack(expected_version + 1) + value
            batch.transaction.put(key, stored, db=batch.versioned)
            return True

        return self._shared.run(work, write=True)

    def ping(self) -> None:
        """See ``Member.ping``: takes the write lock once, and writes nothing."""

        def work(_: Batch) -> None:
            return None

        self._shared.run(work, write=True)

    def close(self) -> None:
        """See ``Member.close``."""
        if not self._closed:
            self._closed = True
            release(self._shared)

    def _versioned(self, batch: Batch, key: bytes) -> Versioned | None:
        stored = batch.transaction.get(key, db=batch.versioned)
        if stored is None:
            return None
        if len(stored) < _VERSION.size:
            raise StoreUnavailableError(
                f"the store member {self._member_id} holds a versioned value of only "
                f"{len(stored)} bytes under {key!r}."
            )
        (version,) = _VERSION.unpack_from(stored)
        return Versioned(version, stored[_VERSION.size :])


def _keys(batch: Batch, space: lmdb._Database, prefix: bytes) -> list[bytes]:
    found: list[bytes] = []
    with batch.transaction.cursor(db=space) as cursor:
        if not (cursor.set_range(prefix) if prefix else cursor.first()):
            return found
        for key in cursor.iternext(keys=True, values=False):
            if not key.startswith(prefix):
                break
            found.append(key)
    return found

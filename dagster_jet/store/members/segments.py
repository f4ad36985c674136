"""Files with large values beside LMDB, which keeps the place of each value.

LMDB copies every value into its own pages and has one writer at a time. That suits small values,
but takes most of the time of writing a snapshot's chunks. So the large values of a large batch go
straight into a file of their own, a *segment*, with any number of concurrent writers. LMDB's
transaction only stores their places. Without that transaction a segment is unused.

A segment has values, and then their keys. It is synced before LMDB names it, and never changed. It
is deleted when the last of its values has been deleted, replaced or moved (``file_values.py``). Its
writer holds a lock on it until it is named. A segment without a lock and a name is garbage of a
crash and is deleted when the folder is opened next. A child forked while a segment is written
inherits the lock until it ends, which delays the deletion of garbage.
"""

from __future__ import annotations

import fcntl
import os
import struct
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from dagster_jet.store.members.folder import FILE_MODE, FOLDER_MODE
from dagster_jet.system.durable import sync_folder

_FOLDER = "segments"
_SUFFIX = ".values"
_FORMAT = 1
_WRITE_BYTES_MAX = 512 * 1024
"""Linux takes twice the time for every other call that writes megabytes."""
_PLACE = struct.Struct(">B16sQI")
_KEY_BYTES = struct.Struct(">H")


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a value: the segment's id (16 bytes), offset and length in bytes."""

    segment: bytes
    offset: int
    length: int

    def pack(self) -> bytes:
        """Return the place as stored in LMDB."""
        return _PLACE.pack(_FORMAT, self.segment, self.offset, self.length)

    @classmethod
    def unpack(cls, packed: bytes) -> Place:
        """Parse the bytes of ``pack``.

        Raises:
            UnknownPlaceError: written by a newer version, or damaged.
        """
        if len(packed) != _PLACE.size or packed[0] != _FORMAT:
            raise UnknownPlaceError(packed)
        return cls(*_PLACE.unpack(packed)[1:])


class UnknownPlaceError(ValueError):
    """The format of a place is not known to this version."""


class Segments:
    """The segments of one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, _FOLDER)

    def create_folder(self) -> None:
        """Create the folder of the segments unless it exists."""
        os.makedirs(self._folder, FOLDER_MODE, exist_ok=True)

    @contextmanager
    def written(
        self, values: Mapping[bytes, bytes], may_be_named: Callable[[bytes], bool]
    ) -> Iterator[dict[bytes, Place]]:
        """Write the values into a new segment and yield their places, by key.

        The segment is synced when the block begins; the block must name it in LMDB. After an
        exception inside the block it is deleted, unless it may be named. After a crash
        ``delete_unnamed`` cleans up.

        Args:
            values: the values, by key.
            may_be_named: returns whether LMDB names the segment, or cannot tell.

        Raises:
            OSError: the disk is full, or the folder is gone.
        """
        segment, descriptor = self._created()
        try:
            try:
                places, offset = {}, 0
                for key, value in values.items():
                    _write(descriptor, value)
                    places[key] = Place(segment, offset, len(value))
                    offset += len(value)
                _write(descriptor, b"".join(_KEY_BYTES.pack(len(key)) + key for key in values))
                os.fsync(descriptor)
                sync_folder(self._folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(self._path(segment))
                raise
            try:
                yield places
            except BaseException:
                with suppress(OSError):
                    if not may_be_named(segment):
                        self.delete([segment])
                raise
        finally:
            os.close(descriptor)  # releases the lock

    def read(self, places: Mapping[bytes, Place]) -> dict[bytes, bytes]:
        """Return the values at the places, by key. Values of a deleted segment are left out; of a
        truncated segment the remaining bytes are returned."""
        by_segment: dict[bytes, list[bytes]] = {}
        for key, place in places.items():
            by_segment.setdefault(place.segment, []).append(key)
        found = {}
        for segment, keys in by_segment.items():
            try:
                descriptor = os.open(self._path(segment), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                for key in sorted(keys, key=lambda one: places[one].offset):
                    found[key] = os.pread(descriptor, places[key].length, places[key].offset)
            finally:
                os.close(descriptor)
        return found

    def keys(self, segment: bytes, size: int) -> list[bytes]:
        """Return the keys of all values that were written to a segment; none if it is cut off.

        Args:
            size: bytes of the values.
        """
        try:
            with open(self._path(segment), "rb") as file:
                file.seek(size)
                packed = file.read()
        except FileNotFoundError:
            return []
        keys, at = [], 0
        while at + _KEY_BYTES.size <= len(packed):
            (length,) = _KEY_BYTES.unpack_from(packed, at)
            at += _KEY_BYTES.size + length
            keys.append(packed[at - length : at])
        return keys

    def delete(self, segments: Collection[bytes]) -> None:
        """Delete segments without values; ignores those already deleted.

        After a crash before, ``delete_unnamed`` deletes them.
        """
        for segment in segments:
            with suppress(FileNotFoundError):
                os.unlink(self._path(segment))

    def delete_unnamed(self, named: Callable[[], Collection[bytes]]) -> None:
        """Delete the segments of crashed writers.

        Args:
            named: returns the segments that LMDB names now; called again for each check.
        """
        listed = [name for name in os.listdir(self._folder) if name.endswith(_SUFFIX)]
        found = {bytes.fromhex(name.removesuffix(_SUFFIX)) for name in listed}
        suspects = found.difference(named()) if found else ()
        for segment in suspects:
            try:
                descriptor = os.open(self._path(segment), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if segment not in named():  # its writer may just have named it
                    self.delete([segment])
            except BlockingIOError:
                pass  # it is being written
            finally:
                os.close(descriptor)

    def _created(self) -> tuple[bytes, int]:
        """Create a segment, locked and open for writing."""
        while True:
            segment = uuid.uuid4().bytes
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(self._path(segment), flags, FILE_MODE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:
                    return segment, descriptor
            except BlockingIOError:
                pass  # deleted as garbage before it was locked
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _path(self, segment: bytes) -> str:
        return os.path.join(self._folder, segment.hex() + _SUFFIX)


def _write(descriptor: int, value: bytes) -> None:
    rest = memoryview(value)
    while rest:
        rest = rest[os.write(descriptor, rest[:_WRITE_BYTES_MAX]) :]

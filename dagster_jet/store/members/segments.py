"""Files of large values beside LMDB, which keeps where each of them lies.

LMDB copies every value into pages of its own and lets one writer in at a time: right for small
values, but most of the time that a snapshot's chunks take. So the large values of a large batch go
straight into a file of their own, a *segment*, by as many writers at once as there are, and LMDB's
transaction only says where they are. Without that transaction a segment means nothing.

A segment is synced before it is named, never changed, and deleted when the last of its values has
been deleted or replaced. Its writer holds a lock on it until it has named it: a segment without a
lock and a name is what a crash has left, and whoever opens the folder next deletes it. A child
that is forked while a segment is written keeps the lock, too, until it ends; so does the rubbish.
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
"""Given megabytes in one call, Linux takes twice the time, every other time."""
_PLACE = struct.Struct(">B16sQI")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is: the segment's id (16 bytes), and the value's first byte and length."""

    segment: bytes
    offset: int
    length: int

    def pack(self) -> bytes:
        """Return the place as LMDB keeps it."""
        return _PLACE.pack(_FORMAT, self.segment, self.offset, self.length)

    @classmethod
    def unpack(cls, packed: bytes) -> Place:
        """Read what ``pack`` has made.

        Raises:
            UnknownPlaceError: it was written by a newer version, or is damaged.
        """
        if len(packed) != _PLACE.size or packed[0] != _FORMAT:
            raise UnknownPlaceError(packed)
        return cls(*_PLACE.unpack(packed)[1:])


class UnknownPlaceError(ValueError):
    """A place in a format that this version does not know."""


class Segments:
    """The segments of one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, _FOLDER)

    def create_folder(self) -> None:
        """Make the folder for them, if there is none."""
        os.makedirs(self._folder, FOLDER_MODE, exist_ok=True)

    @contextmanager
    def written(self, values: Mapping[bytes, bytes]) -> Iterator[dict[bytes, Place]]:
        """Write the values into a new segment and yield where they are, by key.

        Synced when the block begins; the block names it. A crash before the block's end, or an
        exception in it, leaves the segment to ``delete_unnamed``: it may have been named or not.

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
                os.fsync(descriptor)
                sync_folder(self._folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(self._path(segment))
                raise
            yield places
        finally:
            os.close(descriptor)  # gives the lock back

    def read(self, places: Mapping[bytes, Place]) -> dict[bytes, bytes]:
        """Return the values at the places, by key. Those of a segment that is gone are left out; of
        one that was cut off there is what is left."""
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

    def delete(self, segments: Collection[bytes]) -> None:
        """Delete segments that nothing names any more; one that is gone already is no error.

        A crash before leaves them to ``delete_unnamed``.
        """
        for segment in segments:
            with suppress(FileNotFoundError):
                os.unlink(self._path(segment))

    def delete_unnamed(self, named: Callable[[], Collection[bytes]]) -> None:
        """Delete what crashes have left.

        Args:
            named: the segments that have a name now, anew at each call.
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
                if segment not in named():  # its writer may have just named it and let go
                    self.delete([segment])
            except BlockingIOError:
                pass  # somebody is writing it
            finally:
                os.close(descriptor)

    def _created(self) -> tuple[bytes, int]:
        """A new segment, locked and open for writing."""
        while True:
            segment = uuid.uuid4().bytes
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(self._path(segment), flags, FILE_MODE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:
                    return segment, descriptor
            except BlockingIOError:
                pass  # taken for rubbish in the moment before it was locked
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

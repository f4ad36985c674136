"""One LMDB environment, shared by all users of its folder in this process.

LMDB itself provides atomic, durable batches and one writer at a time over all processes of a host.
This module adds five guarantees:

- **One environment per folder and process.** LMDB's file locks belong to (process, file): opening
  a folder twice in one process breaks them. All members of a folder share one
  (``EnvironmentUse``).
- **Forks.** An environment must not be carried into a forked child (PySpark's workers are forked).
  All environments are closed just before a fork and reopened at their next use, on both sides.
- **A deleted folder.** LMDB keeps writing into a deleted file silently. Every batch therefore
  compares the files in the folder with the opened ones, before and, for writes, after the commit.
- **Stopped writers.** Waiting for the writer has a time-out (``writer_gate.py``).
- **Unsuitable folders.** A folder that is missing, on a network file system, or in use in another
  PID namespace is refused (``folder.py``, ``folder_users.py``).
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple, TypeVar

import lmdb

from dagster_jet.errors import (
    StoreError,
    StoreMismatchError,
    StoreUnavailableError,
    StoreUnwritableError,
)
from dagster_jet.store.members.folder import (
    FILE_MODE,
    close_to_others,
    create_folder,
    refuse_network,
)
from dagster_jet.store.members.folder_users import FolderUsers
from dagster_jet.store.members.member import DamagedMemberError
from dagster_jet.store.members.segments import Segments, UnknownPlaceError
from dagster_jet.store.members.writer_gate import WriterGate
from dagster_jet.system.durable import sync_folder

T = TypeVar("T")

_GIB = 2**30
_MAP_SIZES = (64 * _GIB, 8 * _GIB, _GIB)
"""Address space, not disk space: the file grows on demand. The smaller ones are for processes with
limited address space (``spark.executor.pyspark.memory`` sets RLIMIT_AS)."""

_MAX_READERS = 2048
"""Concurrent reads over all processes of the host; one costs 64 bytes of the lock file."""

_UNWRITABLE = tuple(
    os.strerror(code)
    # A disk that fills during a large write shows as EIO: LMDB does not continue such a write.
    for code in (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)
)
_FILES = ("data.mdb", "lock.mdb")
_GATE = "writer.lock"
_SPACES = (b"values", b"versioned", b"places", b"segments")
_Identity = tuple[tuple[int, int, int], ...]


class EmptyFolderError(StoreUnavailableError):
    """No member was created in the folder; it is read as empty."""


class LmdbEnvironment:
    """A folder with an LMDB environment, opened at the first batch and again after a fork."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.segments = Segments(folder)
        self.users = 0
        self._lock = threading.Lock()
        self._environment: lmdb.Environment | None = None
        self._spaces: Spaces | None = None
        self._identity: _Identity | None = None
        self.is_retired = False
        self._gate = WriterGate(os.path.join(folder, _GATE))
        self._users = FolderUsers(folder)

    def create(self) -> None:
        """Create the folder and the member in it, unless they exist.

        Raises:
            StoreUnavailableError, StoreUnwritableError: as ``run``, or the parent folder is
                missing.
        """
        with self._lock, self.errors_named(write=True):
            if self._identity is None:
                create_folder(self.folder, self.member_id)
            self._opened(write=True)

    def open(self) -> None:
        """Open the folder for writing, and check that it is still the same.

        Raises:
            StoreUnavailableError, StoreUnwritableError: as ``run``.
        """
        with self._lock, self.errors_named(write=True):
            self._opened(write=True)
            self._check_in_place()

    def run(self, work: Callable[[Batch], T], *, write: bool) -> T:
        """Run ``work`` in one transaction and return its result.

        A write is committed and on disk when this returns. After a crash inside, the batch is
        written completely or not at all. ``work`` may be called several times: when the map was too
        small, or another process has grown it.

        Raises:
            EmptyFolderError: nothing was ever written here, and ``write`` is false.
            StoreUnavailableError: the folder is missing or was replaced, another process does not
                end its write, or LMDB reports damage.
            StoreUnwritableError: the folder cannot be written, is not suitable for a member, or the
                disk is full.
        """
        with self._lock, self.errors_named(write=write):
            grown = 0
            while True:
                environment, spaces = self._opened(write=write)
                self._check_in_place()
                try:
                    with (
                        self._gate.held() if write else nullcontext(),
                        environment.begin(write=write) as transaction,
                    ):
                        result = work(Batch(transaction, spaces))
                except lmdb.MapResizedError:
                    environment.set_mapsize(0)  # adopt the size that another process has chosen
                    continue
                except lmdb.MapFullError:
                    grown += 1
                    if grown > 3:
                        raise
                    environment.set_mapsize(2 * environment.info()["map_size"])
                    continue
                if write:
                    # Crash window: the folder was deleted between the check and the commit. The
                    # data is then in an unlinked file and must not count as durable.
                    self._check_in_place()
                return result

    def is_in_place(self) -> bool:
        """Whether the folder still contains the opened files."""
        return self._identity is None or _identity_of(self.folder) == self._identity

    def close(self) -> None:
        """Close the files; the next batch reopens them."""
        with self._lock:
            self._close()

    def expect_files_of(self, former: LmdbEnvironment) -> None:
        """Refuse other files than those of a former environment, unless files are opened.

        Takes no lock, which a batch may hold for long.
        """
        if self._identity is None:
            self._identity = former._identity

    def retire(self) -> None:
        """Close the files for good: they must not be opened twice beside a successor."""
        with self._lock:
            self.is_retired = True
            self._close()

    def hold_closed(self) -> None:
        """Close the files and block every thread until ``let_go``, because of a fork."""
        self._lock.acquire()
        self._close()

    def let_go(self) -> None:
        """End ``hold_closed``, in the parent and in the child."""
        self._lock.release()

    def _close(self) -> None:
        self._gate.close()
        self._users.leave()
        if self._environment is not None:
            self._environment.close()
            self._environment = self._spaces = None

    def _opened(self, *, write: bool) -> tuple[lmdb.Environment, Spaces]:
        if self._environment is None or self._spaces is None:
            if self._identity is not None:
                self._check_in_place()  # before opening, which would create the files again
            if self.is_retired:
                raise StoreUnavailableError(f"the store member {self.member_id} was closed.")
            self._check_folder(write=write)
            with self._gate.held():  # opening a key space takes the writer's lock
                self._users.enter(self.member_id)
                environment = _open_as_large_as_possible(self.folder)
                try:
                    environment.reader_check()  # frees the slots of killed processes
                    spaces = Spaces(*map(environment.open_db, _SPACES))
                    if self._identity is None:
                        self.segments.create_folder()
                        close_to_others(self.folder)
                        self.segments.delete_unnamed(lambda: _segments(environment, spaces))
                except BaseException:
                    environment.close()
                    raise
            if self._identity is None:
                sync_folder(self.folder)
                self._identity = _identity_of(self.folder) or ()  # (): gone already, never equal
            self._environment, self._spaces = environment, spaces
        return self._environment, self._spaces

    def _check_folder(self, *, write: bool) -> None:
        try:
            is_folder = stat.S_ISDIR(os.stat(self.folder).st_mode)
        except FileNotFoundError:
            raise StoreUnavailableError(
                f"the folder of the store member {self.member_id} does not exist. Perhaps its "
                "disk is not mounted.",
                cure="Mount it; if its data is lost, make the empty folder and repair the store.",
            ) from None
        if not is_folder:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.folder)
        if not write and not os.path.exists(os.path.join(self.folder, _FILES[0])):
            raise EmptyFolderError(f"the store member {self.member_id} has not been created.")
        refuse_network(self.folder, self.member_id)

    def _check_in_place(self) -> None:
        if not self.is_in_place():
            raise StoreUnavailableError(
                f"the folder {self.folder} of the store member {self.member_id} was deleted or "
                "replaced while in use.",
                cure="Its data is read from other replicas. Restart the job, then run "
                "'dagster-jet store repair'.",
            )

    @property
    def member_id(self) -> str:
        """The id of this folder's member."""
        return f"file://{self.folder}"

    @contextmanager
    def errors_named(self, *, write: bool) -> Iterator[None]:
        """Convert errors of LMDB and the operating system into errors that name the member."""
        try:
            yield
        except StoreError:
            raise
        except UnknownPlaceError as error:
            raise StoreMismatchError(
                f"the store member {self.member_id} was written by a newer version of this "
                "library, or is damaged: the format of its index is not known.",
                cure="Upgrade dagster-jet, or delete the folder and repair the store.",
            ) from error
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"the store member {self.member_id} cannot be opened or written: {error}.",
                cure="Check whether a process that uses the folder is suspended; continue or "
                "kill that process.",
            ) from error
        except (lmdb.PanicError, lmdb.CorruptedError, lmdb.PageNotFoundError) as error:
            self._close()  # LMDB needs a new environment after these
            raise self._unavailable(error, DamagedMemberError) from error
        except (lmdb.MapFullError, lmdb.DiskError, lmdb.ReadonlyError) as error:
            raise self._unwritable(error) from error
        except lmdb.Error as error:
            if write and any(cause in str(error) for cause in _UNWRITABLE):
                raise self._unwritable(error) from error
            raise self._unavailable(error) from error
        except OSError as error:
            raise self._unwritable(error) from error

    def _unavailable(
        self, error: Exception, kind: type[StoreUnavailableError] = StoreUnavailableError
    ) -> StoreUnavailableError:
        return kind(
            f"the store member {self.member_id} cannot be read: {error}.",
            cure="Other replicas are used meanwhile. Check the disk and restart the job.",
        )

    def _is_disk_full(self) -> bool:
        try:
            return os.statvfs(self.folder).f_bavail == 0
        except OSError:
            return False  # the folder cannot be examined

    def _unwritable(self, error: Exception) -> StoreUnwritableError:
        said = str(error)
        if self._is_disk_full():
            # LMDB reports a write that only partly fits as an input/output error.
            said = f"{os.strerror(errno.ENOSPC)} ({said})"
        return StoreUnwritableError(
            f"the store member {self.member_id} cannot be created or written: {said}.",
            cure="Point the URL at a folder on a local disk with free space that this user may "
            "create and write.",
        )


class Spaces(NamedTuple):
    """The key spaces of a folder.

    Attributes:
        values: the values that LMDB itself stores.
        versioned: the compare-and-set values.
        places: the places of all other values; no key is in both.
        segments: number of values left in each segment.
    """

    values: lmdb._Database
    versioned: lmdb._Database
    places: lmdb._Database
    segments: lmdb._Database


class Batch(NamedTuple):
    """One transaction and its key spaces."""

    transaction: lmdb.Transaction[bytes]
    spaces: Spaces


_environments: dict[str, LmdbEnvironment] = {}
_registry_lock = threading.Lock()
_held: list[LmdbEnvironment] = []


class EnvironmentUse:
    """A member's use of its folder's environment; ``release`` ends it."""

    def __init__(self, folder: str) -> None:
        with _registry_lock:
            self._environment = _acquired(folder)
        self._released = False

    def environment(self) -> LmdbEnvironment:
        """Return the folder's environment.

        While a folder is away (its disk is not mounted), another user may begin with what is in
        its place; that retires the environment of the former users. Once their files are back, all
        of them use one environment again.
        """
        if self._environment.is_retired:
            with _registry_lock:
                former = self._environment
                if former.is_retired and former.is_in_place() and not self._released:
                    self._environment = _acquired(former.folder)
                    self._environment.expect_files_of(former)
                    _release(former)
        return self._environment

    def release(self) -> None:
        """End the use; the last one closes the environment."""
        with _registry_lock:
            if not self._released:
                self._released = True
                _release(self._environment)


def _acquired(folder: str) -> LmdbEnvironment:
    environment = _environments.get(folder)
    if environment is not None and not environment.is_in_place():
        # The folder was replaced. Users of the old environment keep failing; new ones start with
        # the current folder.
        environment.retire()
        environment = None
    if environment is None:
        environment = _environments[folder] = LmdbEnvironment(folder)
    environment.users += 1
    return environment


def _release(environment: LmdbEnvironment) -> None:
    environment.users -= 1
    if environment.users > 0:
        return
    if _environments.get(environment.folder) is environment:
        del _environments[environment.folder]
    environment.retire()


def _before_fork() -> None:
    _registry_lock.acquire()
    for environment in _environments.values():
        environment.hold_closed()
        _held.append(environment)


def _after_fork() -> None:
    while _held:
        _held.pop().let_go()
    _registry_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def _open_as_large_as_possible(folder: str) -> lmdb.Environment:
    for map_size in _MAP_SIZES[:-1]:
        try:
            return _open(folder, map_size)
        except (lmdb.MemoryError, MemoryError):
            continue  # the address space is limited; a smaller map grows on demand
    return _open(folder, _MAP_SIZES[-1])


def _open(folder: str, map_size: int) -> lmdb.Environment:
    return lmdb.open(
        folder,
        map_size=map_size,
        max_dbs=len(_SPACES),
        max_readers=_MAX_READERS,
        mode=FILE_MODE,
        # Both syncs of a commit stay on. Without metasync a power cut loses the last committed
        # batch, and with all members on one host it loses it on all of them.
        sync=True,
        metasync=True,
        # pwrite, not a writable map: a stray pointer in the process cannot damage the file, the
        # file stays sparse, and a full disk is an error instead of a SIGBUS.
        writemap=False,
        # Chunks are read once, by key, and are larger than a page.
        readahead=False,
    )


def _segments(environment: lmdb.Environment, spaces: Spaces) -> set[bytes]:
    with environment.begin() as transaction, transaction.cursor(db=spaces.segments) as cursor:
        return set(cursor.iternext(keys=True, values=False))


def _identity_of(folder: str) -> _Identity | None:
    """Identify the folder's files; None if one is missing. Three ``stat`` calls.

    A file system gives the number of a deleted inode to the next file. So the time at which the
    gate's file was created, which is never written, counts too.
    """
    try:
        found = [os.stat(os.path.join(folder, name)) for name in _FILES]
        gate = os.stat(os.path.join(folder, _GATE))
    except OSError:
        return None
    files = ((stat.st_dev, stat.st_ino, 0) for stat in found)
    return (*files, (gate.st_dev, gate.st_ino, gate.st_mtime_ns))

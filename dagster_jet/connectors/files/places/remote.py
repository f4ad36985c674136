"""Places with an fsspec driver: ``gs://`` (gcsfs), ``abfs://`` (adlfs), ``hdfs://`` (read only,
because it has no conditional create).

A file is staged under `.staging/`, which readers' listings skip. Phase 2 copies it to its final
name on the server, waits until the copy is whole, and removes the staged file. An interrupted copy
is repeated with the same result. The epoch's marker is created conditionally, which is tested with
the driver first. If a dead execution's copy is still under way when its successor commits, it may
restore a file that a reader has moved since: readers that move files must go by `_epochs/`.
"""

from __future__ import annotations

import errno
import io
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, BinaryIO, cast

import xxhash

from dagster_jet.connectors.files.checksum import stream_checksum
from dagster_jet.connectors.files.places.listing import folder_of, found_in, may_hold
from dagster_jet.connectors.files.places.location import StorageOptions, scheme_of
from dagster_jet.connectors.files.places.place import (
    EPOCHS_FOLDER,
    STAGING_FOLDER,
    InputFile,
    Known,
    Listing,
    OutputName,
    Sealed,
    is_partition,
    is_published,
    unknown,
)
from dagster_jet.connectors.object_driver import as_os_errors, connected
from dagster_jet.errors import MissingEnvironmentError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.backoff import attempts

_CURES = {
    "gs": "Install it with: pip install 'dagster-jet[gcs]'.",
    "abfs": "Install it with: pip install 'dagster-jet[azure]'.",
    "hdfs": "Install Hadoop's client, with libhdfs, and set HADOOP_HOME, JAVA_HOME and CLASSPATH.",
}
_NATIVE = ("libhdfs", "libjvm", "CLASSPATH")
"""Words in pyarrow's errors if Hadoop's native client is missing, raised at connection time."""
_TAKEN = frozenset({409, 412})
_FLAT = frozenset({"gs", "abfs"})
"""Schemes without folders, whose drivers list everything below a prefix at once."""
_BLOCK_BYTES = 8 << 20
"""Size of reads and writes; adlfs would keep 50 MiB of each open file in memory."""
_LOOKS_MAX = 60
_CONTENT = ("md5Hash", "generation", "etag")
"""Keys of what identifies an object's content. Google's ETag may change with its metadata, too;
objects composed of others have no MD5, but a new generation for each content."""


class _Folder:
    """One folder of one file system. Every failure is an `OSError`."""

    def __init__(self, url: str, options: StorageOptions) -> None:
        self.url, self._options = url, options

    def connected(self) -> tuple[Any, str]:
        """Returns the file system and its name of the folder.

        Raises:
            MissingEnvironmentError: the driver is not installed.
        """
        try:
            return connected(folder_of(self.url), self._options)
        except (ImportError, OSError) as error:
            if not (isinstance(error, ImportError) or any(name in str(error) for name in _NATIVE)):
                raise
            scheme = scheme_of(self.url)
            raise MissingEnvironmentError(
                f"{scheme}:// needs a driver that is not installed here: "
                f"{str(error).splitlines()[0]}.",
                cure=_CURES.get(scheme),
            ) from error

    @property
    def _is_flat(self) -> bool:
        return scheme_of(self.url) in _FLAT

    def _ls(self, fs: Any, folder: str) -> Sequence[Mapping[str, Any]]:
        """Returns what is in a folder; perhaps what is in its subfolders, too."""
        found: Sequence[Mapping[str, Any]] = fs.ls(folder, detail=True)
        if self._is_flat and all(info["name"].rstrip("/") == folder for info in found):
            # adlfs shows nothing but an object that has the folder's name, if there is one.
            return list(fs.find(folder, detail=True).values())
        return found

    def _copy(self, fs: Any, source: str, target: str, size: int) -> None:
        """Copies a file on the server and returns once the copy is whole: Azure may go on with it
        after it has answered, and then needs the source."""
        if not self._is_flat:
            fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        fs.cp_file(source, target)
        for _ in attempts(_LOOKS_MAX):
            if fs.info(target)["size"] == size:
                return
        raise OSError(errno.EREMOTEIO, "the server has not ended the copy of a file yet", target)

    def _below(
        self, fs: Any, root: str, is_wanted: Callable[[str], bool]
    ) -> Sequence[Mapping[str, Any]]:
        """Returns the files below the folder.

        Args:
            is_wanted: says of a subfolder, by its path from the folder, whether to look into it.
        """
        if self._is_flat:
            return list(fs.find(root, detail=True).values())
        found, folders = [], [root]  # `find` takes a folder that cannot be read for an empty one
        while folders:
            folder = folders.pop()
            try:
                there = fs.ls(folder, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                continue
            found += [info for info in there if info["type"] != "directory"]
            inner = [info["name"].rstrip("/") for info in there if info["type"] == "directory"]
            folders += [n for n in inner if n != folder and is_wanted(n.removeprefix(f"{root}/"))]
        return found


class RemoteInput(_Folder):
    """Files of a folder, or matching a pattern."""

    reads_what_was_planned = False
    _has_bucket: bool = False
    """Whether its bucket was found to exist."""

    def __init__(self, url: str, options: StorageOptions, recursive: bool = False) -> None:
        super().__init__(url, options)
        self._recursive = recursive

    @property
    def folder_url(self) -> str:
        return folder_of(self.url)

    def listing(self, known: Known = unknown) -> Listing:
        fs, root = self.connected()
        with as_os_errors(self.url):
            found = self._entries(fs, root)
            if not found and self._is_flat:
                self._check_bucket(fs, root)
        files = [self._file(info, root) for info in found if self._is_file(info)]
        subfolders = [self._path(i["name"], root) for i in found if i["type"] == "directory"]
        listing = found_in(self.url, files, subfolders, recursive=self._recursive)
        for file in listing.files:
            name = self._name(file.path, root)
            if fs._strip_protocol(name) != name:
                raise OSError(errno.EINVAL, "its driver cannot open a file of this name", file.path)
        return listing

    def _entries(self, fs: Any, root: str) -> Sequence[Mapping[str, Any]]:
        try:
            if self.folder_url == self.url and not self._recursive:
                return self._ls(fs, root)
            return self._below(fs, root, self._may_hold)
        except FileNotFoundError:
            if not self._is_flat:
                raise
            return ()

    def _check_bucket(self, fs: Any, root: str) -> None:
        """Raises `FileNotFoundError` for a bucket that does not exist. A folder in which nothing is
        is no different from one that does not exist."""
        if self._has_bucket:
            return
        try:
            fs.ls(root.strip("/").partition("/")[0], detail=False)
        except FileNotFoundError:
            raise
        except Exception:  # noqa: BLE001 - the rights may end at the folder
            pass
        self._has_bucket = True

    def find(self, path: str) -> InputFile | None:
        fs, root = self.connected()
        with as_os_errors(self.url):
            try:
                info = fs.info(self._name(path, root))
            except FileNotFoundError:
                return None
        return self._file(info, root) if info["type"] == "file" else None

    def checksum(self, file: InputFile) -> int | None:
        if file.etag:
            return None
        with self.open(file) as stream, as_os_errors(self.url):
            return stream_checksum(stream)

    def open(self, file: InputFile) -> BinaryIO:
        fs, root = self.connected()
        with as_os_errors(self.url):
            name = self._name(file.path, root)
            return cast(BinaryIO, fs.open(name, "rb", block_size=_BLOCK_BYTES))

    def remove(self, file: InputFile) -> None:
        fs, root = self.connected()
        with suppress(FileNotFoundError), as_os_errors(self.url):
            fs.rm_file(self._name(file.path, root))

    def move(self, file: InputFile, target: str) -> None:
        fs, root = self.connected()
        with as_os_errors(self.url):
            self._copy(fs, self._name(file.path, root), fs._strip_protocol(target), file.size)
        self.remove(file)

    def _may_hold(self, folder: str) -> bool:
        return may_hold(self.url, f"{self.folder_url}/{folder}", recursive=self._recursive)

    def _path(self, name: str, root: str) -> str:
        return self.folder_url + name.rstrip("/").removeprefix(root)

    def _name(self, path: str, root: str) -> str:
        return root + path.removeprefix(self.folder_url)

    def _is_file(self, info: Mapping[str, Any]) -> bool:
        """Returns False also for the empty object by which some tools make a folder. adlfs leaves
        out the slash at the end of its name."""
        is_named = info["type"] == "file" and not info["name"].endswith("/")
        return is_named and (info["size"] > 0 or scheme_of(self.url) != "abfs")

    def _file(self, info: Mapping[str, Any], root: str) -> InputFile:
        etag = next((str(info[key]) for key in _CONTENT if info.get(key)), "")
        return InputFile(_mtime_ns(info), self._path(info["name"], root), info["size"], etag=etag)


class RemoteStagedFile:
    """One file under `.staging`."""

    def __init__(self, folder: RemoteOutput, place: str) -> None:
        fs, root = folder.connected()
        self.name = f"{folder.url}/{place}"
        self._fs, self._path = fs, f"{root}/{place}"
        with as_os_errors(self.name):
            self._content = _Counted(fs.open(self._path, "wb", block_size=_BLOCK_BYTES), self.name)
        self.file = cast(BinaryIO, self._content)

    @property
    def written(self) -> int:
        return self._content.bytes

    def seal(self) -> Sealed:
        self._content.end()
        return Sealed(self.name, self._content.bytes, self._content.digest.intdigest())

    def discard(self) -> None:
        with suppress(OSError):
            self._content.end()
        with suppress(FileNotFoundError), as_os_errors(self.name):
            self._fs.rm_file(self._path)


class _Counted(io.RawIOBase):
    """Output stream that computes size and checksum."""

    def __init__(self, target: Any, name: str) -> None:
        self._target, self._name = target, name
        self.bytes, self.digest = 0, xxhash.xxh3_64()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        with as_os_errors(self._name):
            self._target.write(bytes(view))
        self.digest.update(view)
        self.bytes += len(view)
        return len(view)

    def end(self) -> None:
        with as_os_errors(self._name):
            self._target.close()


class RemoteOutput(_Folder):
    """A folder that belongs to one sink."""

    _kept: bool = False

    def make(self, job: str, sink: str) -> None:
        if self._kept:
            return
        probe = f"{EPOCHS_FOLDER}/.probe-{secrets.token_hex(8)}"
        self.create(probe, "1")
        is_kept = not self.create(probe, "2")
        self._remove(probe)
        if not is_kept:
            raise PermissionError(
                errno.EPERM,
                f"{self.url} is reached by a driver that does not keep a document as it is, by "
                "which one of two executions is told that the other has committed",
            )
        self._kept = True

    def stage(self, output: OutputName) -> RemoteStagedFile:
        t = output.transaction
        return RemoteStagedFile(self, f"{STAGING_FOLDER}/{t.job}/{t.sink}/{output.staged}")

    def publish(self, artifact: Artifact) -> bool:
        fs, root = self.connected()
        if not artifact.token.startswith(f"{self.url}/{STAGING_FOLDER}/"):
            raise OSError(errno.EXDEV, "it was staged in another place", artifact.token)
        staged, target = self._name(artifact.token, root), f"{root}/{artifact.target}"
        with as_os_errors(self.url):
            try:
                self._copy(fs, staged, target, artifact.bytes)
            except FileNotFoundError:
                return self._is_published(fs, target, artifact)
        self._remove(artifact.token.removeprefix(f"{self.url}/"))
        return True

    def _is_published(self, fs: Any, target: str, artifact: Artifact) -> bool:
        try:
            with fs.open(target, "rb") as stream:
                return stream_checksum(stream) == artifact.checksum
        except FileNotFoundError:
            return False

    def each(self, work: Callable[[Artifact], bool], artifacts: Sequence[Artifact]) -> list[bool]:
        return [work(artifact) for artifact in artifacts]

    def make_durable(self, artifacts: Sequence[Artifact]) -> None:
        """Does nothing: servers answer when data is durable."""

    def discard(self, token: str) -> None:
        self._remove(token.removeprefix(f"{self.url}/"))

    def orphans(self, job: str, sink: str, before: int, keep: Collection[str]) -> Iterator[str]:
        fs, root = self.connected()
        folder = f"{STAGING_FOLDER}/{job}/{sink}"
        with as_os_errors(self.url):
            try:
                names = [info["name"] for info in fs.ls(f"{root}/{folder}", detail=True)]
            except FileNotFoundError:
                return
        for name in (one.rpartition("/")[2] for one in names):
            owner, token = name.split("-", 1)[0], f"{self.url}/{folder}/{name}"
            if owner.isdigit() and int(owner) < before and token not in keep:
                yield token

    def read(self, name: str) -> str | None:
        fs, root = self.connected()
        with as_os_errors(self.url):
            try:
                return cast(bytes, fs.cat_file(f"{root}/{name}")).decode()
            except FileNotFoundError:
                return None

    def create(self, name: str, text: str) -> bool:
        fs, root = self.connected()
        with as_os_errors(self.url):
            try:
                fs.pipe_file(f"{root}/{name}", text.encode(), mode="create")
            except Exception as error:
                if isinstance(error, FileExistsError) or getattr(error, "code", None) in _TAKEN:
                    return False
                raise
        return True

    def remove(self, name: str) -> None:
        self._remove(name)

    def is_there(self) -> bool:
        return self.read(f"{EPOCHS_FOLDER}/.owner") is not None

    def names(self, beginning: str) -> Iterator[str]:
        fs, root = self.connected()
        folder, _, start = beginning.rpartition("/")
        with as_os_errors(self.url):
            try:
                found = fs.ls(f"{root}/{folder}", detail=False)
            except FileNotFoundError:
                return
        names = (path.rstrip("/").rpartition("/")[2] for path in found)
        yield from (name for name in names if name.startswith(start))

    def published(self) -> Iterator[str]:
        fs, root = self.connected()
        with as_os_errors(self.url):
            found = self._below(fs, root, lambda folder: is_partition(folder.rpartition("/")[2]))
        for path in (info["name"].removeprefix(f"{root}/") for info in found):
            if is_published(path):
                yield path.rpartition("/")[2]

    def remove_all(self, names: Collection[str]) -> None:
        for name in names:
            self._remove(name)

    def _name(self, path: str, root: str) -> str:
        return root + path.removeprefix(self.url)

    def _remove(self, name: str) -> None:
        fs, root = self.connected()
        with suppress(FileNotFoundError), as_os_errors(self.url):
            fs.rm_file(f"{root}/{name}")


def _mtime_ns(info: Mapping[str, Any]) -> int:
    for key in ("mtime", "last_modified", "created"):
        when = info.get(key)
        if isinstance(when, datetime):
            return int(when.timestamp() * 1000) * 10**6
        if isinstance(when, int | float):
            return int(when * 1000) * 10**6
    return 0

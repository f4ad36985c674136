"""Local and mounted folders.

Output is staged and fsynced under `.staging/<job>/<sink>/` in phase 1, and renamed in phase 2.
Documents are written under a temporary name and linked, so that they appear atomically.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from dagster_jet.connectors.files.checksum import file_checksum
from dagster_jet.connectors.files.places.location import is_pattern
from dagster_jet.connectors.files.places.place import (
    EPOCHS_FOLDER,
    STAGING_FOLDER,
    InputFile,
    Known,
    Listing,
    OutputName,
    Sealed,
    is_finished,
    is_partition,
    is_read_folder,
    unknown,
)
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.durable import make_folder, sync_folder

_BUFFER_BYTES = 1 << 20
_GONE = (FileNotFoundError, NotADirectoryError)
"""Errors that say that a folder is not there; with any other it may be."""


@dataclass(frozen=True)
class LocalInput:
    """A folder or a glob pattern; symbolic links are not followed in names."""

    path: str
    recursive: bool = False
    reads_what_was_planned = False

    @property
    def folder_url(self) -> str:
        path = self.path
        if is_pattern(path):
            while glob.has_magic(path):
                path = os.path.dirname(path)
        return os.path.abspath(path)

    def listing(self, known: Known = unknown) -> Listing:
        found: dict[str, InputFile | None] = {}
        for name in self._names():
            if is_finished(os.path.basename(name)):
                found[name] = known(name) or self.find(name)
            elif is_read_folder(os.path.basename(name)):
                found[name] = None
        return Listing(
            tuple(file for file in found.values() if file is not None),
            tuple(n for n, file in found.items() if file is None and os.path.isdir(n)),
        )

    def _names(self) -> list[str]:
        """Returns distinct absolute paths."""
        if is_pattern(self.path):
            return list(dict.fromkeys(map(os.path.abspath, _matching(self.path))))
        with os.scandir(self.folder_url) as entries:
            found = [entry.path for entry in entries]
        return [path for one in found for path in _below(one)] if self.recursive else found

    def find(self, path: str) -> InputFile | None:
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not S_ISREG(status.st_mode):
            return None
        return InputFile(status.st_mtime_ns, path, status.st_size)

    def checksum(self, file: InputFile) -> int:
        return file_checksum(file.path)

    def open(self, file: InputFile) -> BinaryIO:
        return open(file.path, "rb")

    def remove(self, file: InputFile) -> None:
        Path(file.path).unlink(missing_ok=True)

    def move(self, file: InputFile, target: str) -> None:
        make_folder(Path(target).parent)
        os.rename(file.path, target)


def _matching(pattern: str, *, are_folders: bool = False) -> Iterator[str]:
    """Yields what `glob.glob` finds, which takes a folder that cannot be read for an empty one.

    Args:
        are_folders: only folders are needed.
    """
    folder, name = os.path.split(pattern)
    is_literal = not glob.has_magic(name)
    for one in _matching(folder, are_folders=True) if glob.has_magic(folder) else (folder,):
        if is_literal:
            found = [name] if _is_there(os.path.join(one, name)) else []
        else:
            entries = _entries(one)
            if are_folders:
                entries = [entry for entry in entries if not entry.is_file(follow_symlinks=False)]
            found = fnmatch.filter([entry.name for entry in entries], name)
        for match in found:
            if is_literal or name.startswith(".") or not match.startswith("."):
                yield os.path.join(one, match)


def _is_there(path: str) -> bool:
    with suppress(*_GONE):
        os.lstat(path)
        return True
    return False


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Returns what is in a folder; nothing if it is gone."""
    with suppress(*_GONE), os.scandir(folder) as entries:
        return list(entries)
    return []


def _below(path: str) -> Iterator[str]:
    """Yields a file, or those in a folder and its subfolders; skips hidden and temporary folders,
    and links to folders."""
    if not os.path.isdir(path):
        yield path
    elif is_read_folder(os.path.basename(path)) and not os.path.islink(path):
        for folder, folders, names in os.walk(path, onerror=_unless_gone):
            folders[:] = filter(is_read_folder, folders)
            yield from (os.path.join(folder, name) for name in names)


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, _GONE):
        raise error


@dataclass
class LocalStagedFile:
    """One file under `.staging`."""

    path: Path

    def __post_init__(self) -> None:
        self.name = str(self.path)
        self.file: BinaryIO = open(self.path, "wb", buffering=_BUFFER_BYTES)

    @property
    def written(self) -> int:
        return self.file.seek(0, os.SEEK_CUR)

    def seal(self) -> Sealed:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        sync_folder(self.path.parent)
        return Sealed(self.name, self.path.stat().st_size, file_checksum(self.path))

    def discard(self) -> None:
        with suppress(OSError):  # fails again after a failed write
            self.file.close()
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class LocalOutput:
    """One folder."""

    path: Path

    def make(self, job: str, sink: str) -> None:
        make_folder(self.path / EPOCHS_FOLDER)
        make_folder(self._staging(job, sink))

    def stage(self, output: OutputName) -> LocalStagedFile:
        t = output.transaction
        return LocalStagedFile(self._staging(t.job, t.sink) / output.staged)

    def publish(self, artifact: Artifact) -> bool:
        target = self.path / artifact.target
        with suppress(FileNotFoundError):
            os.rename(artifact.token, target)
            return True
        with suppress(FileNotFoundError):
            if os.path.exists(artifact.token):  # its partition is new
                make_folder(target.parent)
                os.rename(artifact.token, target)
                return True
        try:
            return file_checksum(target) == artifact.checksum
        except FileNotFoundError:
            return False

    def each(self, work: Callable[[Artifact], bool], artifacts: Sequence[Artifact]) -> list[bool]:
        return [work(artifact) for artifact in artifacts]

    def make_durable(self, artifacts: Sequence[Artifact]) -> None:
        for folder in {os.path.dirname(artifact.target) for artifact in artifacts}:
            sync_folder(self.path / folder)

    def discard(self, token: str) -> None:
        Path(token).unlink(missing_ok=True)

    def orphans(self, job: str, sink: str, before: int, keep: Collection[str]) -> Iterator[str]:
        staging = self._staging(job, sink)
        if not staging.exists():  # the sink left the pipeline, and its folder was deleted
            return
        for path in staging.iterdir():
            owner = path.name.split("-", 1)[0]
            if owner.isdigit() and int(owner) < before and str(path) not in keep:
                yield str(path)

    def read(self, name: str) -> str | None:
        path = self.path / name
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        sync_folder(path.parent)  # its writer may have died before it synced
        return text

    def create(self, name: str, text: str) -> bool:
        path = self.path / name
        mine = path.with_name(f".{path.name.lstrip('.')}.{uuid.uuid4().hex}")
        try:
            with open(mine, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.link(mine, path)
        except FileExistsError:
            return False
        finally:
            mine.unlink(missing_ok=True)
        sync_folder(path.parent)
        return True

    def remove(self, name: str) -> None:
        path = self.path / name
        path.unlink(missing_ok=True)
        sync_folder(path.parent)

    def is_there(self) -> bool:
        try:
            os.stat(self.path / EPOCHS_FOLDER)
        except FileNotFoundError:
            return False
        return True

    def names(self, beginning: str) -> Iterator[str]:
        folder, _, start = beginning.rpartition("/")
        with suppress(FileNotFoundError), os.scandir(self.path / folder) as entries:
            yield from (entry.name for entry in entries if entry.name.startswith(start))

    def published(self) -> Iterator[str]:
        folders = [str(self.path)]
        while folders:
            for entry in _entries(folders.pop()):
                if is_partition(entry.name) and not entry.is_symlink():
                    folders.append(entry.path)
                elif entry.name.startswith("part-"):
                    yield entry.name

    def remove_all(self, names: Collection[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def _staging(self, job: str, sink: str) -> Path:
        return self.path / STAGING_FOLDER / job / sink

"""Interface of all places for the files connectors.

Every failure is an `OSError`. It is transient if it has no number or one listed in
`dagster_jet.system.transient`; others, such as `FileNotFoundError` and `PermissionError`, need a
person.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol, TypeAlias

from dagster_jet.contract import TransactionId
from dagster_jet.snapshot.manifest import Artifact

EPOCHS_FOLDER = "_epochs"
STAGING_FOLDER = ".staging"
_IGNORED_SUFFIXES = (".tmp", ".crc", ".inprogress", ".part", "._COPYING_")


@dataclass(frozen=True, order=True, slots=True)
class InputFile:
    """A finished file in the state in which it was planned."""

    mtime_ns: int
    path: str
    size: int
    checksum: int | None = field(default=None, compare=False)
    """Checksum of a file without ETag, once read; also None if its content could not be read."""
    etag: str = ""
    """ETag of an object, which identifies its content; empty for local files."""
    read_to: int | None = field(default=None, compare=False)
    """In a journal: number of bytes read from the beginning; None: all."""

    def shown(self, bytes_per_row: float) -> str:
        read = "" if self.read_to is None else f", read to byte {self.read_to} of {self.size}"
        rows = round(self.size / bytes_per_row)
        return f"{self.path} ({self.size} bytes, about {rows} rows{read})"


def is_finished(name: str) -> bool:
    """Returns whether the name of a file, without folders, is neither hidden nor temporary."""
    return not is_hidden(name) and not name.endswith(_IGNORED_SUFFIXES)


def is_read_folder(name: str) -> bool:
    """Returns whether the name of a subfolder is neither hidden nor temporary. The value of a
    partition may end like a temporary name: `doc=draft.tmp`."""
    return is_finished(name) or (is_partition(name) and not is_hidden(name))


def is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


@dataclass(frozen=True)
class Listing:
    """Current content of a folder: finished files, and the names of subfolders."""

    files: tuple[InputFile, ...]
    subfolders: tuple[str, ...] = ()


def is_inside(path: str, folder: str) -> bool:
    """Returns whether a file is in the folder or below it, with no hidden or temporary name
    between."""
    inner = path.removeprefix(f"{folder}/")
    *folders, name = inner.split("/")
    return inner != path and is_finished(name) and all(map(is_read_folder, folders))


Known: TypeAlias = Callable[[str], InputFile | None]
"""Returns the file of a path whose state need not be looked up."""


def unknown(_path: str) -> None:
    """No file is known."""


class InputPlace(Protocol):
    """A folder, with or without its subfolders, or a pattern of names, to read from."""

    reads_what_was_planned: bool
    """Whether reading fails if the content no longer has the planned file's ETag."""

    @property
    def folder_url(self) -> str:
        """The folder, or the innermost one with all matches of the pattern."""
        ...

    def listing(self, known: Known = unknown) -> Listing:
        """Returns all finished files.

        Raises:
            FileNotFoundError, NotADirectoryError: the folder does not exist.
            OSError: it, or a subfolder to be read, cannot be read; its files would seem to be gone.
        """
        ...

    def find(self, path: str) -> InputFile | None:
        """Returns the current state of a file; None if it does not exist."""
        ...

    def checksum(self, file: InputFile) -> int | None:
        """Returns the checksum of the content; None if its ETag identifies it."""
        ...

    def open(self, file: InputFile) -> BinaryIO:
        """Opens the content as a seekable stream.

        Raises:
            OSError: it cannot be read, or its content no longer has `file.etag`.
        """
        ...

    def remove(self, file: InputFile) -> None:
        """Deletes a file."""
        ...

    def move(self, file: InputFile, target: str) -> None:
        """Moves a file to a path in the same file system that does not exist. If the place is not
        local, a crash may leave the file and a copy of it."""
        ...


@dataclass(frozen=True)
class Sealed:
    """A durable staged file: its token, size and checksum."""

    token: str
    bytes: int
    checksum: int


class StagedFile(Protocol):
    """A file being written in phase 1, invisible to readers."""

    name: str
    """Name in messages."""
    file: BinaryIO
    """Stream to write to."""

    @property
    def written(self) -> int:
        """Number of bytes written so far."""
        ...

    def seal(self) -> Sealed:
        """Finishes the file, which is durable on return."""
        ...

    def discard(self) -> None:
        """Removes the file in any state, best effort."""


class OutputPlace(Protocol):
    """A folder that belongs to one sink.

    Documents are small texts by their name in the folder: `_epochs/0000000001.json`.
    """

    def make(self, job: str, sink: str) -> None:
        """Prepares the folder for staged and committed files, durably."""

    def stage(self, output: OutputName) -> StagedFile:
        """Begins a file of phase 1; an orphan of it names its execution (`orphans`)."""
        ...

    def publish(self, artifact: Artifact) -> bool:
        """Moves a sealed file to its final name, unless it is already there.

        Returns False if it is in neither place. After a crash it is in one of them, complete.

        Raises:
            OSError: with `errno.EXDEV` if it was staged for another place.
        """
        ...

    def each(self, work: Callable[[Artifact], bool], artifacts: Sequence[Artifact]) -> list[bool]:
        """Does the work for each artifact, in parallel if it waits for a server."""
        ...

    def make_durable(self, artifacts: Sequence[Artifact]) -> None:
        """Makes published files durable."""

    def discard(self, token: str) -> None:
        """Removes a sealed file, if it exists and was not published."""

    def orphans(self, job: str, sink: str, before: int, keep: Collection[str]) -> Iterator[str]:
        """Yields the tokens of unpublished staged files of executions older than `before`, except
        those in `keep` and files that do not name their execution."""
        ...

    def read(self, name: str) -> str | None:
        """Returns a document, which is durable on return whoever wrote it; None if missing."""
        ...

    def create(self, name: str, text: str) -> bool:
        """Writes a document, durably and atomically; False if it exists."""
        ...

    def remove(self, name: str) -> None:
        """Removes a document if it exists, durably."""

    def is_there(self) -> bool:
        """Returns whether the folder that `make` made exists."""
        ...

    def names(self, beginning: str) -> Iterator[str]:
        """Yields the names of files with this prefix, without its folder: in the subfolder for
        `_epochs/`."""
        ...

    def published(self) -> Iterator[str]:
        """Yields the names of files that begin with `part-`, without their partition's folder.

        Raises:
            OSError: a folder cannot be read; its files would seem to be gone.
        """
        ...

    def remove_all(self, names: Collection[str]) -> None:
        """Removes documents; missing ones are ignored. A crash may leave some of them."""
        ...


@dataclass(frozen=True)
class OutputName:
    """Names of one file of a writer."""

    transaction: TransactionId
    suffix: str
    folder: str = ""
    """Folder of its partition, with a slash at its end."""
    number: int = 0
    """Number of the file among those of its writer."""

    @property
    def target(self) -> str:
        """Final name in the sink's folder. No other epoch, shard or execution has it."""
        t = self.transaction
        name = f"part-{t.epoch_id:010d}-{t.shard:04d}-{t.execution_id}"
        return f"{self.folder}{name}{self._end}"

    @property
    def staged(self) -> str:
        """Name while it is staged: begins with the execution, and names the attempt."""
        t = self.transaction
        return f"{t.execution_id}-{t.epoch_id}-{t.shard}-{t.attempt}{self._end}"

    @property
    def _end(self) -> str:
        return (f"-{self.number:04d}" if self.number else "") + f".{self.suffix}"


def execution_of(target: str) -> int | None:
    """Returns the execution id in a final name of a sink without or with partitions; None for other
    names."""
    found = re.fullmatch(r"(?:[^/]+=[^/]*/)*part-\d+-\d+-(\d+)(?:-\d+)?(?:\.\w+)+", target)
    return None if found is None else int(found[1])


def is_partition(folder: str) -> bool:
    """Returns whether a name is that of a partition's folder, whatever its column is called."""
    return "=" in folder  # neither EPOCHS_FOLDER nor STAGING_FOLDER has it


def is_published(path: str) -> bool:
    """Returns whether a path in a sink's folder is that of a committed file."""
    *folders, name = path.split("/")
    return name.startswith("part-") and all(map(is_partition, folders))

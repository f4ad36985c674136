"""What the files connectors need of a place, wherever it is.

Every failure is an `OSError`: one without a number, or one that `dagster_jet.system.transient`
lists, passes; `FileNotFoundError`, `PermissionError` and others need a person.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from dagster_jet.connectors.contract import TransactionId
from dagster_jet.snapshot.manifest import Artifact

EPOCHS_FOLDER = "_epochs"
STAGING_FOLDER = ".staging"
_IGNORED_SUFFIXES = (".tmp", ".crc", ".inprogress", ".part", "._COPYING_")


@dataclass(frozen=True, order=True, slots=True)
class InputFile:
    """One finished file as it was when it was planned."""

    mtime_ns: int
    path: str
    size: int
    checksum: int | None = field(default=None, compare=False)
    """Of local files, once they were read; None too in snapshots of 0.1."""
    etag: str = ""
    """Of objects: which content it is, as their store says; empty for local files."""
    read_to: int | None = field(default=None, compare=False)
    """In a journal: how many bytes from its beginning were read. None: all."""

    def shown(self, bytes_per_row: float) -> str:
        read = "" if self.read_to is None else f", read to byte {self.read_to} of {self.size}"
        rows = round(self.size / bytes_per_row)
        return f"{self.path} ({self.size} bytes, about {rows} rows{read})"


def is_finished(name: str) -> bool:
    """Whether a name without folders is neither hidden nor a temporary one."""
    return not name.startswith((".", "_")) and not name.endswith(_IGNORED_SUFFIXES)


@dataclass(frozen=True)
class Listing:
    """What is in a folder at one moment: finished files, and the names of subfolders."""

    files: tuple[InputFile, ...]
    subfolders: tuple[str, ...] = ()


class InputPlace(Protocol):
    """A folder, or a pattern of names, that is read."""

    reads_what_was_planned: bool
    """Reading fails where the content is no longer that of the planned file's ETag."""

    @property
    def folder_url(self) -> str:
        """The folder, or the innermost one that the pattern cannot leave."""
        ...

    def listing(self) -> Listing:
        """Raises `FileNotFoundError` or `NotADirectoryError` where there is no such folder."""
        ...

    def find(self, path: str) -> InputFile | None:
        """A file as it is now; None where there is none (any more)."""
        ...

    def checksum(self, file: InputFile) -> int | None:
        """Of the content, by which a file is known again; None where its ETag tells that."""
        ...

    def open(self, file: InputFile) -> BinaryIO:
        """Its content, seekable.

        Raises:
            OSError: it cannot be read, or is no longer the content of `file.etag`.
        """
        ...


@dataclass(frozen=True)
class Sealed:
    """A staged file that survives a crash: by which token it is found, and what is in it."""

    token: str
    bytes: int
    checksum: int


class StagedFile(Protocol):
    """A file in the making, in phase 1: no reader sees it."""

    name: str
    """For messages."""
    file: BinaryIO
    """To write into."""

    def seal(self) -> Sealed:
        """Durable on return; nothing is written after that."""
        ...

    def discard(self) -> None:
        """Best effort: removes it, whatever state it is in."""


class OutputPlace(Protocol):
    """A folder that belongs to one sink.

    Documents are small texts by their name in the folder: `_epochs/0000000001.json`.
    """

    def make(self, job: str, sink: str) -> None:
        """Makes the folder able to take what the sink stages and commits, durably."""

    def stage(self, transaction: TransactionId, suffix: str) -> StagedFile:
        """Begins a file of phase 1; what is left of it names its execution (`orphans`)."""
        ...

    def publish(self, artifact: Artifact) -> bool:
        """Puts what was sealed under its final name, unless it is there already.

        False where it is in neither place. A crash inside leaves it in one of them, whole.

        Raises:
            OSError: with `errno.EXDEV` where it was staged for another place.
        """
        ...

    def each(self, work: Callable[[Artifact], bool], artifacts: Sequence[Artifact]) -> list[bool]:
        """Does the work for each, several at once where each waits for a server."""
        ...

    def make_durable(self) -> None:
        """What was published is there after a crash, too."""

    def discard(self, token: str) -> None:
        """Removes what was sealed, if it is still there and was not published."""

    def orphans(self, job: str, sink: str, before: int, keep: Collection[str]) -> Iterator[str]:
        """Tokens of what executions older than `before` have staged and nobody has published,
        except those in `keep`; what does not tell its execution is left out."""
        ...

    def read(self, name: str) -> str | None:
        """A document, durable on return, also what another one wrote; None if there is none."""
        ...

    def create(self, name: str, text: str) -> bool:
        """Writes a document, durably and whole or not at all; False if there is one."""
        ...

    def remove(self, name: str) -> None:
        """Removes a document, if it is there; durable on return."""

    def is_there(self) -> bool:
        """Whether the folder is there that `make` has made."""
        ...

    def names(self, beginning: str) -> Iterator[str]:
        """The names of the files that begin so, without a folder that `beginning` has: in the
        folder for `part-`, in its subfolder for `_epochs/`."""
        ...

    def remove_all(self, names: Collection[str]) -> None:
        """Removes documents; one that is not there is no error. A crash leaves some of them."""
        ...


def target_name(transaction: TransactionId, suffix: str) -> str:
    """The final name of a writer's file: each attempt of it has the same."""
    return (
        f"part-{transaction.epoch_id:010d}-{transaction.shard:04d}-{transaction.execution_id}"
        f".{suffix}"
    )


def execution_of(target: str) -> int | None:
    """The execution that a final name tells; None of other names."""
    found = re.fullmatch(r"part-\d+-\d+-(\d+)\.\w+", target)
    return None if found is None else int(found[1])

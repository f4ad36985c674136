"""Input folder of a files source, with errors that name the job and the stage."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.files.places.place import InputFile, InputPlace, Known, Listing, unknown
from dagster_jet.errors import InputLostError, SourceError, SourceUnavailableError

_logger = logging.getLogger(__name__)

FEW_FILES = 1_000
"""Number of files whose state each call asks for."""
_FULL_LOOK_PAUSE = 20
"""Pause between two looks at the state of more files, as a multiple of a look's duration."""


@dataclass
class InputFolder:
    """A folder, or a pattern, that a source of a job reads."""

    path: str
    storage_options: StorageOptions
    format: str
    job: str
    stage: str
    recursive: bool = False
    _has_named_subfolders: bool = field(default=False, init=False)
    _next_full_look: float = field(default=0.0, init=False)
    """Monotonic time."""

    def __post_init__(self) -> None:
        self.place: InputPlace = open_input(self.path, self.storage_options, self.recursive)

    def files(self, known: Known = unknown) -> tuple[InputFile, ...]:
        """Lists the finished files.

        Users leave thousands of files in a folder that were read. To ask for the state of each in
        every poll would take a core, so most calls ask only for those that `known` does not know.

        Raises:
            SourceError: the folder does not exist.
            SourceUnavailableError: the file system cannot be read now.
        """
        with self.errors_named(self.path):
            began = time.monotonic()
            is_full = began >= self._next_full_look
            try:
                listing = self.place.listing(unknown if is_full else known)
            except (FileNotFoundError, NotADirectoryError) as error:
                is_there = isinstance(error, NotADirectoryError)
                raise self.refused(
                    f"the source folder {self.path!r} "
                    f"{'is a file' if is_there else 'does not exist'}.",
                    None,
                    "Create it, or correct the path.",
                ) from None
        if is_full and known is not unknown and len(listing.files) > FEW_FILES:
            ended = time.monotonic()
            self._next_full_look = ended + _FULL_LOOK_PAUSE * (ended - began)
        if listing.subfolders and not self._has_named_subfolders:
            self._has_named_subfolders = True
            self._name_subfolders(listing)
        return listing.files

    def find(self, path: str) -> InputFile | None:
        """Returns the current file, if it exists. Raises `SourceUnavailableError`."""
        with self.errors_named(path):
            return self.place.find(path)

    def check(self, file: InputFile, bytes_per_row: float) -> None:
        """Raises an error if the file is gone or not as planned."""
        found = self.find(file.path)
        if found == file:
            return
        if found is None:
            raise InputLostError(
                f"the file was removed before it was read completely: {file.shown(bytes_per_row)}.",
                job=self.job,
                stage=self.stage,
                position=file.path,
                cure="Put it back and start again. Without it its rows are missing. Delete files "
                "only when a committed snapshot has their rows (Job.consumed_files()).",
            )
        if found.size == file.size:
            raise SourceUnavailableError(
                "the file was modified, or its time was changed, while it was read.",
                job=self.job,
                stage=self.stage,
                position=file.path,
                cure="The job restarts from its last snapshot and reads it again.",
            )
        raise self.refused(
            f"the file changed while it was read, from {file.size} to {found.size} bytes.",
            file.path,
            "Move finished files in; do not append to them.",
        )

    def refused(self, said: str, position: str | None, cure: str) -> SourceError:
        """Returns an error that a person has to fix."""
        return SourceError(said, job=self.job, stage=self.stage, position=position, cure=cure)

    @contextmanager
    def errors_named(self, path: str) -> Iterator[None]:
        """Converts an `OSError` to `SourceUnavailableError`."""
        try:
            yield
        except OSError as error:
            raise SourceUnavailableError(
                f"the file system cannot be read now: {error.strerror or error}.",
                job=self.job,
                stage=self.stage,
                position=error.filename or path,
                cure="Correct the permissions, or bring the file system back; meanwhile the job "
                "restarts from its last snapshot.",
            ) from error

    def _name_subfolders(self, listing: Listing) -> None:
        """Warns once about ignored subfolders, such as `date=.../`."""
        first = min(listing.subfolders)
        column, equals, _ = os.path.basename(first).partition("=")
        _logger.warning(
            "job %r, stage %r: %d subfolders in %s are not read, such as %s: a source reads the "
            "files of one folder. To read subfolders, use recursive=True; or a pattern (%s), "
            "which can make columns of their names.",
            self.job,
            self.stage,
            len(listing.subfolders),
            self.place.folder_url,
            first,
            os.path.join(
                os.path.dirname(first), f"{column}=*" if equals else "*", f"*.{self.format}"
            ),
        )


def shown_time(mtime_ns: int) -> str:
    """Formats a modification time for people."""
    return datetime.fromtimestamp(mtime_ns / 1e9, timezone.utc).isoformat(" ")

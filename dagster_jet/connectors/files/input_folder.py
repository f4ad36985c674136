"""Input folder of a files source, with errors that name the job and the stage."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.files.places.place import InputFile, InputPlace, Listing
from dagster_jet.errors import InputLostError, SourceError, SourceUnavailableError

_logger = logging.getLogger(__name__)


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

    def __post_init__(self) -> None:
        self.place: InputPlace = open_input(self.path, self.storage_options, self.recursive)

    def files(self) -> tuple[InputFile, ...]:
        """Lists the finished files.

        Raises:
            SourceError: the folder does not exist.
            SourceUnavailableError: the file system cannot be read now.
        """
        with self.errors_named(self.path):
            try:
                listing = self.place.listing()
            except (FileNotFoundError, NotADirectoryError):
                raise self.refused(
                    f"the source folder {self.path!r} does not exist.",
                    None,
                    "Create it, or correct the path.",
                ) from None
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

"""Removes input files, or moves them away, once a committed snapshot has them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from dagster_jet.connectors.files.input_folder import InputFolder
from dagster_jet.connectors.files.places.location import scheme_of
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.errors import ConfigurationError
from dagster_jet.system.durable import make_folder
from dagster_jet.system.failpoint import fail_point

_logger = logging.getLogger(__name__)

_AT_ONCE = 1_000
"""Number of files that one snapshot cleans up; the next one goes on."""


def check_cleaning(
    path: str,
    schema: str | None,
    after_commit: str | None,
    archive: str | None,
    reads: Callable[[str], bool],
) -> None:
    """Raises `ConfigurationError` for options that do not belong together.

    Args:
        reads: whether the source would read a file of this path.
    """
    if after_commit not in (None, "delete", "archive"):
        raise ConfigurationError(
            f"after_commit: {after_commit!r} is unknown.", cure='Use "delete" or "archive".'
        )
    if after_commit is not None and schema is None:
        raise ConfigurationError(
            "after_commit: it needs schema=. A start without it reads the columns from a file in "
            "the folder, and finds none if all were cleaned up.",
            cure='Give column names and types: schema="id long, at timestamp".',
        )
    if (archive is None) is (after_commit == "archive"):
        raise ConfigurationError(
            f"archive: {archive!r} does not fit after_commit={after_commit!r}.",
            cure='Write after_commit="archive", archive="/a/folder".',
        )
    if archive is not None and scheme_of(archive) != scheme_of(path):
        raise ConfigurationError(
            f"archive: {archive!r} is not in the same file system as {path!r}.",
            cure="Name a folder in the same file system.",
        )
    if archive is not None and reads(f"{archive}/x"):
        raise ConfigurationError(
            f"archive: the source reads {archive!r}: archived files would be new ones.",
            cure="Name a folder that it does not read.",
        )


def make_archive(archive: str, folder: str, job: str, stage: str) -> None:
    """Makes a local archive. Raises `ConfigurationError` if files cannot be renamed into it."""
    try:
        make_folder(Path(archive))
        is_apart = os.path.exists(folder) and os.stat(archive).st_dev != os.stat(folder).st_dev
    except OSError as error:
        raise ConfigurationError(
            f"the archive {archive!r} cannot be made: {error.strerror}.",
            job=job,
            stage=stage,
            cure="Correct the path or its permissions.",
        ) from error
    if is_apart:
        raise ConfigurationError(
            f"the archive {archive!r} is on another file system than {folder!r}.",
            job=job,
            stage=stage,
            cure="Name a folder on the same file system: files are renamed into it.",
        )


def handles_of(files: Iterable[InputFile | None]) -> dict[str, Any]:
    """Returns, by path, what identifies files that were read whole; the first ones if many."""
    whole = (file for file in files if file is not None and file.read_to is None)
    return {f.path: [f.mtime_ns, f.size, f.etag] for f in islice(whole, _AT_ONCE)}


@dataclass
class InputCleaning:
    """Cleans up one source's files.

    A file that cannot be cleaned up is still in the folder, and remembered as read: the next
    snapshot tries again, also in another execution.
    """

    folder: InputFolder
    archive: str | None
    """Folder into which files are moved; None: they are deleted."""
    _is_failing: bool = field(default=False, init=False)

    def clean(self, handles: Mapping[str, Any]) -> None:
        """Takes the result of `handles_of`. Leaves a file that was replaced meanwhile."""
        for path, (mtime_ns, size, etag) in handles.items():
            fail_point("files.clean.before")
            try:
                self._clean(InputFile(mtime_ns, path, size, etag=etag))
                self._is_failing = False
            except OSError as error:
                self._report(path, error)

    def _clean(self, file: InputFile) -> None:
        place = self.folder.place
        if place.find(file.path) != file:
            return
        if self.archive is None:
            place.remove(file)
            return
        target = self.archive + file.path.removeprefix(place.folder_url)
        if open_input(self.archive, self.folder.storage_options).find(target) is not None:
            target += f".{file.mtime_ns}"  # an earlier file had this name
        place.move(file, target)

    def _report(self, path: str, error: OSError) -> None:
        if not self._is_failing:
            _logger.warning(
                "job %r, stage %r: %s was read and cannot be cleaned up: %s. It is tried again "
                "after the next snapshot.",
                self.folder.job,
                self.folder.stage,
                path,
                error,
            )
        self._is_failing = True

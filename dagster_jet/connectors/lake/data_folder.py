"""Folder of a table's data files, local or in a bucket. They are written at their final place:
readers see only what the table's metadata names."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from dagster_jet.connectors.files.places.local import LocalStagedFile
from dagster_jet.connectors.files.places.location import StorageOptions, scheme_of
from dagster_jet.connectors.files.places.place import Sealed, StagedFile
from dagster_jet.connectors.lake.s3_access import S3Access
from dagster_jet.connectors.lake.staged_names import may_hold_data
from dagster_jet.system.durable import make_folder

_PLACES_MAX = 64


class DataFolder(Protocol):
    """A folder. Paths are relative to it. Every failure is an `OSError`."""

    def s3_access(self) -> S3Access | None:
        """Returns the access to its bucket, with the credentials of this moment; None: it is
        local."""
        ...

    def check(self, job: str, stage: str) -> None:
        """Checks that an object can be created on condition that there is none.

        Raises:
            ConfigurationError: the place ignores the condition: two writers would lose rows.
        """

    def create(self, path: str) -> StagedFile:
        """Begins a data file."""
        ...

    def finish(self, path: str, file: StagedFile) -> Sealed:
        """Ends a data file, which is durable on return."""
        ...

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Returns the size of each file; None if there is none."""
        ...

    def paths(self, beginning: str | tuple[str, ...]) -> Iterator[str]:
        """Yields the paths, at any depth, of data files whose names have one of the beginnings.
        Folders that begin with an underscore have none."""
        ...

    def remove(self, paths: Collection[str]) -> None:
        """Removes files; missing ones are ignored."""

    def remove_unfinished(self, is_orphan: Callable[[str], bool]) -> int:
        """Removes what is left of files that were never finished, chosen by path."""
        ...


@lru_cache(_PLACES_MAX)
def data_folder(url: str, options: StorageOptions) -> DataFolder:
    """Returns the folder, opened in this process. Cached: it may keep connections."""
    if scheme_of(url) == "file":
        return LocalFolder(url)
    from dagster_jet.connectors.lake.bucket_folder import S3Folder  # imports botocore

    return S3Folder(url, options)


class LocalFolder:
    """A local or mounted folder."""

    def __init__(self, path: str) -> None:
        self._root = Path(path)

    def s3_access(self) -> None:
        return None

    def check(self, job: str, stage: str) -> None:
        """Creates the folder. A version of a log in it is a hard link: only one writer creates
        it."""
        make_folder(self._root)

    def create(self, path: str) -> StagedFile:
        make_folder((self._root / path).parent)
        return LocalStagedFile(self._root / path)

    def finish(self, path: str, file: StagedFile) -> Sealed:
        return file.seal()

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        return [self._size(path) for path in paths]

    def _size(self, path: str) -> int | None:
        with suppress(FileNotFoundError):
            return (self._root / path).stat().st_size
        return None

    def paths(self, beginning: str | tuple[str, ...]) -> Iterator[str]:
        for folder, folders, names in os.walk(self._root):
            folders[:] = [name for name in folders if may_hold_data(name)]
            for name in names:
                if name.startswith(beginning):
                    yield os.path.relpath(os.path.join(folder, name), self._root)

    def remove(self, paths: Collection[str]) -> None:
        for path in paths:
            (self._root / path).unlink(missing_ok=True)

    def remove_unfinished(self, is_orphan: Callable[[str], bool]) -> int:
        """Returns 0: a file that was not finished is listed as any other."""
        return 0

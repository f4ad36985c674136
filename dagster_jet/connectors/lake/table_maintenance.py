"""Maintenance of a table beside the streams that write to it: fewer files, no files of the past.

Files that tasks have staged and that phase 2 has not committed are in no version, so a cleaner that
goes by age may remove them. Their names say for which epoch they are, and the marker says which
epochs are committed: only files of epochs up to the marker are removed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from dagster_jet.connectors.lake.data_folder import DataFolder
from dagster_jet.connectors.lake.staged_names import Owner, StagedName
from dagster_jet.core.durations import in_words
from dagster_jet.errors import ConfigurationError, SinkError

T = TypeVar("T")

BUSY = "Nothing is lost. Let the job commit less often: JobConfig(snapshot_interval=...)."
_SMALL_SHARE = 4
"""A file is small if it has less than the target size divided by this."""


def below_which_small(target_bytes: int) -> int:
    """Returns the size in bytes below which a file is small."""
    return target_bytes // _SMALL_SHARE


@dataclass(frozen=True)
class SmallFiles:
    """Number of files that a table could have less."""

    files: int
    small: int
    """Files below `below_bytes`, without the last one of each partition: that has no other to be
    compacted with."""
    below_bytes: int

    @classmethod
    def of(cls, sizes: Iterable[tuple[Hashable, int]], target_bytes: int) -> SmallFiles:
        """
        Args:
            sizes: partition and size in bytes of each file.
        """
        below, files, small = below_which_small(target_bytes), 0, Counter[Hashable]()
        for partition, size in sizes:
            files += 1
            small[partition] += size < below
        return cls(files, sum(max(0, count - 1) for count in small.values()), below)


@dataclass
class TableMaintenance(ABC):
    """Maintains the table of one sink, in the process that calls it."""

    compacts: ClassVar[str]
    """Sentence on how to compact it."""

    table: str
    """Named in errors."""
    owner: Owner
    job: str
    stage: str

    @abstractmethod
    def run(self, longest_outage_ms: int, target_bytes: int) -> Mapping[str, int | str]:
        """Maintains the table once. Whatever it has done stays if it fails or is killed; the next
        call does the rest.

        Args:
            longest_outage_ms: time that files of the past have to be kept at least.
            target_bytes: size of compacted files.

        Returns:
            What was done, for the eye.

        Raises:
            ConfigurationError: the table keeps files of the past for less time than that.
            SinkError: the table or its place is unavailable.
        """

    @abstractmethod
    def small_files(self, target_bytes: int) -> SmallFiles:
        """Returns the small files of the newest version.

        Raises:
            SinkError: the table or its place is unavailable.
        """

    @abstractmethod
    def errors_named(self) -> AbstractContextManager[None]:
        """Converts errors of the library and of the place to `JetError`."""

    def existing(self, table: T | None) -> T:
        """Returns the table.

        Raises:
            SinkError: there is none.
        """
        if table is None:
            raise SinkError(
                f"there is no table {self.table!r}.",
                job=self.job,
                stage=self.stage,
                cure="Start the job, which creates it.",
            )
        return table

    def remove_committed(
        self, folder: DataFolder, paths: Collection[str], marker: Callable[[str], int]
    ) -> dict[str, int]:
        """Removes files that no version needs, but for staged ones, and counts both.

        Args:
            marker: epoch that the table names for the id of a marker.
        """
        exactly, repeatable = map(marker, self.applications())
        staged = {path for path in paths if self.is_staged(path, (exactly, repeatable))}
        folder.remove([path for path in paths if path not in staged])
        return {"files_removed": len(paths) - len(staged), "files_staged": len(staged)}

    def is_staged(self, path: str, markers: tuple[int, int]) -> bool:
        """Returns whether phase 2 may still commit a file. Files of other sinks count as staged:
        their markers are not known here.

        Args:
            markers: this sink's, of exactly-once and of at-least-once.
        """
        named = StagedName.of(path)
        if named is None:
            return False
        return named.owner != self.owner.short or not named.may_be_committed(*markers)

    def applications(self) -> tuple[str, str]:
        """Returns the ids of the sink's markers: of exactly-once and of at-least-once."""
        exactly, repeatable = (self.owner.application(repeatable=is_so) for is_so in (False, True))
        return exactly, repeatable

    def check_kept(self, kept_ms: int | None, longest_outage_ms: int, setting: str) -> None:
        """Checks that files of the past are kept for longer than an outage lasts.

        Args:
            kept_ms: time by the table's setting; None: it is no time.
            setting: the setting's name.

        Raises:
            ConfigurationError: they are not.
        """
        if kept_ms is not None and kept_ms >= longest_outage_ms:
            return
        kept = "a time that is not known" if kept_ms is None else in_words(kept_ms)
        raise ConfigurationError(
            f"the table {self.table!r} keeps files of the past for {kept}, and an outage may last "
            f"{in_words(longest_outage_ms)}: jobs that read the table would find their next files "
            "gone, and so would commits of staged files, whoever removes these by age.",
            job=self.job,
            stage=self.stage,
            cure=f"Set the table's property {setting}, or a shorter longest_outage.",
        )

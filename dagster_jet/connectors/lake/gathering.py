"""Writes rows of small staged files together, so that a commit of rows that were held back has
fewer and larger files.

    staged files are there -> tasks read those of each partition, and write them into new files
    -> the commit names the new files -> the small ones are removed

Every staged file is a whole data file, so a commit may name it as well: a start whose pipeline
lacks the sink, or does not ask for larger files, does that. New files that no commit names have
names that no start takes for orphans, since a late commit of a dead driver may still name them.
Maintenance removes them, and small ones that a crash has left.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.lake.data_folder import data_folder
from dagster_jet.connectors.lake.data_writer import DataWriter, Layout
from dagster_jet.connectors.lake.staged_file import kept_in
from dagster_jet.connectors.lake.staged_names import Owner
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import SinkError, SinkUnavailableError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.failpoint import fail_point


class TableLayout(Layout, Protocol):
    """A layout that knows the staged files which were written by it."""

    def values_in(self, kept: Mapping[str, Any]) -> Hashable | None:
        """Returns the partition of a staged file, for `DataWriter.write_to`; None if it was written
        by another layout.

        Args:
            kept: what its artifact keeps for the commit.
        """
        ...


@dataclass(frozen=True)
class GatherFiles:
    """Writes the rows of some staged files anew. It pickles, without secrets."""

    table: str
    """Named in errors."""
    url: str
    """Folder of the files."""
    storage_options: StorageOptions
    owner: Owner
    layout: TableLayout
    transaction: TransactionId
    files: tuple[Artifact, ...]
    """In the order of their partitions."""
    target_bytes: int | None = None
    """Size at which a file ends."""

    def __call__(self) -> tuple[Artifact, ...]:
        """Returns the written files. Their names are this call's alone: it may be made twice."""
        folder = data_folder(self.url, self.storage_options)
        alone = replace(self.transaction, attempt=uuid.uuid4().hex)
        names = self.owner.beginning_of_merged
        of = (self.table, folder, self.owner, self.layout, alone)
        writer = DataWriter(*of, names, self.target_bytes)
        try:
            for one in self.files:
                values = self.layout.values_in(kept_in(one))
                for batch in self._rows_of(one):
                    writer.write_to(values, batch)
            written = writer.prepare()
            self._check_rows(written)
        except BaseException:
            writer.abort()
            raise
        fail_point("lake.gather.written")
        return written

    def _check_rows(self, written: Sequence[Artifact]) -> None:
        found, wanted = (sum(one.rows for one in files) for files in (written, self.files))
        if found != wanted:
            raise SinkError(
                f"staged files of the table {self.table!r} have {found} rows, and {wanted} were "
                "staged.",
                job=self.owner.job,
                stage=self.owner.sink,
                cure="Bring the files back as they were. The job restarts meanwhile.",
            )

    def _rows_of(self, staged: Artifact) -> Iterator[pa.RecordBatch]:
        place, whole = open_input(self.url, self.storage_options), f"{self.url}/{staged.target}"
        try:
            found = place.find(whole)
            if found is None:
                raise FileNotFoundError(whole)
            with place.open(found) as file:
                yield from pq.ParquetFile(file).iter_batches()
        except OSError as error:
            raise SinkUnavailableError(
                f"a staged file of the table {self.table!r} cannot be read: {error}.",
                job=self.owner.job,
                stage=self.owner.sink,
                position=staged.target,
                cure="Bring the place back. Nothing is lost: the commit is repeated.",
            ) from error


@dataclass(frozen=True)
class Gathered:
    """Files with the rows of staged ones."""

    of: tuple[str, ...]
    """Tokens of the staged files."""
    named: Sequence[Artifact]
    """To be named by the commit."""
    replaced: Sequence[Artifact]
    """Staged files that it does not name."""


@dataclass(frozen=True)
class Gathering:
    """How a sink's commits have larger files."""

    min_bytes: int
    """Smaller staged files are written together."""
    target_bytes: int
    """Size at which a file ends."""

    def gathered(self, like: GatherFiles, context: CommitContext) -> Gathered:
        """Writes small files of one partition together. `like`: the table and all staged files."""
        by: dict[Hashable, list[Artifact]] = {}
        for one in like.files:
            values = like.layout.values_in(kept_in(one))
            if values is not None and one.bytes < self.min_bytes:
                by.setdefault(values, []).append(one)
        small = [one for files in by.values() if len(files) > 1 for one in files]
        pieces = [
            replace(
                like,
                transaction=replace(like.transaction, shard=number),
                files=files,
                target_bytes=self.target_bytes,
            )
            for number, files in enumerate(self._shares(small))
        ]
        written = context.in_tasks(pieces) if pieces else []
        tokens = {one.token for one in small}
        others = [one for one in like.files if one.token not in tokens]
        named = [*others, *(one for files in written for one in files)]
        return Gathered(tuple(one.token for one in like.files), named, small)

    def _shares(self, files: Sequence[Artifact]) -> list[tuple[Artifact, ...]]:
        """Divides files among tasks, each of which writes about one of the target's size."""
        before, numbers = 0, []
        for one in files:
            numbers.append(before // self.target_bytes)
            before += one.bytes
        shares = groupby(zip(numbers, files, strict=True), key=lambda it: it[0])
        return [tuple(file for _, file in share) for _, share in shares]

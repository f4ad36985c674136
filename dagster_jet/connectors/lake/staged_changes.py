"""Changes that tasks have staged for a merge, and how they are read again, folded to one per key.

<folder of the table>/_dagster_jet/part-....parquet   neither readers nor cleaners look into a
                                                      folder with an underscore
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dagster_jet.connectors.change_columns import (
    OLD,
    OP,
    check_order,
    unknown_key,
    unknown_value,
)
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.lake.folding import Folded, folded_changes, folded_rows
from dagster_jet.connectors.lake.refused_rows import far_in, nulls_in
from dagster_jet.connectors.lake.statistics import Statistics
from dagster_jet.errors import SinkMismatchError

_STAGED = "_dagster_jet"


def staged_at(url: str) -> str:
    """Returns the URL of the folder of staged changes."""
    return f"{url}/{_STAGED}"


@dataclass(frozen=True)
class ChangesLayout:
    """A file has all changes of a task."""

    key: Sequence[str]
    are_changes: bool
    """Whether the rows are changes (`change_columns`), and not rows of the table."""
    job: str
    sink: str
    never_null: Collection[str] = ()
    """Columns in which a changed row has no null. Those of upserts are looked at before."""
    known: Mapping[str, Any] = field(default_factory=dict)
    """Kept with each file, as JSON."""
    partition_by: Collection[str] = ()
    """Columns of the table's partitions, without those of buckets."""

    def divided(self, batch: pa.RecordBatch) -> Iterator[tuple[None, pa.RecordBatch]]:
        """Raises `SinkMismatchError` if a change does not have its key or all its values, or
        changes of a key have no order."""
        why = None
        if self.are_changes:
            check_order(batch, self.key, self.job, self.sink)
            why = unknown_key(batch, self.key) or unknown_value(batch)
        if why is not None:
            raise SinkMismatchError(
                f"{why}.",
                job=self.job,
                stage=self.sink,
                cure="Let the source's table have `replica identity full`. Changes of before that "
                "can only be filtered out.",
            )
        if self.are_changes and (self.never_null or self.partition_by):
            self._check_rows(batch.filter(pc.is_in(batch[OP], pa.array(["insert", "update"]))))
        yield None, batch

    def _check_rows(self, rows: pa.RecordBatch) -> None:
        reasons = nulls_in(rows, self.never_null) | far_in(rows, self.partition_by)
        for why in reasons.values():
            raise SinkMismatchError(
                f"in a changed row {why}, which the table refuses.",
                job=self.job,
                stage=self.sink,
                cure="Change the rows with select(), or let the column of the table be optional.",
            )

    def folder_of(self, values: None) -> str:
        return ""

    def with_statistics(self, schema: pa.Schema) -> Sequence[str]:
        return ()

    def kept(self, values: None, statistics: Statistics) -> Mapping[str, Any]:
        return self.known


@dataclass(frozen=True)
class StagedChanges:
    """Staged files that are merged together. It pickles: every process reads them itself."""

    url: str
    """Folder of the files."""
    storage_options: StorageOptions
    paths: tuple[str, ...]
    """In the folder, in the order of the artifacts."""
    key: tuple[str, ...]
    are_changes: bool

    def folded(self, *, only_keys: bool = False) -> Folded:
        """Returns the last change of each key. Rows have the same order in every process, also if
        only the columns of the key are read.

        Raises:
            OSError: a file cannot be read.
        """
        more = (OP, OLD) if self.are_changes else ()
        columns = [*self.key, *more] if only_keys else None
        fold = folded_changes if self.are_changes else folded_rows
        return fold([self._read(path, columns) for path in self.paths], self.key)

    def _read(self, path: str, columns: list[str] | None) -> pa.Table:
        place, whole = open_input(self.url, self.storage_options), f"{self.url}/{path}"
        found = place.find(whole)
        if found is None:
            raise FileNotFoundError(whole)
        with place.open(found) as file:
            return pq.read_table(file, columns=columns)

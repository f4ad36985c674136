"""Pieces of a merge, which run in Spark's tasks or in the job's process: they look for the keys of
the changes in data files, and write these files anew."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.iceberg.catalog import errors_named
from dagster_jet.connectors.iceberg.data_file import IcebergLayout
from dagster_jet.connectors.iceberg.storage import folder_at, library_options
from dagster_jet.connectors.lake.data_writer import DataWriter
from dagster_jet.connectors.lake.key_numbers import KeyNumbers
from dagster_jet.connectors.lake.staged_changes import StagedChanges
from dagster_jet.connectors.lake.staged_names import Owner
from dagster_jet.contract import TransactionId
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.failpoint import fail_point

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata


@dataclass(frozen=True)
class Merge:
    """Changes, and the table that they are merged into. It pickles, without secrets."""

    table: str
    """Named in errors."""
    owner: Owner
    metadata: TableMetadata
    """Without its snapshots."""
    layout: IcebergLayout
    storage_options: StorageOptions
    changes: StagedChanges

    @property
    def key(self) -> tuple[str, ...]:
        return self.changes.key

    def rows_of(
        self, file: DataFile, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a data file, with the columns that the table has now.

        Args:
            columns: by default all of the table.
        """
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.table import FileScanTask

        from dagster_jet.connectors.iceberg.durable_files import DurableFiles

        schema = self.metadata.schema()
        in_bucket = file.file_path.startswith("s3")
        io = DurableFiles(dict(library_options(self.storage_options, in_bucket=in_bucket)))
        wanted = schema if columns is None else schema.select(*columns)
        scan = ArrowScan(self.metadata, io, wanted, AlwaysTrue())
        # Its public method keeps all rows of a file in memory.
        yield from scan._record_batches_from_scan_tasks_and_deletes([FileScanTask(file)], {})

    def rows(self) -> pa.Table:
        """Returns the changed rows, as the table has them."""
        found = self.changes.folded().rows
        columns = [
            found.column(field.name).cast(field.type)
            if field.name in found.column_names
            else pa.nulls(found.num_rows, field.type)
            for field in self.layout.columns
        ]
        return pa.table(columns, self.layout.columns.names)


@dataclass(frozen=True)
class FindKeys:
    """Reads columns of the key."""

    merge: Merge
    files: tuple[DataFile, ...]

    def __call__(self) -> list[pa.Array]:
        """Returns for each file the numbers of the changes whose keys it has."""
        merge = self.merge
        with errors_named(merge.table, merge.owner.job, merge.owner.sink):
            keys = KeyNumbers(merge.changes.folded(only_keys=True).rows, merge.key)
            return [self._in_file(file, keys) for file in self.files]

    def _in_file(self, file: DataFile, keys: KeyNumbers) -> pa.Array:
        batches = self.merge.rows_of(file, self.merge.key)
        found = [keys.of(batch).drop_null().unique() for batch in batches]
        return pa.concat_arrays([pa.array([], pa.int32()), *found]).unique()


@dataclass(frozen=True)
class WriteMerged:
    """Writes the rows of files whose keys no change has, and changed rows beside them."""

    merge: Merge
    files: tuple[DataFile, ...]
    puts: pa.Array
    """Numbers of the changes whose rows are written here."""
    transaction: TransactionId

    def __call__(self) -> tuple[Artifact, ...]:
        """Returns the written files. Their names are this call's alone: it may be made twice."""
        merge, layout = self.merge, self.merge.layout
        with errors_named(merge.table, merge.owner.job, merge.owner.sink):
            folder = folder_at(layout.data, merge.storage_options)
            alone = replace(self.transaction, attempt=uuid.uuid4().hex)
            writer = DataWriter(merge.table, folder, merge.owner, layout, alone, is_merged=True)
            try:
                changed = merge.rows()
                self._write_others(writer, KeyNumbers(changed, merge.key))
                for batch in changed.take(self.puts).to_batches():
                    writer.write(batch)
                written = writer.prepare()
            except BaseException:
                writer.abort()
                raise
        fail_point("lake.merge.written")
        return written

    def _write_others(self, writer: DataWriter, keys: KeyNumbers) -> None:
        layout = self.merge.layout
        for file in self.files:
            record: Any = file.partition
            values = tuple(record[number] for number in range(len(record)))
            for batch in self.merge.rows_of(file):
                others = batch.filter(pc.is_null(keys.of(batch)))
                if others.num_rows == 0:
                    continue
                if file.spec_id == layout.spec_id:
                    writer.write_to(values, layout.as_written(others))
                else:
                    writer.write(others)

"""Pieces of a merge, which run in Spark's tasks or in the job's process: they look for the keys of
the changes in data files, and write these files anew."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.connectors.iceberg.catalog import errors_named
from dagster_jet.connectors.iceberg.old_file import OldFile
from dagster_jet.connectors.iceberg.old_rows import OldRows
from dagster_jet.connectors.iceberg.storage import folder_at
from dagster_jet.connectors.lake.data_writer import DataWriter
from dagster_jet.connectors.lake.folding import Folded
from dagster_jet.connectors.lake.key_numbers import KeyNumbers
from dagster_jet.connectors.lake.staged_changes import StagedChanges
from dagster_jet.contract import TransactionId
from dagster_jet.operators.rows.casting import cast_column
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.failpoint import fail_point


@dataclass(frozen=True)
class Merge(OldRows):
    """Changes, and the table that they are merged into. It pickles, without secrets."""

    changes: StagedChanges
    target_bytes: int
    """Size at which a data file ends."""

    @property
    def key(self) -> tuple[str, ...]:
        return self.changes.key

    def keys(self) -> Folded:
        """Returns the changes without their other columns. The key has the types of the table,
        which others may have widened since the rows were staged."""
        folded = self.changes.folded(only_keys=True)
        rows = folded.rows
        for name in self.key:
            column = rows.column(name).cast(self.layout.columns.field(name).type)
            rows = rows.set_column(rows.schema.get_field_index(name), name, column)
        return replace(folded, rows=rows)

    def rows(self) -> pa.Table:
        """Returns the changed rows, as the table has them."""
        found = self.changes.folded().rows
        columns = [
            cast_column(
                found.column(field.name)
                if field.name in found.column_names
                else pa.nulls(found.num_rows, field.type),
                field.type,
            )
            for field in self.layout.columns
        ]
        return pa.table(columns, self.layout.columns.names)


@dataclass(frozen=True)
class FindKeys:
    """Reads columns of the key."""

    merge: Merge
    files: tuple[OldFile, ...]

    def __call__(self) -> list[pa.Array]:
        """Returns for each file the numbers of the changes whose keys it has."""
        merge = self.merge
        with errors_named(merge.table, merge.owner.job, merge.owner.sink):
            keys = KeyNumbers(merge.keys().rows, merge.key)
            return [self._in_file(file, keys) for file in self.files]

    def _in_file(self, file: OldFile, keys: KeyNumbers) -> pa.Array:
        batches = self.merge.rows_of(file, self.merge.key)
        found = [keys.of(batch).drop_null().unique() for batch in batches]
        return pa.concat_arrays([pa.array([], pa.int32()), *found]).unique()


@dataclass(frozen=True)
class WriteMerged:
    """Writes the rows of files whose keys no change has, and changed rows beside them."""

    merge: Merge
    files: tuple[OldFile, ...]
    puts: pa.Array
    """Numbers of the changes whose rows are written here."""
    transaction: TransactionId

    def __call__(self) -> tuple[Artifact, ...]:
        """Returns the written files. Their names are this call's alone: it may be made twice."""
        merge, layout = self.merge, self.merge.layout
        with errors_named(merge.table, merge.owner.job, merge.owner.sink):
            folder = folder_at(layout.data, merge.storage_options)
            alone = replace(self.transaction, attempt=uuid.uuid4().hex)
            names = merge.owner.beginning_of_merged
            of = (merge.table, folder, merge.owner, layout, alone)
            writer = DataWriter(*of, names, merge.target_bytes)
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
        for file in self.files:
            for batch in self.merge.rows_of(file):
                others = batch.filter(pc.is_null(keys.of(batch)))
                if others.num_rows:
                    self.merge.write_anew(writer, file, others)

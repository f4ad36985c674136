"""Rows of data files that are written anew: by a merge, and by compaction."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.iceberg.data_file import IcebergLayout
from dagster_jet.connectors.iceberg.old_file import OldFile, file_columns
from dagster_jet.connectors.iceberg.storage import place_of
from dagster_jet.connectors.lake.data_writer import DataWriter
from dagster_jet.connectors.lake.field_ids import Path
from dagster_jet.connectors.lake.staged_names import Owner
from dagster_jet.errors import SinkMismatchError
from dagster_jet.operators.rows.casting import cast_column


@dataclass(frozen=True)
class OldRows:
    """A table whose files are read. It pickles, without secrets."""

    table: str
    """Named in errors."""
    owner: Owner
    layout: IcebergLayout
    storage_options: StorageOptions
    mapped: Mapping[Path, int]
    """Ids of columns by their names in files that have no ids."""

    def rows_of(
        self, file: OldFile, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a data file, with the columns that the table has now, in their types.

        The library's own reading is not used: it makes null lists empty.

        Args:
            columns: by default all of the table.

        Raises:
            SinkMismatchError: the file cannot be written anew without a loss.
        """
        layout = self.layout
        wanted = [one for one in layout.columns if columns is None or one.name in columns]
        place = open_input(place_of(layout.data) or layout.data, self.storage_options)
        found = place.find(file.path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "a data file is gone", file.path)
        with place.open(found) as stream:
            opened = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")
            known = file_columns(opened.schema_arrow, self.mapped)
            for column in wanted:
                if why := file.unfit(layout.ids[column.name], column, known):
                    raise self.refusal(file.path, why)
            names = [known[id].name for one in wanted if (id := layout.ids[one.name]) in known]
            for batch in opened.iter_batches(columns=names):
                arrays = [
                    cast_column(batch.column(known[id].name), one.type)
                    if (id := layout.ids[one.name]) in known
                    else cast_column(pa.nulls(batch.num_rows, one.type), one.type)
                    for one in wanted
                ]
                yield pa.RecordBatch.from_arrays(arrays, [one.name for one in wanted])

    def refusal(self, path: str, why: str) -> SinkMismatchError:
        return SinkMismatchError(
            f"the table {self.table!r} has a data file that is not written anew: {why}.",
            job=self.owner.job,
            stage=self.owner.sink,
            position=path,
            cure="Let its writer write it anew, such as by rewrite_data_files of Spark. Nothing is "
            "lost: the changes are committed then.",
        )

    def write_anew(self, writer: DataWriter, file: OldFile, rows: pa.RecordBatch) -> None:
        """Writes rows of a file, into the partition that they were in if there is one."""
        if file.partition is None:
            writer.write(rows)
        else:
            writer.write_to(file.partition, self.layout.as_written(rows))

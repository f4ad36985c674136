"""Data files of a table: how rows are divided among them, and their entries in a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.iceberg.partition_fields import PartitionField, Values, divided
from dagster_jet.connectors.lake.staged_file import kept_in
from dagster_jet.connectors.lake.statistics import Statistics, short_text
from dagster_jet.operators.rows.casting import cast_column
from dagster_jet.snapshot.manifest import Artifact

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

STATISTICS_MAX = 100
"""Number of leading columns with bounds, as other writers have it."""


@dataclass(frozen=True)
class IcebergLayout:
    """The table as of a start, by which tasks write. It pickles without the library."""

    table_id: str
    data: str
    """URL of the folder of data files, as the metadata name it."""
    schema_id: int
    spec_id: int
    columns: pa.Schema
    """With the ids of the columns, which Parquet keeps."""
    ids: Mapping[str, int]
    partition_by: Sequence[PartitionField]

    def divided(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        """A file has all columns of the rows of one partition."""
        return divided(self.as_written(batch), self.partition_by)

    def as_written(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows as a file has them."""
        return pa.RecordBatch.from_arrays(
            [cast_column(batch.column(field.name), field.type) for field in self.columns],
            schema=self.columns,
        )

    def folder_of(self, values: Values) -> str:
        return ""

    def with_statistics(self, schema: pa.Schema) -> Sequence[str]:
        names: list[str] = schema.names
        return names[:STATISTICS_MAX]

    def known(self) -> Mapping[str, Any]:
        """Returns what the commit has to know of the table at the start, as JSON."""
        return {
            "table": self.table_id,
            "data": self.data,
            "schema": self.schema_id,
            "spec": self.spec_id,
        }

    def values_in(self, kept: Mapping[str, Any]) -> tuple[Any, ...] | None:
        is_own = self.known().items() <= kept.items()
        return tuple(kept["partition"]) if is_own else None

    def kept(self, values: Values, statistics: Statistics) -> Mapping[str, Any]:
        bounds = {name: _bounds(statistics, name) for name in statistics.types}
        return {
            **self.known(),
            "partition": [_as_json(value) for value in values],
            "nulls": {self.ids[name]: count for name, count in statistics.nulls.items()},
            "bounds": {self.ids[name]: both for name, both in bounds.items() if both is not None},
        }


@dataclass(frozen=True)
class LiveFile:
    """A data file of a snapshot."""

    file: DataFile
    manifest: str
    """Path of the manifest that names it."""


def data_file_of(artifact: Artifact, metadata: TableMetadata) -> DataFile:
    """Returns the entry for a manifest."""
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    kept = kept_in(artifact)
    schema, spec = metadata.schema_by_id(kept["schema"]), metadata.specs()[kept["spec"]]
    assert schema is not None
    types = spec.partition_type(schema).fields
    values = [
        _of_json(field.field_type, value)
        for field, value in zip(types, kept["partition"], strict=True)
    ]
    nulls = {int(id): count for id, count in kept["nulls"].items()}
    bounds: list[dict[int, bytes]] = [{}, {}]
    for id, both in kept["bounds"].items():
        type: Any = schema.find_type(int(id))
        for found, value in zip(bounds, both, strict=True):
            found[int(id)] = to_bytes(type, _of_json(type, value))
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{kept['data']}/{artifact.target}",
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=artifact.rows,
        file_size_in_bytes=artifact.bytes,
        column_sizes=None,
        value_counts=dict.fromkeys(nulls, artifact.rows),
        null_value_counts=nulls,
        nan_value_counts=None,
        lower_bounds=bounds[0],
        upper_bounds=bounds[1],
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
        spec_id=kept["spec"],
    )


def _bounds(statistics: Statistics, name: str) -> tuple[Any, Any] | None:
    found = statistics.bound(name)
    if found is not None and isinstance(found[0], str):
        found = short_text(*found)
    return None if found is None else (_as_json(found[0]), _as_json(found[1]))


def _as_json(value: Any) -> Any:
    return str(value) if isinstance(value, Decimal) else value


def _of_json(type: Any, value: Any) -> Any:
    is_decimal = str(type).startswith("decimal")
    return Decimal(value) if is_decimal and value is not None else value

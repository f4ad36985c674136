"""A data file that a merge writes anew, and its columns by their ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.iceberg.partition_fields import IDENTITY, Values
from dagster_jet.connectors.iceberg.storage import place_of
from dagster_jet.connectors.lake.field_ids import Path, id_of

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata


@dataclass(frozen=True)
class OldFile:
    """A file as tasks read it. It pickles without the library."""

    path: str
    partition: Values | None
    """Its partition; None: it was partitioned by other fields than the table is now."""
    in_partition: frozenset[int]
    """Ids of columns whose values its partition has, too."""

    @classmethod
    def of(cls, file: DataFile, metadata: TableMetadata) -> OldFile | None:
        """Returns None if it cannot be read."""
        place, spec = place_of(file.file_path), metadata.specs()[file.spec_id]
        if place is None or file.file_format.name != "PARQUET":
            return None
        record: Any = file.partition
        values = tuple(record[number] for number in range(len(record)))
        return cls(
            place,
            values if file.spec_id == metadata.default_spec_id else None,
            frozenset(f.source_id for f in spec.fields if str(f.transform) == IDENTITY),
        )

    def unfit(self, id: int, column: pa.Field, known: Mapping[int, pa.Field]) -> str | None:
        """Returns why a column of the table cannot be taken from the file; None if it can.

        Args:
            known: the columns of the file.
        """
        if id not in known:
            is_elsewhere = id in self.in_partition or not known
            return f"it has no column {column.name!r}" if is_elsewhere else None
        if _part_ids(known[id]) != _part_ids(column):
            return f"parts of its column {column.name!r} are others than those of the table"
        return None


def file_columns(schema: pa.Schema, mapped: Mapping[Path, int]) -> dict[int, pa.Field]:
    """Returns the columns of a file by their ids.

    Args:
        mapped: ids by name, for files without ids.
    """
    found = {id: column for column in schema if (id := id_of(column)) is not None}
    return found or {mapped[(one.name,)]: one for one in schema if (one.name,) in mapped}


def _part_ids(column: pa.Field) -> list[Any]:
    """Returns the ids of the parts of a nested column, in their order."""
    type = column.type
    if pa.types.is_map(type):
        parts = [type.key_field, type.item_field]
    elif pa.types.is_struct(type):
        parts = list(type)
    elif pa.types.is_list(type) or pa.types.is_large_list(type):
        parts = [type.value_field]
    else:
        parts = []
    return [[id_of(one), _part_ids(one)] for one in parts]

"""Columns of data files by their ids: a file may have other names for them than the table has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from dagster_jet.connectors.files.parquet_columns import UnfitError, spelling

_ID = b"PARQUET:field_id"
Path: TypeAlias = tuple[str, ...]
"""Names that lead to a column or a part of it. A list has `element`, a map `key` and `value`."""


@dataclass(frozen=True)
class FieldIds:
    """Ids by which the columns of a file, and the parts of nested ones, are found."""

    names: Mapping[int, str]
    """`TableRead.names`."""
    mapped: Mapping[Path, int]
    """`AddedFile.mapped`."""

    def renamed(self, file: pa.Schema) -> pa.Schema:
        """Returns the columns of a file under their names in the table; "" for one that the table
        does not have.

        Raises:
            UnfitError: the file does not say which columns it has.
        """
        if not self.names:
            return file
        has_ids = any(id_of(column) is not None for column in file)
        if not has_ids and not self.mapped:
            raise UnfitError(
                "it has no ids of columns, and the table no name mapping (the property "
                "schema.name-mapping.default)"
            )
        return pa.schema([self._renamed(column, (), has_ids) for column in file])

    def _renamed(self, column: pa.Field, parent: Path, has_ids: bool) -> pa.Field:
        path = (*parent, column.name)
        if has_ids:
            id = id_of(column)
            if id is None and parent:
                raise UnfitError(f"{'.'.join(path)} has no id")
        else:
            path = self._spelled(path)
            id = self.mapped.get(path)
        name = "" if id is None else self.names.get(id, "")
        return pa.field(name, self._with_renamed_parts(column.type, path, has_ids))

    def _with_renamed_parts(self, type: pa.DataType, path: Path, has_ids: bool) -> pa.DataType:
        def inner(part: pa.DataType, name: str) -> pa.DataType:
            return self._with_renamed_parts(part, (*path, name), has_ids)

        if pa.types.is_struct(type):
            return pa.struct([self._renamed(part, path, has_ids) for part in type])
        if pa.types.is_map(type):
            return pa.map_(inner(type.key_type, "key"), inner(type.item_type, "value"))
        if pa.types.is_list(type):
            return pa.list_(inner(type.value_type, "element"))
        if pa.types.is_large_list(type):
            return pa.large_list(inner(type.value_type, "element"))
        if pa.types.is_fixed_size_list(type):
            return pa.list_(inner(type.value_type, "element"), type.list_size)
        return type

    def _spelled(self, path: Path) -> Path:
        if path in self.mapped:
            return path
        beside = [known[-1] for known in self.mapped if known[:-1] == path[:-1]]
        return (*path[:-1], spelling(path[-1], beside) or path[-1])


def id_of(column: pa.Field) -> int | None:
    """Returns the id that a Parquet file has for a column or a part of one."""
    found = (column.metadata or {}).get(_ID)
    return None if found is None else int(found)


def with_names_of(type: pa.DataType, column: pa.Array) -> pa.Array:
    """Returns a column as a type that differs in the names of parts only."""
    if column.type == type:
        return column
    if column.offset:  # Arrow does not view a slice with a part of type null
        column = pa.concat_arrays([column, column.slice(0, 0)])
    return column.view(type)

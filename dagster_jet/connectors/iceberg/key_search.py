"""Which data files of a table may have a row with one of some keys, by its metadata alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.connectors.iceberg.data_file import LiveFile
from dagster_jet.connectors.lake.statistics import as_plain

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata


class KeySearch:
    """Keys, compared with the statistics and the partition of each file."""

    def __init__(self, keys: pa.Table, key: Sequence[str], metadata: TableMetadata) -> None:
        self._schema, self._specs = metadata.schema(), metadata.specs()
        ordered = keys.select(list(key)).sort_by(key[0]).combine_chunks()
        fields = [self._schema.find_field(name) for name in key]
        self._columns = {
            field.field_id: (field.field_type, _plain(ordered, field.name)) for field in fields
        }
        self._least_id = fields[0].field_id
        self._ordered: list[Any] = self._columns[self._least_id][1].to_pylist()
        self._partitions: dict[int, dict[int, set[Any]]] = {}

    def among(self, files: Sequence[LiveFile]) -> list[LiveFile]:
        return [one for one in files if self._may_be_in(one.file)]

    def _may_be_in(self, file: DataFile) -> bool:
        for place, values in self._partitions_of(file.spec_id).items():
            if file.partition[place] not in values:
                return False
        first, end = 0, len(self._ordered)
        if (bounds := self._bounds(file, self._least_id)) is not None:
            first = bisect_left(self._ordered, bounds[0])
            end = bisect_right(self._ordered, bounds[1])
        is_in = pa.repeat(True, max(0, end - first))
        for id, (_, column) in self._columns.items():
            if id != self._least_id and (bounds := self._bounds(file, id)) is not None:
                some = column.slice(first, len(is_in))
                is_in = pc.and_(is_in, pc.greater_equal(some, pa.scalar(bounds[0], some.type)))
                is_in = pc.and_(is_in, pc.less_equal(some, pa.scalar(bounds[1], some.type)))
        return bool(pc.any(is_in, min_count=0).as_py())

    def _bounds(self, file: DataFile, id: int) -> tuple[Any, Any] | None:
        """Returns the bounds of a column; None if the file has none."""
        from pyiceberg.conversions import from_bytes

        least, most = (file.lower_bounds or {}).get(id), (file.upper_bounds or {}).get(id)
        if least is None or most is None:
            return None
        type: Any = self._columns[id][0]
        return from_bytes(type, least), from_bytes(type, most)

    def _partitions_of(self, spec_id: int) -> dict[int, set[Any]]:
        """Returns the values that a partition with one of the keys has, by the number of a field
        of a column of the key. A field of which some value is not known is left out."""
        if spec_id not in self._partitions:
            found = {}
            for number, field in enumerate(self._specs[spec_id].fields):
                if field.source_id in self._columns:
                    type, column = self._columns[field.source_id]
                    change = field.transform.transform(type)
                    with suppress(OverflowError):  # the library has no year above 9999
                        found[number] = {change(value) for value in column.unique().to_pylist()}
            self._partitions[spec_id] = found
        return self._partitions[spec_id]


def _plain(keys: pa.Table, name: str) -> pa.Array:
    column = as_plain(keys.column(name))
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)

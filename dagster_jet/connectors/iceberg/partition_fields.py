"""Fields by which a table is partitioned: a column, and a transform of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from dagster_jet.connectors.lake.statistics import as_plain
from dagster_jet.errors import ConfigurationError

Values: TypeAlias = tuple[Any, ...]
"""A partition's values, in the order of its fields. Times are microseconds, dates days since
1970."""
IDENTITY = "identity"
_FIELD = re.compile(r"(year|month|day|hour)\((\w+)\)|(bucket|truncate)\((\d+), *(\w+)\)")


@dataclass(frozen=True)
class PartitionField:
    """A field as the table's metadata describe it."""

    column: str
    transform: str = IDENTITY
    """As in the metadata: "identity", "day", "bucket[16]"."""
    type: str = ""
    """Type of the column in the metadata; "": not known."""

    @classmethod
    def of(cls, text: str) -> PartitionField:
        """Parses an entry of `partition_by`: `day`, `day(at)`, `bucket(16, id)`.

        Raises:
            ConfigurationError: it is no transform.
        """
        found = _FIELD.fullmatch(text)
        if found is None and "(" in text:
            raise ConfigurationError(
                f"partition_by: {text!r} is unknown.",
                cure="Name a column, or write year(c), month(c), day(c), hour(c), bucket(16, c) or "
                "truncate(4, c).",
            )
        if found is None:
            return cls(text)
        simple, column, wide, width, other = found.groups()
        return cls(column, simple) if simple else cls(other, f"{wide}[{width}]")

    def __str__(self) -> str:
        name, _, width = self.transform.rstrip("]").partition("[")
        inside = f"{width}, {self.column}" if width else self.column
        return self.column if self.transform == IDENTITY else f"{name}({inside})"

    def values(self, rows: pa.RecordBatch) -> list[Any]:
        """Returns each row's value."""
        found: list[Any] = as_plain(rows.column(self.column)).to_pylist()
        if self.transform == IDENTITY:
            return found
        changed = self._transform()
        known = {value: changed(value) for value in set(found)}
        return [known[value] for value in found]

    def _transform(self) -> Callable[[Any], Any]:
        from pyiceberg.transforms import parse_transform
        from pyiceberg.types import NestedField

        described = {"id": 1, "name": self.column, "required": False, "type": self.type}
        source = NestedField.model_validate(described).field_type
        transform: Callable[[Any], Any] = parse_transform(self.transform).transform(source)
        return transform


def divided(
    rows: pa.RecordBatch, by: Sequence[PartitionField]
) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Yields the rows of each partition, in their order."""
    if not by:
        yield (), rows
        return
    numbers: dict[Values, list[int]] = {}
    for number, values in enumerate(zip(*(field.values(rows) for field in by), strict=True)):
        numbers.setdefault(values, []).append(number)
    for values, mine in numbers.items():
        yield values, rows if len(numbers) == 1 else rows.take(pa.array(mine, pa.int64()))

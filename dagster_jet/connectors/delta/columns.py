"""Columns of a table, as its log describes them: names, types, and where null is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.errors import PipelineError

if TYPE_CHECKING:
    from deltalake import Schema

_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that Delta Lake refuses in names of columns without column mapping."""
PARTITION_TYPES = ("string", "byte", "short", "integer", "long", "boolean", "date")
"""Types of partition columns whose text is the same for all readers."""


@dataclass(frozen=True)
class Columns:
    """Top-level columns by name, in the table's order."""

    types: Mapping[str, Any]
    """Types of the log's JSON, in which every part may be null."""
    not_null: frozenset[str] = frozenset()
    has_inner_not_null: tuple[str, ...] = ()
    """Columns in which a part is never null."""
    ruled: tuple[str, ...] = ()
    """Columns that their writers check or compute: invariants, generated and identity columns."""

    def as_json(self) -> str:
        """Returns the schema for the log. Every column may be null."""
        fields = [_field(name, type) for name, type in self.types.items()]
        return json.dumps({"type": "struct", "fields": fields})

    def lacking(self, rows: Columns) -> Columns:
        """Returns the columns of rows that the table lacks, under any spelling."""
        known = {name.lower() for name in self.types}
        return Columns({n: type for n, type in rows.types.items() if n.lower() not in known})

    def with_columns(self, more: Columns) -> Columns:
        """Returns these columns and more, which may be null."""
        return replace(self, types={**self.types, **more.types})

    def misfit(self, rows: Columns) -> str | None:
        """Returns why rows with these columns do not fit the table; None if they do."""
        for name, type in rows.types.items():
            if name not in self.types:
                similar = [known for known in self.types if known.lower() == name.lower()]
                but = f", but {similar[0]!r}" if similar else ""
                return f"the table has no column {name!r}{but}"
            if type != self.types[name]:
                return (
                    f"the column {name!r} is {_shown(type)}, in the table it is "
                    f"{_shown(self.types[name])}"
                )
        missing = [name for name in self.types if name not in rows.types]
        return f"the rows have no column {missing[0]!r}" if missing else None


def columns_of(schema: Schema) -> Columns:
    """Returns the columns of a schema of the package `deltalake`."""
    fields = json.loads(schema.to_json())["fields"]
    return Columns(
        {field["name"]: _all_nullable(field["type"]) for field in fields},
        frozenset(field["name"] for field in fields if not field["nullable"]),
        tuple(field["name"] for field in fields if _all_nullable(field["type"]) != field["type"]),
        tuple(field["name"] for field in fields if _is_ruled(field["metadata"])),
    )


def columns_of_rows(schema: pa.Schema) -> Columns:
    """Returns the columns that a table needs for rows.

    Raises:
        PipelineError: a table cannot have such a column; names it.
    """
    import deltalake

    types: dict[str, Any] = {}
    for field in schema:
        if _FORBIDDEN.search(field.name):
            raise PipelineError(
                f"the column {field.name!r} has a character that Delta Lake refuses in names: a "
                "space, a line end, or one of ,;{}()=.",
                cure="Rename it in select(...) before write_to().",
            )
        try:
            found = deltalake.Schema.from_arrow(pa.schema([field]))
        except Exception as error:
            raise PipelineError(
                f"a Delta Lake table cannot have the column {field.name!r}: {field.type}.",
                cure="Convert it, or leave it out, in select(...) before write_to().",
            ) from error
        types |= columns_of(found).types
    return Columns(types)


def check_partition_by(columns: Columns, partition_by: Collection[str]) -> None:
    """
    Raises:
        PipelineError: rows cannot be partitioned by these columns; names the column.
    """
    for name in partition_by:
        type = columns.types.get(name)
        if type not in PARTITION_TYPES:
            has = "the rows have no such column" if type is None else f"it is {_shown(type)}"
            raise PipelineError(
                f"the rows cannot be partitioned by {name!r}: {has}.",
                cure=f"Name columns of the types {', '.join(PARTITION_TYPES)}.",
            )
    if len(columns.types) == len(partition_by):
        raise PipelineError(
            "the rows have partition columns only.", cure="Leave one of them out of partition_by."
        )


def _all_nullable(type: Any) -> Any:
    """Returns the type without what says that a part of it is never null, and without comments."""
    if not isinstance(type, dict):
        return type
    if type["type"] == "struct":
        fields = [_field(f["name"], _all_nullable(f["type"])) for f in type["fields"]]
        return {**type, "fields": fields}
    changed = {name: _all_nullable(part) for name, part in type.items()}
    return {**changed, **{name: True for name in changed if name.endswith("ontainsNull")}}


def _field(name: str, type: Any) -> dict[str, Any]:
    return {"name": name, "type": type, "nullable": True, "metadata": {}}


def _is_ruled(metadata: Mapping[str, Any]) -> bool:
    rules = ("delta.invariants", "delta.generationExpression", "delta.identity.")
    return any(name.startswith(rules) for name in metadata)


def _shown(type: Any) -> str:
    return type if isinstance(type, str) else json.dumps(type)

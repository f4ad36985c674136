"""Checks saved state against the current schema; a restore of different columns is refused.

A key with another type or other columns has another hash, so its state would never be found. A
partial of another type could often be converted, but the chain would then hold both types for good.
Only Spark's analysis and the chunks know columns and types. A snapshot's plan has them from the
analysis (`saved_columns`); they are compared before anything is read. State saved by an older
version is checked when it is read (`in_state_schema`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.operators.deduplicate_in_order import LAST_ROW_COLUMN
from dagster_jet.operators.in_event_order import ROW_COLUMN, InEventOrder
from dagster_jet.operators.interval_join import IntervalJoin
from dagster_jet.operators.newest_versions import NewestVersions
from dagster_jet.operators.operator import Operator
from dagster_jet.operators.rows.casting import cast_column
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches
from dagster_jet.operators.user.pattern import ROW, Pattern
from dagster_jet.operators.user.running import Running
from dagster_jet.snapshot.plan import KEYS, VALUES

_SAVES_COLUMNS_OF_USERS = (IntervalJoin, NewestVersions, StatefulMapInBatches)
"""Operators that save other columns of users than keys. In all other states a column with a user's
name is a key."""

_ROWS = frozenset({ROW_COLUMN, LAST_ROW_COLUMN})
"""Columns with whole rows of the stream, in which a column that is new is null."""


def saved_columns(operator: Operator) -> dict[str, dict[str, str]]:
    """Columns of `Operator.state_schema` and their types, by role, for a stage's plan.

    A join's other columns are listed by side: moving one to the other side changes its meaning.
    """
    schema = operator.state_schema
    if isinstance(operator, IntervalJoin):
        sides = {"left": operator.left_schema.names, "right": operator.right_schema.names}
        roles = {KEYS: operator.key_schema.names, **sides}
    else:
        roles = {KEYS: getattr(operator, "keys", ())}
    taken = {name for names in roles.values() for name in names}
    taken |= _ROWS  # converted when they are read
    roles["own"] = [name for name in schema.names if name not in taken]
    columns = {
        role: {name: _text(schema.field(name).type) for name in names}
        for role, names in roles.items()
    }
    values = {name: _text(kind) for name, kind in _values(operator)}
    return {**columns, VALUES: values} if values else columns


def _values(operator: Operator) -> Iterator[tuple[str, pa.DataType]]:
    """Rows and values in the states of `match` and `running`, which are saved as bytes."""
    inner = operator.inner if isinstance(operator, InEventOrder) else operator
    if not isinstance(inner, StatefulMap):
        return
    if isinstance(inner.function, Pattern):
        yield from ((field.name, field.type) for field in inner.row_schema.field(ROW).type)
    if isinstance(inner.function, Running):
        if inner.on_evict is not None:  # whole results wait for `lead`
            yield from ((field.name, field.type) for field in inner.output_schema)
        for name, call in inner.function.calls:
            yield call.text, inner.output_schema.field(name).type


def in_state_schema(table: pa.Table, operator: Operator, stage: str) -> pa.Table:
    """Converts saved state rows to `Operator.state_schema`.

    Only nullability may differ: it depends on expressions before the stage. Columns that are no
    longer kept are dropped, unless they were keys.

    Raises:
        SnapshotInvalidError: a column is missing or has another type, or the keys were others.
    """
    wanted = operator.state_schema
    columns = [_column(table, field, stage) for field in wanted]
    saving = operator.inner if isinstance(operator, InEventOrder) else operator
    if not isinstance(saving, _SAVES_COLUMNS_OF_USERS):
        keys, now = ([n for n in s.names if not n.startswith("__")] for s in (table.schema, wanted))
        if keys != now:
            raise _refusal(stage, f"has the keys {keys}, they are {now} now")
    return pa.Table.from_arrays(columns, schema=wanted)


def _column(table: pa.Table, field: pa.Field, stage: str) -> pa.ChunkedArray:
    place = table.schema.get_field_index(field.name)
    if place < 0:
        raise _refusal(stage, f"has no column {field.name!r}, which it needs now")
    column = table.column(place)
    if column.type == field.type:
        return column
    if field.name in _ROWS:
        return _waiting_rows(column, field.type, stage)
    try:
        pa.unify_schemas([pa.schema([table.schema.field(place)]), pa.schema([field])])
        return cast_column(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        raise _refusal(
            stage, f"has {field.name!r} as {column.type}, it is {field.type} now"
        ) from None


def _waiting_rows(column: pa.ChunkedArray, wanted: pa.StructType, stage: str) -> pa.ChunkedArray:
    """Rows that wait in the columns that the stream has now: a new column is null in them."""
    rows = column.combine_chunks()
    saved = pa.Table.from_arrays(rows.flatten(), names=rows.type.names)
    values = [
        _column(saved, field, stage).combine_chunks()
        if field.name in saved.column_names
        else pa.nulls(len(rows), field.type)
        for field in wanted
    ]
    return pa.chunked_array(
        [pa.StructArray.from_arrays(values, fields=list(wanted), mask=rows.is_null())]
    )


def _refusal(stage: str, what: str) -> SnapshotInvalidError:
    return SnapshotInvalidError(
        f"the state in the last snapshot {what}.",
        stage=stage,
        cure=f"Undo the change, or drop the state with dropped_state={[stage]!r}.",
    )


def _text(kind: pa.DataType) -> str:
    """Text of a type without nullability of inner values and without the names of list items."""
    if pa.types.is_list(kind):
        return f"list<{_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_text(kind.key_type)}, {_text(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_text(field.type)}' for field in kind)}>"
    return str(kind)

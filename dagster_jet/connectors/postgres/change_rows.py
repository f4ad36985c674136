"""Changes as rows of Spark: the table's columns and those of the change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dagster_jet.connectors.change_columns import LSN, OLD, OP, ROW, UNCHANGED
from dagster_jet.connectors.postgres.pgoutput import Values
from dagster_jet.connectors.postgres.published_table import PublishedTable
from dagster_jet.connectors.postgres.types import reads
from dagster_jet.contract import BadRowRule
from dagster_jet.core.ddl import quoted_name
from dagster_jet.errors import BadRowError
from dagster_jet.operators.user.dead_letters import dead_letter_table, row_json


@dataclass(frozen=True)
class Row:
    """A change, in the current columns of the table."""

    end: int
    """Position in the log after its transaction."""
    number: int
    """Number within the transaction, counting changes of other tables."""
    op: str
    values: Values = field(repr=False)
    old: Values | None = field(default=None, repr=False)
    unchanged: tuple[str, ...] = ()

    @property
    def position(self) -> str:
        return f"{lsn_text(self.end)}, {self.number}"


def schema(table: PublishedTable) -> str:
    """Columns as DDL."""
    columns = [f"{quoted_name(name)} {ddl}" for name, ddl in table.shape]
    old = ", ".join(f"{quoted_name(name)}: {ddl}" for name, ddl in table.shape)
    own = [f"{LSN} bigint", f"{ROW} bigint", f"{OLD} struct<{old}>", f"{UNCHANGED} array<string>"]
    return ", ".join([f"{OP} string", *columns, *own])


def tables_of(
    rows: Sequence[Row], table: PublishedTable, bad_rows: BadRowRule | None, job: str, stage: str
) -> tuple[pa.Table, pa.Table | None]:
    """Returns the rows, and the bad ones as dead letters.

    Args:
        bad_rows: None: a row that Spark cannot represent is an error.

    Raises:
        BadRowError: names column, table and value.
    """
    bad: dict[int, str] = {}
    made = _arrays(rows, table, bad)
    if bad_rows is None:
        for index, reason in bad.items():
            raise BadRowError(
                f"{reason}.",
                job=job,
                stage=stage,
                position=rows[index].position,
                cure="Give the source a sink for dead letters (dead_letter_to), which takes such "
                "rows, and start the job again.",
            )
        return made, None
    for name in bad_rows.required:
        if name not in made.column_names:
            continue  # a stage computes it
        column = made.column(name)
        for index in range(len(rows)):
            if not column[index].is_valid:
                bad.setdefault(index, f"{name} is null")
    letters = [
        (rows[index].position, reason, _raw(rows[index])) for index, reason in sorted(bad.items())
    ]
    if bad:
        made = made.take([index for index in range(len(rows)) if index not in bad])
    return made, dead_letter_table(stage, letters)


def _arrays(rows: Sequence[Row], table: PublishedTable, bad: dict[int, str]) -> pa.Table:
    def column(of: Callable[[Row], Values | None], name: str, kind: pa.DataType) -> pa.Array:
        texts = [None if (values := of(row)) is None else values.get(name) for row in rows]
        return _column(texts, f"the column {name} of {table.name}", kind, bad)

    columns = {OP: pa.array([row.op for row in rows], pa.string())}
    for one in table.columns:
        columns[one.name] = column(lambda row: row.values, one.name, one.kind)
    columns[LSN] = pa.array([row.end for row in rows], pa.int64())
    columns[ROW] = pa.array([row.number for row in rows], pa.int64())
    columns[OLD] = pa.StructArray.from_arrays(
        [column(lambda row: row.old, one.name, one.kind) for one in table.columns],
        fields=[pa.field(one.name, one.kind) for one in table.columns],
        mask=pa.array([row.old is None for row in rows], pa.bool_()),
    )
    columns[UNCHANGED] = pa.array([list(row.unchanged) for row in rows], pa.list_(pa.string()))
    return pa.table(columns)


def _column(
    texts: Sequence[str | None], what: str, kind: pa.DataType, bad: dict[int, str]
) -> pa.Array:
    """Parses texts. A value that Spark cannot represent becomes null and is noted as bad."""
    read = reads(kind)

    def value(text: str | None) -> Any:
        return None if text is None else read(text)

    try:
        return pa.array([value(text) for text in texts], kind)
    except (ValueError, ArithmeticError):
        values = []
        for index, text in enumerate(texts):
            try:
                values.append(pa.scalar(value(text), kind))
            except (ValueError, ArithmeticError):
                values.append(pa.scalar(None, kind))
                said = f"{what} has the value {text!r:.200}, which Spark's type {kind} cannot hold"
                bad.setdefault(index, said)
        return pa.array([one.as_py() for one in values], kind)


def _raw(row: Row) -> str:
    own = {LSN: lsn_text(row.end), ROW: row.number, OLD: row.old, UNCHANGED: row.unchanged}
    return row_json({OP: row.op, **row.values, **own})


def lsn_of(text: str) -> int:
    """Converts a log position to a number."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def lsn_text(lsn: int) -> str:
    """Formats a log position as the server does."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"

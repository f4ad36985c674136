"""Rows that a table refuses, found in the task before the epoch is decided."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.contract import Refused
from dagster_jet.operators.rows.far_times import far_reasons
from dagster_jet.operators.user.dead_letters import row_at


def nulls_in(rows: pa.RecordBatch, columns: Collection[str]) -> dict[int, str]:
    """Returns a reason by number of each row that has a null in one of the columns."""
    found: dict[int, str] = {}
    for name in rows.schema.names:
        if name in columns:
            for number in pc.indices_nonzero(pc.is_null(rows.column(name))).to_pylist():
                found.setdefault(number, f"{name} is null")
    return found


def far_in(rows: pa.RecordBatch, partition_by: Collection[str]) -> dict[int, str]:
    """Returns a reason by number of each row with a date or time in a partition column that is
    before the year 1 or after 9999: with such a partition the libraries neither commit nor read."""
    found: dict[int, str] = {}
    for name in partition_by:
        found |= far_reasons(f"the partition column {name}", rows.column(name))
    return found


def refused_by(table: str, rows: pa.RecordBatch, reasons: Mapping[int, str]) -> dict[int, Refused]:
    """Returns the rows that have a reason, as dead letters."""
    return {
        number: Refused(f"the table {table!r} refuses it: {why}", row_at(rows, number))
        for number, why in reasons.items()
    }

"""Rows of a shared table that belong to one job, told from others' by the values of columns.

A job of one partition can then be computed anew: its rows are removed, and nobody else's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.contract import SinkWriter
from dagster_jet.errors import ConfigurationError, PipelineError
from dagster_jet.operators.rows.far_times import python_values
from dagster_jet.snapshot.manifest import Artifact

Value = str | int | bool
OwnedRows = tuple[tuple[str, Value], ...]
"""Columns and their values; empty: the job owns no rows that can be named."""


def owned_rows(owns: Mapping[str, Value] | None, mode: str) -> OwnedRows:
    """
    Raises:
        ConfigurationError: the mode changes rows of other jobs, or a value has another type.
    """
    if owns and mode != "append":
        raise ConfigurationError(
            f"owns: mode {mode!r} changes rows that other jobs may have written.",
            cure='Use mode="append".',
        )
    for name, value in (owns or {}).items():
        if not isinstance(value, str | int | bool):
            raise ConfigurationError(
                f"owns: the value of {name!r} is {type(value).__name__}.",
                cure='Give a text, an integer or a boolean; a date as "2026-01-31".',
            )
    return tuple((owns or {}).items())


def misfit(owns: OwnedRows, rows: pa.Schema) -> str | None:
    """Returns why no row of a stream can have these values."""
    for name, value in owns:
        if name not in rows.names:
            return f"owns: the rows have no column {name}"
        try:
            pa.scalar(value).cast(rows.field(name).type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return f"owns: {value!r} is no value of the column {name}, {rows.field(name).type}"
    return None


@dataclass
class OwnedRowsWriter(SinkWriter):
    """Refuses rows that a removal would not find."""

    rows: SinkWriter
    owns: OwnedRows

    def write(self, batch: pa.RecordBatch) -> None:
        """
        Raises:
            PipelineError: a row has another value.
        """
        for name, value in self.owns:
            column = batch.column(batch.schema.get_field_index(name))
            is_ours = pc.fill_null(pc.equal(column, pa.scalar(value).cast(column.type)), False)
            if not pc.all(is_ours).as_py() and batch.num_rows:
                [other] = python_values(column.filter(pc.invert(is_ours)).slice(0, 1))
                raise PipelineError(
                    f"a row has {name} = {other!r}, and the job owns the rows with {value!r}.",
                    cure="Filter the rows, or correct owns= of the sink.",
                )
        self.rows.write(batch)

    def prepare(self) -> tuple[Artifact, ...]:
        return self.rows.prepare()

    def abort(self) -> None:
        self.rows.abort()

    def close(self) -> None:
        self.rows.close()

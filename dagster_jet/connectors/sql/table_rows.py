"""Rows of a table as a source, by a growing column.

A database offers no order of commits to query by. So this sees less than a log: no updates, no
deletions, and no row whose value is below one that was already read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dagster_jet.connectors.sql.arrow_rows import spark_type
from dagster_jet.connectors.sql.column_fit import Column
from dagster_jet.connectors.sql.failures import as_source_errors
from dagster_jet.connectors.sql.place import SqlPlace
from dagster_jet.connectors.sql.supported import check_supported
from dagster_jet.connectors.sql.table_reader import TableRowsReader
from dagster_jet.connectors.sql.table_shape import shape_of
from dagster_jet.contract import BadRowRule, Source
from dagster_jet.core.secret import refuse_written_out, shown
from dagster_jet.errors import ConfigurationError, PipelineError


@dataclass(frozen=True)
class TableRowsSource(Source):
    """Reads each row of a table once, as of the time of reading."""

    place: SqlPlace
    column: str
    columns: tuple[Column, ...] = field(default=(), compare=False, repr=False)
    """Columns of the table at this start."""
    asset_key: tuple[str, ...] = ()
    """Asset that the source reads, if the orchestrator knows it; else ()."""

    def __post_init__(self) -> None:
        refuse_written_out(self.place.url, "url")
        if not self.column:
            raise ConfigurationError("column: it is empty.")

    def describe(self) -> dict[str, str]:
        return {
            "kind": "sql_rows",
            "url": shown(self.place.url),
            "table": self.place.table,
            "column": self.column,
            "sees": "new rows, by a growing column; no updates, no deletions",
        }

    def row_schema(self) -> str:
        if not self.columns:
            raise PipelineError(
                "the columns of a table are known only when a job starts.",
                cure="Plan the pipeline with Jet.plan.",
            )
        return ", ".join(f"`{column.name}` {spark_type(column)[0]}" for column in self.columns)

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> TableRowsSource:
        """Reads the table's columns."""
        with as_source_errors(self.place, job, stage), self.place.connected() as connection:
            check_supported(connection, self.place, job, stage)
            shape = shape_of(connection, self.place)
        table = f"table {self.place.table!r} at {shown(self.place.url)}"
        where = f"the {table}"
        wrong, cure = "", "Name a column of whole numbers or times with a unique index of its own."
        if shape is None:
            wrong, cure = f"there is no {table}", "Correct its name."
        else:
            found = next((one for one in shape.columns if one.name == self.column), None)
            if found is None:
                wrong = f"{where} has no column {self.column!r}"
            elif found.kind not in ("integer", "timestamp") or (
                found.kind == "timestamp" and not shape.is_strict  # SQLite's are texts
            ):
                wrong = f"the column {self.column!r} of {where} is {found.shown}"
            elif frozenset({self.column}) not in shape.unique:
                # With equal values in several rows, some rows would never be read.
                wrong = f"the column {self.column!r} of {where} has no unique index"
        if shape is None or wrong:
            raise ConfigurationError(f"{wrong}.", job=job, stage=stage, cure=cure)
        return replace(self, columns=shape.columns)

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> TableRowsReader:
        known = self if self.columns else self.at_start(job, stage, on_one_host=True)
        return TableRowsReader(known.place, known.column, known.columns, job, stage)

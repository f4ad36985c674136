"""A table of a SQL database to enrich a stream with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_jet.connectors.sql.arrow_rows import arrow_table, selected
from dagster_jet.connectors.sql.failures import as_source_errors
from dagster_jet.connectors.sql.place import SqlPlace, sqlalchemy
from dagster_jet.connectors.sql.table_shape import shape_of
from dagster_jet.contract import Table
from dagster_jet.core.secret import refuse_written_out, shown
from dagster_jet.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class SqlTable(Table):
    """A batch table for enrichment, read whole by the driver, in one query."""

    place: SqlPlace
    asset_key: tuple[str, ...] = ()
    """Asset key of this table in an orchestrator; () if none."""

    def __post_init__(self) -> None:
        refuse_written_out(self.place.url, "url")

    def describe(self) -> dict[str, str]:
        return {"kind": "sql", "url": shown(self.place.url), "table": self.place.table}

    def frame(self, spark: SparkSession) -> DataFrame:
        """Returns its rows.

        Raises:
            SourceError: there is no such table, the database refuses access, or Spark's type cannot
                hold a value.
            SourceUnavailableError: the database is unavailable.
        """
        with (
            as_source_errors(self.place, "", ""),
            self.place.connected(autocommit=True) as connection,
        ):
            shape = shape_of(connection, self.place)
            if shape is None:
                raise SourceError(
                    f"the table {self.place.table!r} at {shown(self.place.url)} does not exist.",
                    cure="Create it, or correct the name.",
                )
            table, chosen = selected(connection, self.place, shape.columns)
            asked = sqlalchemy().select(*chosen).select_from(table)
            rows = [tuple(row) for row in connection.execute(asked)]
        return spark.createDataFrame(arrow_table(shape.columns, rows, self.place))

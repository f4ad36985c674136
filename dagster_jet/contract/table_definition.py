"""Tables that a stream is enriched with."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from dagster_jet.contract.definition import Definition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Table(Definition):
    """A batch table to enrich a stream with, read in its current state."""

    @abstractmethod
    def frame(self, spark: SparkSession) -> DataFrame:
        """Returns its rows; reading a row that does not fit the table's schema fails.

        Raises:
            SourceError: there is no such table.
        """

    def locate_bad_row(self, spark: SparkSession) -> str | None:
        """Returns position and content of a row that does not fit, if it can be found."""
        return None

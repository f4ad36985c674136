"""Tables that a stream is enriched with."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

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

    def parts(self) -> frozenset[Any]:
        """Returns what the content consists of, as files with sizes and times; empty if that is not
        known. A read during which a part is replaced or removed is repeated."""
        return frozenset()


class VersionedTable(Table):
    """A table that keeps its earlier versions. Each snapshot notes the version in use, and a start
    after a crash reads that one, so that epochs that are repeated find the same rows."""

    def frame(self, spark: SparkSession) -> DataFrame:
        frame = self.frame_at(spark, self.newest())
        assert frame is not None, "the newest version is there"
        return frame

    @abstractmethod
    def newest(self) -> dict[str, Any]:
        """Returns the version to be read now, as JSON.

        Raises:
            SourceError: there is no such table.
            SourceUnavailableError: it cannot be read now.
        """

    @abstractmethod
    def frame_at(self, spark: SparkSession, version: dict[str, Any]) -> DataFrame | None:
        """Returns the rows of a version, with the table's present columns; None if the table does
        not have the version, or a file of it, any more.

        Raises:
            SourceError: there is no such table.
            SourceUnavailableError: it cannot be read now.
        """

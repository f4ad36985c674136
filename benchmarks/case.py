"""Cases of the races: one question, asked in dagster_jet, in Structured Streaming and in SQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_jet import Pipeline

Read = Callable[[Path], "DataFrame"]
"""The peer's stream of one input folder, columns as in `benchmarks.data.SCHEMA`."""
Query = Callable[[Read, Path], "DataFrame"]
"""Query from the input's folder to the rows that the peer's file sink writes."""


@dataclass(frozen=True)
class Case:
    """Case of a race: both engines read the same files and write files of one format."""

    name: str
    pipeline: Callable[[Path, Path], Pipeline]
    """(input, output)"""
    queries: dict[str, Query]
    """Ways to ask the peer; the first one races unless another is asked for."""
    format: str
    """Format of input and output files: json or parquet."""
    expected: Callable[[Callable[[str], str]], str]
    """DuckDB's answer; it is handed what makes a table expression of an input folder's name."""
    actual: str
    """SQL over `output`, the committed rows: the columns of `expected`, without the sentinel's."""
    output_columns: str = ""
    """Names and types, as DuckDB's read_json wants them; Parquet files know theirs."""

    def query(self, variant: str) -> Query:
        return self.queries[variant or next(iter(self.queries))]

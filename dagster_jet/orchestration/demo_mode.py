"""The same pipeline without any server: generated rows in, JSON files out."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from dagster_jet import sinks, sources
from dagster_jet.core.ddl import split_ddl
from dagster_jet.errors import ConfigurationError, PipelineError
from dagster_jet.pipeline import Pipeline
from dagster_jet.pipeline.graph import EnrichNode, Node, SinkNode, SourceNode

_ROWS = 10_000
_ROWS_PER_SECOND = 50
_KEYS = 5
_FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
_WHOLE = ("byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint")
_FRACTIONS = ("float", "double", "real", "decimal", "dec", "numeric")


def in_demo_mode(
    pipeline: Pipeline, folder: str, rate: float | None = _ROWS_PER_SECOND
) -> Pipeline:
    """Returns the pipeline with generated sources, and sinks below a folder.

    Each source has 10,000 rows; a row is a minute later than the one before it. Text has five
    values per column. Columns that are lists, maps, structs or binary are null.

    Args:
        pipeline: the pipeline.
        folder: the sinks write to ``<folder>/<sink>``.
        rate: rows per second; None: all rows are there at once, for a job that ends by itself.

    Raises:
        ConfigurationError: the columns of a source are not known, or a table is on a server.
    """
    return pipeline._with_nodes({n.name: _node(pipeline, n, folder, rate) for n in pipeline.graph})


def _node(pipeline: Pipeline, node: Node, folder: str, rate: float | None) -> Node:
    if isinstance(node, SourceNode):
        ddl = _columns(pipeline, node)
        rows = [
            {name: _value(name, kind, i) for name, kind in split_ddl(ddl)} for i in range(_ROWS)
        ]
        return replace(node, source=sources.items(rows, schema=ddl, rate=rate))
    if isinstance(node, SinkNode):
        return replace(node, sink=sinks.files(f"{folder}/{node.name}", format="json"))
    from dagster_jet.connectors.sql.sql_table import SqlTable

    if isinstance(node, EnrichNode) and isinstance(node.table, SqlTable):
        raise ConfigurationError(
            "demo_mode: the table is in a database, and no rows are generated for tables.",
            job=pipeline.name,
            stage=node.name,
            cure="Let the function take the table as an argument, and give it tables.files(...).",
        )
    return node


def _columns(pipeline: Pipeline, node: SourceNode) -> str:
    try:
        known = node.source.row_schema()
    except PipelineError:  # only the server knows them
        known = None
    if known is None:
        raise ConfigurationError(
            "demo_mode: the columns of the source are known by its server only.",
            job=pipeline.name,
            stage=node.name,
            cure="Give the source a schema.",
        )
    return known


def _value(name: str, kind: str, number: int) -> Any:
    kind = kind.strip().lower()
    plain = kind.partition(" ")[0].partition("(")[0]
    moment = _FIRST + timedelta(minutes=number)
    if plain == "string":
        return f"{name}-{number % _KEYS}"
    if plain in _WHOLE:
        return number % 100
    if plain in _FRACTIONS:
        return number * 37 % 1000 / 10
    if plain == "boolean":
        return number % 2 == 0
    if plain.startswith("timestamp"):
        return moment.replace(tzinfo=None) if plain == "timestamp_ntz" else moment
    return moment.date() if plain == "date" else None

"""Documentation page of each outside system and its errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dagster_jet.errors import JetError, SinkError, SourceError
from dagster_jet.pipeline.graph import Graph

PAGES: Mapping[str, str] = {
    "delta": "docs/connectors/delta.md",
    "from_batches": "docs/connectors/from-batches.md",
    "iceberg": "docs/connectors/iceberg.md",
    "kafka": "docs/connectors/kafka.md",
    "kafka_held": "docs/connectors/kafka.md",
    "postgres_changes": "docs/connectors/postgres-changes.md",
    "rabbitmq": "docs/connectors/rabbitmq.md",
    "sql": "docs/connectors/sql.md",
    "sql_held": "docs/connectors/sql.md",
    "sqs": "docs/connectors/sqs.md",
    "sql_rows": "docs/connectors/table-rows.md",
}
"""Page by `describe()["kind"]`."""


def pages_of(graph: Graph) -> dict[str, str]:
    """Returns the page of each source and sink that has one, by its name."""
    kinds = {node.name: node.source.describe()["kind"] for node in graph.sources}
    kinds |= {node.name: node.sink.describe()["kind"] for node in graph.sinks}
    return {name: PAGES[kind] for name, kind in kinds.items() if kind in PAGES}


@contextmanager
def leading_to_page(definition: Any) -> Iterator[None]:
    """Adds the page to an error of a source's, sink's or table's definition."""
    try:
        yield
    except JetError as error:
        described = definition.describe() if hasattr(definition, "describe") else {}
        if page := PAGES.get(described.get("kind", "")):
            error.see(page)
        raise


def lead_to_page(error: Exception, pages: Mapping[str, str]) -> None:
    """Adds the page to an error of a source or sink."""
    if isinstance(error, SourceError | SinkError) and (page := pages.get(error.stage or "")):
        error.see(page)

"""A completed job that is submitted again looks for waiting input, and leaves nothing behind."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from dagster_jet import sources
from dagster_jet.connectors.postgres.changes import ChangesSource
from dagster_jet.connectors.rabbitmq.rabbitmq_source import RabbitSource
from dagster_jet.connectors.sqs.sqs_source import SqsSource
from dagster_jet.contract import Source
from dagster_jet.jobs.completed import ignored_input
from dagster_jet.pipeline.graph import Graph, SourceNode
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.store import Store, StoreConfig

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture
def store() -> Iterator[Store]:
    url = f"memory://{uuid.uuid4().hex}"
    with Store.open(StoreConfig((url,), backup_count=0, allow_memory=True)) as opened:
        yield opened


def waiting(store: Store, **read: Source) -> dict[str, dict[str, int]]:
    graph = Graph({name: SourceNode(name, source) for name, source in read.items()})
    manifest = Manifest("j", 1, 1, 1, 1, "", 4, {}, {}, {}, (), completed=True)
    return {event.source: event.waiting for event in ignored_input("j", graph, store, manifest)}


def delta(folder: Path) -> Source:
    deltalake.write_deltalake(folder / "delta", ROWS)
    return sources.delta(str(folder / "delta"))


def iceberg(folder: Path) -> Source:
    folder = folder / "iceberg"
    folder.mkdir()
    options = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}"}
    catalog = load_catalog("lake", **options)
    catalog.create_namespace("space")
    catalog.create_table("space.t", ROWS.schema).append(ROWS)
    catalog.close()
    return sources.iceberg("lake", "space.t", catalog_options=options)


def test_tables_are_looked_at_as_a_start_does(store: Store, tmp_path: Path) -> None:
    """Failed before: without `at_start` their readers cannot be opened."""
    found = waiting(store, d=delta(tmp_path), i=iceberg(tmp_path))
    assert found.keys() == {"d", "i"} and all(all(each.values()) for each in found.values())


@dataclass(frozen=True)
class Queue(Source):
    """Remembers what was done to it."""

    done: list[str] = field(default_factory=list)
    can_peek = False

    def describe(self) -> dict[str, str]:
        return {"kind": "queue"}

    def row_schema(self) -> str:
        return "v long"

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> Source:
        self.done.append("at_start")
        return self

    def open(self, job: str, stage: str, bad_rows: Any) -> Any:
        self.done.append("open")


def test_a_source_in_which_a_look_changes_something_is_left_alone(store: Store) -> None:
    """Failed before: each submit took messages, whose deliveries the broker counts."""
    queue = Queue()
    assert waiting(store, queue=queue) == {} and queue.done == []


@pytest.mark.parametrize("source", [RabbitSource, SqsSource, ChangesSource])
def test_queues_and_slots_are_such_sources(source: type[Source]) -> None:
    assert not source.can_peek

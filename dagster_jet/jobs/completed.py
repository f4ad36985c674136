"""Finds waiting input that a completed job ignores when it is submitted again."""

from __future__ import annotations

from collections.abc import Iterator

from dagster_jet.errors import JetError
from dagster_jet.execution.events import InputIgnored
from dagster_jet.execution.source_polling import poll_now
from dagster_jet.execution.start_connectors import on_store, open_reader
from dagster_jet.pipeline.graph import Graph
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store


def ignored_input(
    job: str, graph: Graph, store: Store, manifest: Manifest
) -> Iterator[InputIgnored]:
    """Yield the sources with more waiting input than the last snapshot has. Starts no Spark.

    A source that cannot be reached is skipped, since nothing is to be read from it.
    """
    snapshots = SnapshotStore(store, job)
    for node in on_store(graph, store).sources:
        try:
            reader = open_reader(node, job, None)
            if node.name in manifest.sources:
                chain = manifest.shards.get(node.name, ((),))[0]
                journal = snapshots.read_journal(node.name, chain)
                reader.restore(manifest.sources[node.name], journal)
            lag = poll_now(reader)
            reader.close()
        except JetError:
            continue
        if lag.items > 0:
            yield InputIgnored(job, node.name, dict(lag.details))

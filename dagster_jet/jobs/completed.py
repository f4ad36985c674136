"""Finds waiting input that a completed job ignores when it is submitted again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from dagster_jet.errors import JetError
from dagster_jet.execution.events import InputIgnored
from dagster_jet.execution.source_polling import poll_now
from dagster_jet.execution.start_connectors import at_start, on_store, open_reader
from dagster_jet.pipeline.graph import Graph
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store


def ignored_input(
    job: str, graph: Graph, store: Store, manifest: Manifest
) -> Iterator[InputIgnored]:
    """Yield the sources with more waiting input than the last snapshot has. Starts no Spark.

    Sources are skipped that cannot be reached, since nothing is to be read from them, and those
    in which a look changes something (`Source.can_peek`).
    """
    snapshots = SnapshotStore(store, job)
    for node in on_store(graph, store).sources:
        if not node.source.can_peek:
            continue
        try:
            # The look is this process's own, so the place need not be shared with others.
            (known,) = at_start(Graph({node.name: node}), job, on_one_host=True).sources
            with closing(open_reader(known, job, None)) as reader:
                if node.name in manifest.sources:
                    chain = manifest.shards.get(node.name, ((),))[0]
                    journal = snapshots.read_journal(node.name, chain)
                    reader.restore(manifest.sources[node.name], journal)
                lag = poll_now(reader)
        except JetError:
            continue
        if lag.items > 0:
            yield InputIgnored(job, node.name, dict(lag.details))

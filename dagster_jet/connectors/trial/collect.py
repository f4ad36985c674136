"""Rows in the memory of the driver process, under a name: for tests and notebooks.

Exactly-once while the process lives: an epoch that was committed is not added again. The rows are
lost with the process; a later process collects only its own epochs.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

import pyarrow as pa

from dagster_jet.connectors.staging import Segment, remove_orphans, rows_of, segments_by_epoch
from dagster_jet.connectors.trial.staged_here import StagedHere
from dagster_jet.contract import CommitContext, Committer
from dagster_jet.core.arrow_types import ArrowTable
from dagster_jet.errors import ArtifactLostError, ConfigurationError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.snapshot.protocol import Guarantee
from dagster_jet.store import Store, StoreHandle


@dataclass
class Collected:
    """Batches committed under one name, and the markers of their epochs."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    markers: set[tuple[object, ...]] = field(default_factory=set)


_collected: dict[str, Collected] = {}
_lock = threading.Lock()


def collected(name: str) -> ArrowTable:
    """Returns all rows committed under the name; an empty table if there are none."""
    with _lock:
        batches = list(_collected.get(name, Collected()).batches)
    if not batches:
        return pa.table({})
    # A stage may have gained a column between epochs.
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    return pa.concat_tables(tables, promote_options="default")


def forget(name: str) -> None:
    """Drops the rows, but keeps the markers of committed epochs."""
    with _lock:
        if name in _collected:
            _collected[name].batches.clear()


@dataclass(frozen=True)
class CollectSink(StagedHere):
    """Adds rows to those collected under a name."""

    name: str
    store: Store | StoreHandle | None = field(default=None, compare=False, repr=False)
    max_guarantee: Guarantee = field(default=Guarantee.EXACTLY_ONCE, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigurationError("name: it is empty.", cure='Give one: collect("results").')

    def describe(self) -> dict[str, str]:
        return {"kind": "collect", "name": self.name}

    def open_committer(self, job: str, stage: str) -> Committer:
        return CollectCommitter(self)


@dataclass
class CollectCommitter(Committer):
    """Adds an epoch's rows unless its marker exists."""

    sink: CollectSink

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        area = self.sink.area(context.job, context.sink)
        for epoch_id, segments in segments_by_epoch(area, artifacts):
            execution_id = context.execution_id if context.repeatable else 0
            assert isinstance(self.sink.store, Store), "on the driver"
            where = self.sink.store.store_id, self.sink.store.config.namespace
            marker = (*where, context.job, context.sink, context.timeline, epoch_id, execution_id)
            with _lock:
                is_done = marker in _collected.setdefault(self.sink.name, Collected()).markers
            if not is_done:
                batches = [batch for one in segments for batch in _rows(one, context)]
                with _lock:
                    kept = _collected[self.sink.name]
                    if marker not in kept.markers:
                        kept.batches += batches
                        kept.markers.add(marker)
            for segment in segments:
                segment.remove()

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        area = self.sink.area(context.job, context.sink)
        return remove_orphans(area, context.execution_id, keep)


def _rows(segment: Segment, context: CommitContext) -> list[pa.RecordBatch]:
    """Rows of a segment. Raises `ArtifactLostError` if it is gone, unless losses are accepted or
    the job recovers: an epoch committed by an earlier process has no segments any more."""
    try:
        return list(rows_of([segment]))
    except ArtifactLostError:
        if not (context.accept_loss or context.recovering):
            raise
        if context.accept_loss:
            context.report_lost(segment.artifact)
        return []

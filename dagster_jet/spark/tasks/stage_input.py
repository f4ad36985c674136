"""A stateful stage as its tasks know it: for the whole execution, and in one epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dagster_jet.connectors.contract import Sink
from dagster_jet.operators.operator import Operator
from dagster_jet.snapshot.manifest import ShardState
from dagster_jet.spark.tasks.column_choice import ColumnChoice
from dagster_jet.spark.tasks.each_pickled import EachPickled


@dataclass(frozen=True)
class OwnSink:
    """A sink that takes what comes out of a stage right in the stage's tasks: no other hop."""

    name: str
    sink: Sink
    columns: ColumnChoice | None = None
    """None: all of them."""
    dead_letters: OwnSink | None = None
    """Takes the rows that the sink's place refuses."""

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if self.columns is None else self.columns.batch(batch)


@dataclass(frozen=True)
class StageSpec:
    """The part that is the same in every epoch of an execution."""

    vertex: str
    operator: Operator
    sinks: tuple[OwnSink, ...] = ()
    """Of the results."""
    dead_letter_sinks: tuple[OwnSink, ...] = ()
    """Of the operator's dead letters."""
    reports_statistics: bool = False
    """The acks carry input statistics (`input_statistics.py`)."""
    statistics_columns: tuple[pa.Field, ...] = ()
    """What these are made from: columns behind those of the operator."""


@dataclass(frozen=True)
class StageInput:
    """The part that is of one epoch."""

    shards: Sequence[ShardState]
    """The state of each shard before the epoch."""
    before_ms: int | None
    """The stage's watermark after earlier epochs: what it closes off is late."""
    after_ms: int | None
    """The stage's watermark after this epoch: what it closes is emitted."""
    expired_until_ms: int | None
    """What has expired in earlier epochs. Not always what the operator says of `before_ms`: it may
    have been another when they ran, and what it let live has to be emitted."""
    obsolete: tuple[str, ...] = field(default=(), repr=False)
    """Local run files that nothing refers to any more, for the tasks to delete."""
    early: bool = False
    """Early results of windows are shown in this epoch."""

    def __getstate__(self) -> dict[str, Any]:
        """For tasks: each of them looks at the states of its own shards alone."""
        return {**self.__dict__, "shards": EachPickled.of(self.shards)}

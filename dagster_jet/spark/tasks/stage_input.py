"""A stateful stage as its tasks see it: for the whole execution, and in one epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dagster_jet.contract import Sink
from dagster_jet.operators.operator import Operator
from dagster_jet.snapshot.manifest import ShardState
from dagster_jet.spark.tasks.column_choice import ColumnChoice
from dagster_jet.spark.tasks.each_pickled import EachPickled
from dagster_jet.spark.tasks.own_watermark import OwnWatermark


@dataclass(frozen=True)
class OwnSink:
    """A sink that the stage's own tasks write to directly."""

    name: str
    sink: Sink
    columns: ColumnChoice | None = None
    """None: all columns."""
    dead_letters: OwnSink | None = None
    """Dead-letter sink for rows that the sink's place refuses."""

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if self.columns is None else self.columns.batch(batch)


@dataclass(frozen=True)
class StageSpec:
    """Parameters that are the same in every epoch of an execution."""

    vertex: str
    operator: Operator
    sinks: tuple[OwnSink, ...] = ()
    """Sinks of the results."""
    dead_letter_sinks: tuple[OwnSink, ...] = ()
    """Sinks of the operator's dead letters."""
    counted_inputs: tuple[int, ...] = ()
    """Ordinals of the inputs whose statistics the acks carry (`input_statistics.py`)."""
    statistics_columns: tuple[pa.Field, ...] = ()
    """Extra trailing columns the statistics are computed from; dropped before `Operator.step`."""
    leaves_out_late: bool = False
    """Late rows go to a sink, and the operator would take them: they are dropped before it."""


@dataclass(frozen=True)
class StageInput:
    """Parameters of one epoch."""

    shards: Sequence[ShardState]
    """The state of each shard before the epoch."""
    before_ms: int | None
    """The stage's watermark after earlier epochs: rows that it has passed are late."""
    after_ms: int | None
    """The stage's watermark after this epoch: results that it closes are emitted. Without this
    epoch's events, if `own_watermark` is set."""
    expired_until_ms: int | None
    """Time up to which state expired in earlier epochs. May differ from the operator's expiry at
    `before_ms`: the operator may have changed since then, and state it kept must be emitted."""
    obsolete: tuple[str, ...] = field(default=(), repr=False)
    """Local run files without references, for the tasks to delete."""
    early: bool = False
    """Early results of windows are emitted in this epoch."""
    clock_ms: int | None = None
    """Clock of the epoch, if the stage has timers in processing time. Never goes back."""
    own_watermark: OwnWatermark | None = None
    """Set if a task with all rows of the epoch may advance `after_ms` by their events."""

    @property
    def now_ms(self) -> int | None:
        """The clock or the watermark, whichever the stage's state expires by."""
        return self.after_ms if self.clock_ms is None else self.clock_ms

    def __getstate__(self) -> dict[str, Any]:
        """Pickles each shard's state by itself: a task reads only the states of its own shards."""
        return {**self.__dict__, "shards": EachPickled.of(self.shards)}

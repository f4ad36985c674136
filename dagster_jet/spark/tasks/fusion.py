"""Stages that run in one task, and how rows get into, through and out of it.

With little input, one task runs all shards of a stage. All its results are then in one place, and
stages that read them can follow in the same task: no second Python process, no second frame to
plan, no cached block in between. State is unaffected: every stage keeps its own runs and chunks per
shard, as in a task of its own.

Source: Hazelcast Jet's isolated local edges, and operator chaining in Flink; here between keyed
stages, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from dagster_jet.operators.operator import PARTITION_COLUMN
from dagster_jet.operators.row_input import RowInput
from dagster_jet.operators.user.dead_letters import DEAD_LETTER_SCHEMA
from dagster_jet.spark.tasks.barrier import ACK_SCHEMA
from dagster_jet.spark.tasks.column_choice import ColumnChoice
from dagster_jet.spark.tasks.input_statistics import InputRef
from dagster_jet.spark.tasks.stage_input import StageSpec
from dagster_jet.spark.tasks.tagged_rows import TaggedRows


@dataclass(frozen=True)
class Link:
    """An input that is fed by a stage of the same task."""

    source: str
    target: InputRef
    rows: RowInput
    columns: ColumnChoice | None = None
    """None: all columns."""

    def shape(self, results: pa.Table, before_ms: int | None) -> tuple[pa.Table, int]:
        """Returns the input, and the number of late rows left out: see `RowInput.shape`."""
        if self.columns is not None:
            results = self.columns.table(results)
        return self.rows.shape(results, before_ms)


@dataclass(frozen=True)
class Fusion:
    """The stages of one task."""

    stages: tuple[StageSpec, ...]
    """Upstream stages first."""
    heads: tuple[InputRef, ...]
    """Inputs fed by Spark, in the order of their tags."""
    links: tuple[Link, ...] = ()
    """Inputs fed inside the task."""
    results_of: tuple[str, ...] = ()
    """Stages whose results are read outside of the task."""
    dead_letters_of: tuple[str, ...] = ()
    """Stages whose dead letters are read outside of the task."""

    @cached_property
    def by_name(self) -> dict[str, StageSpec]:
        return {stage.vertex: stage for stage in self.stages}

    @cached_property
    def counted(self) -> frozenset[InputRef]:
        """Inputs whose statistics the acks carry."""
        return frozenset(
            InputRef(stage.vertex, n) for stage in self.stages for n in stage.counted_inputs
        )

    @cached_property
    def inputs(self) -> TaggedRows:
        """Layout of the input, with a tag per head."""
        return TaggedRows(
            tuple(map(self._head_schema, self.heads)), pa.field(PARTITION_COLUMN, pa.int32())
        )

    @cached_property
    def outputs(self) -> TaggedRows:
        """Layout of the output: acks, results, dead letters, with a tag per stage that is read."""
        results = [self.by_name[name].operator.result_schema for name in self.results_of]
        return TaggedRows((ACK_SCHEMA, *results, *[DEAD_LETTER_SCHEMA] * len(self.dead_letters_of)))

    ack_tag = 0

    def result_tag(self, stage: str) -> int:
        return 1 + self.results_of.index(stage)

    def dead_letter_tag(self, stage: str) -> int:
        return 1 + len(self.results_of) + self.dead_letters_of.index(stage)

    def _head_schema(self, head: InputRef) -> pa.Schema:
        stage = self.by_name[head.stage]
        return pa.schema([*stage.operator.input_schemas[head.ordinal], *stage.statistics_columns])

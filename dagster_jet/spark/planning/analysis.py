"""Analysis of a pipeline: plans every node once on empty inputs, before data flows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from dagster_jet.contract import SOURCE_PARTITION_COLUMN
from dagster_jet.core.collations import refuse_collations
from dagster_jet.core.ddl import quoted_name
from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.graph import (
    EnrichNode,
    Graph,
    MergeNode,
    Node,
    SinkNode,
    SourceNode,
    TimestampsNode,
    TransformNode,
)
from dagster_jet.pipeline.stateful import AggregateNode, StatefulNode
from dagster_jet.spark.cluster.session import empty_frame
from dagster_jet.spark.planning.as_analysed import declared_schema
from dagster_jet.spark.planning.distinct_columns import check_distinct_columns
from dagster_jet.spark.planning.event_time import TimestampsPlan, plan_timestamps
from dagster_jet.spark.planning.execution_plan import ExecutionPlan
from dagster_jet.spark.planning.fusing import by_level, one_by_one
from dagster_jet.spark.planning.operator_plan import OperatorPlan, arrow_schema
from dagster_jet.spark.planning.partition_column import kept_by, partition_paths
from dagster_jet.spark.planning.same_types import check_same_columns, check_same_keys
from dagster_jet.spark.planning.stages import plan_operator
from dagster_jet.spark.planning.stateless import (
    enriched,
    merged,
    planning_of,
    transformed,
    with_ingestion_time,
)
from dagster_jet.spark.planning.wiring import StageWiring, counted_inputs, own_sink, wire_stage
from dagster_jet.spark.plans.plain_columns import plain_columns
from dagster_jet.spark.plans.row_by_row import check_row_by_row, check_seeds
from dagster_jet.spark.plans.used_columns import UsedColumns
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.spark.tasks.column_choice import ColumnChoice
from dagster_jet.spark.tasks.input_statistics import InputRef, Statistics
from dagster_jet.system.own_task import naming

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def analyse(runtime: SparkRuntime, graph: Graph, partition_count: int) -> ExecutionPlan:
    """Plans every node on empty inputs, to find mistakes before data flows; reads tables.

    Raises:
        PipelineError: a column does not exist, or types do not fit; names the stage.
        UserFunctionError: a transform raised.
        JetError: a table cannot be read.
    """
    return _Analysis(runtime, graph, partition_count).run()


@dataclass
class _Analysis:
    """One pass over the nodes, upstream ones first."""

    runtime: SparkRuntime
    graph: Graph
    partition_count: int
    frames: dict[str, DataFrame] = field(default_factory=dict)
    whole: dict[str, DataFrame] = field(default_factory=dict)
    """For nodes on a partition path: the same frame with the partition's column."""
    kept: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """`ExecutionPlan.partition_columns`, including paths that end early."""
    operators: dict[str, OperatorPlan] = field(default_factory=dict)
    counted: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    """`StageWiring.counted_inputs`."""
    plain: dict[str, ColumnChoice] = field(default_factory=dict)
    """Selects downstream of stages that only choose columns."""
    timestamps: dict[str, TimestampsPlan] = field(default_factory=dict)
    stream_columns: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.used = UsedColumns(self.runtime.session)

    def run(self) -> ExecutionPlan:
        self.paths = partition_paths(self.graph, self.runtime.readers)
        self.on_paths = {name for path in self.paths.values() for name in path}
        ignores_case = self.runtime.session.conf.get("spark.sql.caseSensitive") != "true"
        for node in self.graph:
            if not isinstance(node, SinkNode):
                with planning_of(self.runtime.job, node.name):
                    frame = self.frames[node.name] = self._frame(node)
                check_distinct_columns(
                    self.runtime.job, node.name, frame, ignores_case=ignores_case
                )
                continue
            self._check_not_read(node)
            if not node.of_dead_letters:
                stage = self.graph[node.upstream[0]]
                rows = self.frames[stage.upstream[node.late_input] if node.of_late else stage.name]
                # Most places compare names without case, whatever Spark does.
                check_distinct_columns(self.runtime.job, node.name, rows)
                with planning_of(self.runtime.job, node.name):
                    arrow_schema(rows.schema)  # an interval of months has no Arrow type
                node.sink.check_columns(rows, self.runtime.job, node.name)
                own_sink(self.graph, node)
        whole_paths = {
            name: path for name, path in self.paths.items() if self.kept.keys() >= set(path)
        }
        stages = {
            stage.name: wire_stage(
                self.graph, stage, self.operators[stage.name], self.counted[stage.name], self.plain
            )
            for stage in self.graph.stages
        }
        for name, columns in self.used.of(self._ends(stages)).items():
            self.runtime.readers[name].read_only(columns)
        counted = {
            name: InputRef(stage, ordinal)
            for stage, inputs in self.counted.items()
            for ordinal, name in enumerate(inputs)
            if name is not None
        }
        used = {name for path in whole_paths.values() for name in path}
        return ExecutionPlan(
            job=self.runtime.job,
            graph=self.graph,
            stages=stages,
            one_by_one=one_by_one(self.graph, stages),
            by_level=by_level(self.graph, stages, self.plain),
            by_shard=by_level(self.graph, stages, self.plain, of_one_shard=True),
            timestamps={
                name: replace(
                    plan,
                    counted_by=counted.get(name),
                    partitions_of=whole_paths[name][0] if name in whole_paths else None,
                )
                for name, plan in self.timestamps.items()
            },
            partition_columns={name: asked for name, asked in self.kept.items() if name in used},
            stream_columns=self.stream_columns,
            shared=frozenset(node.name for node in self.graph if self._is_shared(node)),
            one_pass={
                one.name: together
                for node in self.graph
                if len(together := self._in_one_pass(node)) > 1
                for one in together
            },
            counted_sources=frozenset(
                source.name
                for source in self.graph.sources
                if not any(
                    isinstance(n, TimestampsNode) for n in self.graph.downstream(source.name)
                )
            ),
            frames=self.frames,
        )

    def _frame(self, node: Node) -> DataFrame:
        inputs = [self.frames[name] for name in node.upstream]
        match node:
            case SourceNode():
                return self._source(node)
            case TimestampsNode():
                return self._timestamps(node, inputs[0])
            case StatefulNode():
                return self._stateful(node, inputs)
            case MergeNode():
                sides = [(name, self.frames[name].schema) for name in node.upstream]
                check_same_columns(self.runtime.job, node.name, sides)
                return merged(inputs)
            case TransformNode():
                frame = self._transform(node, inputs[0])
                return frame if node.is_constant else self._in_any_epoch(node, frame)
            case EnrichNode():
                self.stream_columns[node.name] = columns = tuple(inputs[0].columns)
                table = self.runtime.tables.frame(node, columns)
                sides = [(node.upstream[0], inputs[0].schema), ("the table", table.schema)]
                check_same_keys(self.runtime.job, node.name, sides, node.on)
                return enriched(node, inputs[0], table)
        raise AssertionError(f"{node.kind.value} has no frame")

    def _check_not_read(self, node: SinkNode) -> None:
        for source in self.graph.sources:
            if source.source.reads_output_of(node.sink):
                raise PipelineError(
                    f"the sink writes where the source {source.name!r} reads: the job would read "
                    "its own output, again and again.",
                    job=self.runtime.job,
                    stage=node.name,
                    cure="Let the sink write where the source does not read.",
                )

    def _source(self, node: SourceNode) -> DataFrame:
        schema = declared_schema(self.runtime.job, node)
        if node.name not in self.on_paths:
            reader = self.runtime.readers.get(node.name)
            if reader is not None and reader.skips_columns:
                with suppress(PySparkException):  # a type that Parquet lacks
                    return self.used.empty_frame(node.name, schema)
            return empty_frame(self.runtime.session, StructType.fromDDL(schema))
        self.kept[node.name] = ()
        with_partition = StructType.fromDDL(f"{schema}, {SOURCE_PARTITION_COLUMN} int")
        self.whole[node.name] = empty_frame(self.runtime.session, with_partition)
        return self.whole[node.name].drop(SOURCE_PARTITION_COLUMN)

    def _timestamps(self, node: TimestampsNode, frame: DataFrame) -> DataFrame:
        if node.timestamps.of_ingestion:
            column = node.timestamps.column
            if column in frame.columns:
                raise PipelineError(
                    f"the column {column!r} already exists.",
                    job=self.runtime.job,
                    stage=node.upstream[0],
                    cure="Choose another for with_ingestion_timestamps(column=...).",
                )
            frame = with_ingestion_time(node, frame, 0)
        self.timestamps[node.name] = plan_timestamps(self.runtime.job, node, frame)
        return frame

    def _stateful(self, node: StatefulNode, inputs: list[DataFrame]) -> DataFrame:
        for rows in inputs:
            refuse_collations(rows.schema, getattr(node, "keys", ()))
        watched = {name for name, path in self.paths.items() if self.kept.keys() >= set(path)}
        by_partition = isinstance(node, AggregateNode) and not watched.isdisjoint(node.upstream)
        counted = counted_inputs(self.graph, node, () if by_partition else watched)
        statistics = Statistics.OF_PARTITIONS if by_partition else Statistics.OF_GROUPS
        plan = self.operators[node.name] = plan_operator(
            self.runtime.job,
            node,
            inputs,
            self.partition_count,
            statistics=statistics if any(counted) else Statistics.NONE,
        )
        self.counted[node.name] = () if plan.filters_late or not any(counted) else counted
        # The frame after a stateful stage is a new one: its state covers all epochs.
        return empty_frame(self.runtime.session, plan.result_type)

    def _transform(self, node: TransformNode, frame: DataFrame) -> DataFrame:
        call = partial(transformed, self.runtime, node)
        without = call(frame)
        if not node.per_epoch:
            check_row_by_row(self.runtime.job, node.name, frame, without)
            check_seeds(self.runtime.job, node.name, frame, without, lambda: call(frame))
        if node.is_projection and self._is_behind_stage(node.upstream[0]):
            chosen = plain_columns(frame, without)
            if chosen is not None:
                self.plain[node.name] = chosen
        whole = self.whole.get(node.upstream[0])
        if node.name not in self.on_paths or whole is None:
            return without
        kept = kept_by(node, call, whole, without)
        if kept is None:
            return without
        self.kept[node.name], self.whole[node.name] = kept.asked, kept.frame
        return kept.frame.drop(SOURCE_PARTITION_COLUMN)

    def _in_any_epoch(self, node: TransformNode, frame: DataFrame) -> DataFrame:
        """Makes all columns nullable for a function that runs again in each epoch: it may return
        nulls although it returned none for no rows. Each epoch compares types and names
        (`as_analysed.py`)."""

        def nullable(one: DataFrame) -> DataFrame:
            return one.unionAll(empty_frame(self.runtime.session, one.schema.toNullable()))

        if node.name in self.whole:
            self.whole[node.name] = nullable(self.whole[node.name])
        return nullable(frame)

    def _is_behind_stage(self, name: str) -> bool:
        """Directly downstream of a stage, or with only plain selects in between."""
        return isinstance(self.graph[name], StatefulNode) or name in self.plain

    def _ends(self, stages: Mapping[str, StageWiring]) -> Iterator[DataFrame]:
        """Yields all frames whose rows leave Spark or are kept for several readers."""
        for name, wiring in stages.items():
            for ordinal, upstream in enumerate(self.graph[name].upstream):
                rows = self.frames[upstream]
                if wiring.plan.counts_partitions:
                    rows = self.whole[self.graph[upstream].upstream[0]]
                if wiring.takes_out_late(ordinal):
                    rows = rows.where(~wiring.plan.late[ordinal].condition(0, None))
                yield wiring.plan.shapes[ordinal](rows)
                if ordinal in wiring.late_inputs:
                    yield self.frames[upstream]
        for node in self.graph:
            if isinstance(node, SinkNode):
                if not node.of_late and not node.of_dead_letters:
                    yield self.frames[node.upstream[0]]
            elif isinstance(node, TransformNode) and not node.is_constant:
                yield self.frames[node.upstream[0]]  # the function may read more next epoch
            elif isinstance(node, TimestampsNode):
                yield self.frames[node.name].select(quoted_name(node.timestamps.column))
            elif self._is_shared(node) and not self._is_as_read(node):
                yield self.frames[node.name]  # a frame for several readers is made with all columns

    def _is_as_read(self, node: Node) -> bool:
        """Whether its rows are those of a source, without changes."""
        if isinstance(node, TimestampsNode) and not node.timestamps.of_ingestion:
            return self._is_as_read(self.graph[node.upstream[0]])
        return isinstance(node, SourceNode)

    def _is_shared(self, node: Node) -> bool:
        if isinstance(node, StatefulNode | SinkNode):
            return False  # a stage keeps its own results
        return len(self._readers(node)) - len(self._in_one_pass(node)[1:]) > 1

    def _readers(self, node: Node) -> list[Node]:
        """The nodes that read its rows."""
        return [
            n
            for n in self.graph.downstream(node.name)
            if not (isinstance(n, SinkNode) and (n.of_dead_letters or n.of_late))
        ]

    def _in_one_pass(self, node: Node) -> tuple[SinkNode, ...]:
        """The sinks of its rows that render them from Arrow, so that one task can write them all.
        A stage's own tasks write such sinks."""
        if isinstance(node, StatefulNode | SinkNode):
            return ()
        sinks = [n for n in self._readers(node) if isinstance(n, SinkNode)]
        if len(sinks) < 2:
            return ()
        schema = arrow_schema(self.frames[node.name].schema)
        return tuple(n for n in sinks if self._takes(n, schema))

    def _takes(self, node: SinkNode, schema: pa.Schema) -> bool:
        with naming(node.name, self.runtime.job):
            return node.sink.takes(schema)

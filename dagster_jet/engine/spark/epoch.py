"""One epoch as one Spark job: frames from the graph, acks from the tasks.

    source frames -> stateless frames (Catalyst fuses them) -> partial aggregates in the JVM
      -> one task per shard: merge with state, close windows, write to sinks, save -> acks

A frame that two branches read is materialised once per epoch (`persist`), so that all sinks see
the same rows. All branches end in frames of acks; their union is the epoch's single action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)

from dagster_jet.engine.connector import SourceReader
from dagster_jet.engine.spark.errors import translate
from dagster_jet.engine.spark.tasks import (
    ACK_COLUMN,
    SHARD_COLUMN,
    Barrier,
    SinkTask,
    StageTask,
)
from dagster_jet.errors import ExecutorLostError, JetError, PipelineError, UserFunctionError
from dagster_jet.pipeline.graph import (
    AggregateNode,
    EnrichNode,
    Graph,
    MergeNode,
    Node,
    SinkNode,
    SourceNode,
    TimestampsNode,
    TransformNode,
)
from dagster_jet.pipeline.pipeline import WINDOW_END, WINDOW_START
from dagster_jet.processors.window import ROW_COUNT, WINDOW_END_MS, Output, WindowAggregate
from dagster_jet.snapshot.chunks import PARTITION_COLUMN
from dagster_jet.snapshot.manifest import Ack, ShardState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ACK_TYPE = StructType([StructField(ACK_COLUMN, BinaryType())])
_RESULT = {"count": LongType(), "mean": DoubleType()}


@dataclass(frozen=True)
class StageInput:
    """What one stateful stage needs to know in one epoch."""

    shards: tuple[ShardState, ...]
    closed_end_ms: int | None
    closing_end_ms: int | None
    obsolete: tuple[str, ...]


@dataclass(frozen=True)
class EpochInput:
    """One epoch as planned: a barrier, and a split for every source that has something."""

    barrier: Barrier
    splits: Mapping[str, Any]
    stages: Mapping[str, StageInput]
    few_groups: bool
    """Recent epochs left so few groups that one task merges them faster than several."""


@dataclass(frozen=True)
class Observed:
    """What was seen at a timestamps node, before any filter."""

    rows: int
    rows_with_time: int
    top_event_ms: int | None


@dataclass(frozen=True)
class EpochOutput:
    acks: tuple[Ack, ...]
    observed: Mapping[str, Observed]
    source_rows: Mapping[str, int]


@dataclass(frozen=True)
class _StagePlan:
    """A stateful stage as analysed once: a call into the JVM per column and epoch adds up."""

    operator: WindowAggregate
    groups: tuple[Column, ...]
    partials: tuple[Column, ...]
    input_schema: pa.Schema
    result_schema: pa.Schema
    result_type: StructType
    output_type: StructType
    """What the stage's task emits: acks, with the results in between where somebody reads on."""
    sinks: tuple[SinkNode, ...]
    passes_on: bool


@dataclass(frozen=True)
class _TimePlan:
    """What is observed at a timestamps node."""

    observed: tuple[Column, ...]


@dataclass
class EpochRunner:
    """Builds and runs the epochs of one execution."""

    session: SparkSession
    job: str
    graph: Graph
    readers: Mapping[str, SourceReader]
    shard_count: int
    partition_count: int
    _stages: dict[str, _StagePlan] = field(default_factory=dict)
    _times: dict[str, _TimePlan] = field(default_factory=dict)
    _tables: dict[str, DataFrame] = field(default_factory=dict)

    def prepare(self) -> None:
        """Analyses the whole pipeline on empty inputs, so that mistakes show before data flows.

        Raises:
            PipelineError: a column does not exist, types do not fit; names the stage.
            UserFunctionError: a transform raised.
        """
        for node in self.graph:
            if isinstance(node, EnrichNode):
                self._tables[node.name] = F.broadcast(node.table.frame(self.session).cache())
        build = _Build(self, None)
        for node in self.graph:
            frame = build.frame(node)
            if isinstance(node, AggregateNode) and frame is None:
                raise PipelineError("the stage has no input.", job=self.job, stage=node.name)

    def run(self, epoch: EpochInput) -> EpochOutput:
        """Runs the job and returns what the tasks acked.

        Raises:
            JetError: translated from Spark's error, with the reaction it asks for.
        """
        build = _Build(self, epoch)
        try:
            acked = [frame for node in self.graph for frame in build.acks_of(node)]
            if not acked:
                return EpochOutput((), {}, {})
            union = reduce(lambda a, b: a.union(b), acked)
            acks = tuple(Ack.from_bytes(bytes(row[0])) for row in union.collect())
            self._check_sinks(build, acks)
            return EpochOutput(acks, build.observed(), build.source_rows())
        except PySparkException as error:
            raise translate(error, self.job, self._user_stages()) from error
        except Exception as error:
            if isinstance(error, JetError):
                raise
            raise translate(error, self.job, self._user_stages()) from error
        finally:
            build.release()

    def _check_sinks(self, build: _Build, acks: tuple[Ack, ...]) -> None:
        """Every sink that was given rows answered; shards of stages are counted elsewhere."""
        acked = {ack.vertex for ack in acks}
        silent = [
            name
            for name, frame in build.written_sinks.items()
            # Spark starts no task for a frame that is certainly empty: nobody is there to answer.
            if name not in acked and (frame is None or not frame.isEmpty())
        ]
        if silent:
            raise ExecutorLostError(
                f"no ack from {', '.join(sorted(silent))}.",
                job=self.job,
                cure="The job restarts from its last snapshot.",
            )

    def operator(self, stage: str) -> WindowAggregate:
        """The operator of a stateful stage, known after `prepare`."""
        return self._stages[stage].operator

    def close(self) -> None:
        for frame in self._tables.values():
            _unpersist(frame)

    def _user_stages(self) -> list[str]:
        return [node.name for node in self.graph if isinstance(node, TransformNode)]

    # --- stages ---------------------------------------------------------------------------------

    def stage_plan(self, node: AggregateNode, source: DataFrame) -> _StagePlan:
        if node.name not in self._stages:
            self._stages[node.name] = self._plan_stage(node, source)
        return self._stages[node.name]

    def _plan_stage(self, node: AggregateNode, source: DataFrame) -> _StagePlan:
        columns: dict[tuple[str, str | None], tuple[str, Column, str]] = {}
        outputs = []
        for name, aggregate in node.aggregates:
            needed = []
            for partial in aggregate.partials:
                key = (partial.value, aggregate.column)
                if key not in columns:
                    alias = f"__p{len(columns)}"
                    value = F.lit(1) if aggregate.column is None else F.col(aggregate.column)
                    function = getattr(F, partial.value)
                    columns[key] = (alias, function(value).alias(alias), partial.merge)
                needed.append(columns[key][0])
            outputs.append(Output(name, aggregate.name, tuple(needed)))
        operator = WindowAggregate(
            keys=node.keys,
            window_size_ms=node.window.size_ms,
            partials=tuple((alias, merge) for alias, _, merge in columns.values()),
            outputs=tuple(outputs),
        )
        partials = [*(column for _, column, _ in columns.values())]
        partials.append(F.count(F.lit(1)).alias(ROW_COUNT))
        groups = self._groups(node, source)
        types = {f.name: f.dataType for f in source.groupBy(*groups).agg(*partials).schema}
        result = StructType(
            [StructField(key, types[key]) for key in node.keys]
            + [StructField(n, TimestampType()) for n in (WINDOW_START, WINDOW_END)]
            + [
                StructField(o.name, _RESULT.get(o.function) or types[o.partials[0]])
                for o in operator.outputs
            ]
        )
        result_schema = _arrow_schema(result)
        sinks = tuple(
            n
            for n in self.graph.downstream(node.name)
            if isinstance(n, SinkNode) and n.sink.takes(result_schema)
        )
        passes_on = len(sinks) < len(self.graph.downstream(node.name))
        return _StagePlan(
            operator=operator,
            groups=tuple(groups),
            partials=tuple(partials),
            input_schema=_arrow_schema(StructType([StructField(n, t) for n, t in types.items()])),
            result_schema=result_schema,
            result_type=result,
            output_type=StructType([*result, *_ACK_TYPE]) if passes_on else _ACK_TYPE,
            sinks=sinks,
            passes_on=passes_on,
        )

    def _groups(self, node: AggregateNode, source: DataFrame) -> list[Column]:
        """Partition, keys, window end: what partial aggregates are grouped by."""
        time = F.col(node.time_column)
        if isinstance(source.schema[node.time_column].dataType, TimestampType):
            time = F.unix_millis(time)
        size = node.window.size_ms
        end = (time - F.pmod(time, F.lit(size)) + F.lit(size)).cast("long")
        partition = F.pmod(F.xxhash64(*node.keys), F.lit(self.partition_count)).cast("int")
        keys = [F.col(key) for key in node.keys]
        return [partition.alias(PARTITION_COLUMN), *keys, end.alias(WINDOW_END_MS)]


@dataclass
class _Build:
    """The frames of one epoch; with `epoch` None, of the analysis on empty inputs."""

    runner: EpochRunner
    epoch: EpochInput | None
    _frames: dict[str, DataFrame | None] = field(default_factory=dict)
    _acks: dict[str, list[DataFrame]] = field(default_factory=dict)
    _rejects: dict[str, DataFrame] = field(default_factory=dict)
    _observations: dict[str, Observation] = field(default_factory=dict)
    _row_counts: dict[str, Observation] = field(default_factory=dict)
    _persisted: list[DataFrame] = field(default_factory=list)
    written_sinks: dict[str, DataFrame | None] = field(default_factory=dict)
    """What each sink was given; None where the stage's own task writes."""

    def frame(self, node: Node) -> DataFrame | None:
        """The rows of this epoch at `node`; None if there certainly are none."""
        if node.name not in self._frames:
            frame = self._guarded(node, lambda: self._make(node))
            if frame is not None and self._is_shared(node):
                frame = self._persist(frame)
            self._frames[node.name] = frame
        return self._frames[node.name]

    def acks_of(self, node: Node) -> list[DataFrame]:
        """Frames of acks that this node contributes to the epoch's action."""
        if isinstance(node, SinkNode):
            return self._sink_acks(node)
        if isinstance(node, AggregateNode):
            self.frame(node)
            return self._acks.get(node.name, [])
        return []

    def observed(self) -> dict[str, Observed]:
        results = {}
        for name, observation in self._observations.items():
            row = observation.get
            results[name] = Observed(row["rows"], row["timed"], row["top"])
        return results

    def source_rows(self) -> dict[str, int]:
        return {name: o.get["rows"] for name, o in self._row_counts.items()}

    def release(self) -> None:
        for frame in self._persisted:
            _unpersist(frame)

    # --- nodes ----------------------------------------------------------------------------------

    def _make(self, node: Node) -> DataFrame | None:
        match node:
            case SourceNode():
                return self._source(node)
            case TimestampsNode():
                return self._timestamps(node)
            case AggregateNode():
                return self._aggregate(node)
            case SinkNode():
                return None
            case MergeNode():
                inputs = [f for f in map(self._input, node.upstream) if f is not None]
                return reduce(lambda a, b: a.unionByName(b), inputs) if inputs else None
            case TransformNode():
                frame = self._input(node.upstream[0])
                return None if frame is None else self._call(node, frame)
            case EnrichNode():
                frame = self._input(node.upstream[0])
                if frame is None:
                    return None
                return frame.join(self.runner._tables[node.name], list(node.on), node.how)

    def _input(self, name: str) -> DataFrame | None:
        return self.frame(self.runner.graph[name])

    def _is_shared(self, node: Node) -> bool:
        if self.epoch is None or isinstance(node, AggregateNode | SinkNode):
            return False
        readers = [
            n
            for n in self.runner.graph.downstream(node.name)
            if not (isinstance(n, SinkNode) and n.of_rejects)
        ]
        return len(readers) > 1

    def _persist(self, frame: DataFrame) -> DataFrame:
        self._persisted.append(frame.persist())
        return frame

    def _call(self, node: TransformNode, frame: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame

        try:
            result = node.function(frame)
        except PySparkException:
            raise
        except Exception as error:
            raise UserFunctionError(
                f"the function raised {type(error).__name__}: {error}.",
                job=self.runner.job,
                stage=node.name,
                cure="Correct the function; nothing of this epoch was written.",
            ) from error
        if not isinstance(result, DataFrame):
            raise UserFunctionError(
                f"the function returned {type(result).__name__}, not a DataFrame.",
                job=self.runner.job,
                stage=node.name,
                cure="Return the transformed frame.",
            )
        return result

    def _source(self, node: SourceNode) -> DataFrame | None:
        session = self.runner.session
        if self.epoch is None:
            return session.createDataFrame([], node.source.schema)
        split = self.epoch.splits.get(node.name)
        if split is None:
            return None
        source = self.runner.readers[node.name].frame(session, split)
        if source.shared is not None:
            self._persist(source.shared)
        if source.rejects is not None:
            self._rejects[node.name] = source.rejects
        if self._has_own_timestamps(node):
            return source.rows
        observation = self._row_counts[node.name] = Observation()
        return source.rows.observe(observation, F.count(F.lit(1)).alias("rows"))

    def _has_own_timestamps(self, node: SourceNode) -> bool:
        """The one reader is a timestamps node, which counts the rows as well."""
        readers = self.runner.graph.downstream(node.name)
        return any(isinstance(n, TimestampsNode) for n in readers)

    def _timestamps(self, node: TimestampsNode) -> DataFrame | None:
        frame = self._input(node.upstream[0])
        if frame is None:
            return None
        if self.epoch is None:
            self.runner._times[node.name] = self._plan_time(node, frame)
            return frame
        observation = self._observations[node.name] = Observation()
        return frame.observe(observation, *self.runner._times[node.name].observed)

    def _plan_time(self, node: TimestampsNode, frame: DataFrame) -> _TimePlan:
        column = node.timestamps.column
        if column not in frame.columns:
            raise PipelineError(
                f"there is no column {column!r} to take event time from; there are "
                f"{', '.join(frame.columns)}.",
                job=self.runner.job,
                stage=node.upstream[0],
            )
        time = F.col(column)
        if isinstance(frame.schema[column].dataType, TimestampType):
            time = F.unix_millis(time)
        elif not isinstance(frame.schema[column].dataType, LongType):
            raise PipelineError(
                f"event time {column!r} is {frame.schema[column].dataType.simpleString()}, "
                "expected timestamp, or bigint with milliseconds.",
                job=self.runner.job,
                stage=node.upstream[0],
                cure="Declare it so in the schema, or convert it before with_timestamps().",
            )
        return _TimePlan(
            (
                F.count(F.lit(1)).alias("rows"),
                F.count(time).alias("timed"),
                F.max(time).alias("top"),
            )
        )

    def _aggregate(self, node: AggregateNode) -> DataFrame | None:
        source = self._input(node.upstream[0])
        if self.epoch is None:
            assert source is not None
            plan = self.runner.stage_plan(node, source)
            return self.runner.session.createDataFrame([], plan.result_type)
        plan = self.runner._stages[node.name]
        self.written_sinks.update(dict.fromkeys(sink.name for sink in plan.sinks))
        stage = self.epoch.stages[node.name]
        task = StageTask(
            barrier=self.epoch.barrier,
            vertex=node.name,
            operator=plan.operator,
            shard_count=self.runner.shard_count,
            closed_end_ms=stage.closed_end_ms,
            closing_end_ms=stage.closing_end_ms,
            shards=stage.shards,
            result_schema=plan.result_schema,
            input_schema=plan.input_schema,
            sinks=tuple((n.name, n.sink) for n in plan.sinks),
            passes_on=plan.passes_on,
            owns_all=self.epoch.few_groups or self.runner.shard_count == 1,
            has_input=source is not None,
            obsolete=stage.obsolete,
        )
        out = self._by_shard(node, plan, source).mapInArrow(task, plan.output_type)
        if not plan.passes_on:
            self._acks[node.name] = [out]
            return None
        out = self._persist(out)
        self._acks[node.name] = [out.where(F.col(ACK_COLUMN).isNotNull()).select(ACK_COLUMN)]
        return out.where(F.col(ACK_COLUMN).isNull()).drop(ACK_COLUMN)

    def _by_shard(
        self, node: AggregateNode, plan: _StagePlan, source: DataFrame | None
    ) -> DataFrame:
        """The stage's input, one Spark partition per shard (or one for all shards)."""
        assert self.epoch is not None
        session, shards = self.runner.session, self.runner.shard_count
        tasks = 1 if self.epoch.few_groups else shards
        if source is None:
            return session.range(0, tasks, 1, tasks).select(F.col("id").cast("int"))
        groups = source.groupBy(*plan.groups).agg(*plan.partials)
        if tasks == 1:
            return groups.coalesce(1)
        # An anchor row per shard: a task without data must still know which shard it is.
        shard = F.pmod(F.col(PARTITION_COLUMN), F.lit(shards)).cast("int")
        anchors = session.range(0, shards, 1, 1).select(
            *[F.lit(None).cast(f.dataType).alias(f.name) for f in groups.schema],
            F.col("id").cast("int").alias(SHARD_COLUMN),
        )
        sharded = groups.withColumn(SHARD_COLUMN, shard).union(anchors)
        return sharded.repartitionById(shards, F.col(SHARD_COLUMN))

    def _sink_acks(self, node: SinkNode) -> list[DataFrame]:
        upstream = self.runner.graph[node.upstream[0]]
        if node.of_rejects:
            self.frame(upstream)
            frame = self._rejects.get(upstream.name)
        else:
            frame = self.frame(upstream)
            if isinstance(upstream, AggregateNode):
                if node in self.runner._stages[upstream.name].sinks:
                    return []
        if frame is None or self.epoch is None:
            return []
        self.written_sinks[node.name] = frame
        task = SinkTask(self.epoch.barrier, node.name, node.sink)
        rendered = self._guarded(node, lambda: node.sink.render(frame))
        return [rendered.mapInArrow(task, _ACK_TYPE)]

    def _guarded(self, node: Node, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except PySparkException as error:
            message = str(error).split("\n\nJVM")[0].splitlines()[0]
            raise PipelineError(
                f"Spark cannot plan the stage: {message}", job=self.runner.job, stage=node.name
            ) from error


def _unpersist(frame: DataFrame) -> None:
    with suppress(Py4JError, OSError):  # a JVM that has died has let go of everything
        frame.unpersist()


def _arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")

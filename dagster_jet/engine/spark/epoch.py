"""One epoch as one Spark job: frames from the graph, acks from the tasks.

    source frames -> stateless frames (Catalyst fuses them) -> partial aggregates in the JVM
      -> one task per shard: merge with state, close windows, write to sinks, save -> acks

A frame that two branches read is materialised once per epoch (`persist`), so that all sinks see
the same rows. All branches end in frames of acks; their union is the epoch's single action.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dagster_jet.engine.connector import PARTITION_COLUMN, Partitioned, SourceReader
from dagster_jet.engine.spark.barrier import ACK_COLUMN, Barrier
from dagster_jet.engine.spark.errors import translate
from dagster_jet.engine.spark.executor_watch import SESSION_GONE
from dagster_jet.engine.spark.placement import Anchored, OneMachine, Placement
from dagster_jet.engine.spark.session import is_local
from dagster_jet.engine.spark.sink_task import SinkTask
from dagster_jet.engine.spark.stage_task import REJECTED_COLUMN, StageTask
from dagster_jet.engine.spark.stages import StagePlan, plan_stage
from dagster_jet.errors import ExecutorLostError, JetError, PipelineError, UserFunctionError
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
from dagster_jet.pipeline.stateful import StatefulNode
from dagster_jet.processors.operator import Operator
from dagster_jet.processors.rejects import REJECT_SCHEMA
from dagster_jet.snapshot.manifest import Ack, ShardState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ACK_TYPE = StructType([StructField(ACK_COLUMN, BinaryType())])
_REJECTED_TYPE = StructType(
    [
        StructField(
            REJECTED_COLUMN, StructType([StructField(f.name, StringType()) for f in REJECT_SCHEMA])
        )
    ]
)


@dataclass(frozen=True)
class StageInput:
    """What one stateful stage needs to know in one epoch."""

    shards: tuple[ShardState, ...]
    before_ms: int | None
    after_ms: int | None
    obsolete: tuple[str, ...]
    early: bool = False


@dataclass(frozen=True)
class EpochInput:
    """One epoch as planned: a barrier, and a split for every source that has something."""

    barrier: Barrier
    splits: Mapping[str, Any]
    stages: Mapping[str, StageInput]
    ingestion_ms: Mapping[str, int]
    """Per timestamps node whose event time is that of reading: the one of this epoch's rows."""
    few_groups: bool
    """There is one shard, or so few groups in recent epochs that one task merges them faster than
    several; only where every task can read every run."""


@dataclass(frozen=True)
class Observed:
    """What was seen at a timestamps node, before any filter."""

    rows: int
    rows_with_time: int
    top_event_ms: int | None
    partition_tops_ms: Mapping[str, int]
    """Per partition that was observed and had rows."""


@dataclass(frozen=True)
class EpochOutput:
    acks: tuple[Ack, ...]
    observed: Mapping[str, Observed]
    source_rows: Mapping[str, int]
    late_rows: Mapping[str, int]
    """Per stateful stage: rows taken out before its operator, which could not have told."""


@dataclass(frozen=True)
class _Stage:
    """A stateful stage and who reads its results."""

    plan: StagePlan
    sinks: tuple[SinkNode, ...]
    """Written by the stage's own task."""
    reject_sinks: tuple[SinkNode, ...]
    """Of the rows set aside; written by the stage's own task, too."""
    passes_on: bool
    """Others read the results too."""
    passes_rejects: bool
    """Others read the rows set aside."""
    wants_late: bool

    @property
    def takes_out_late(self) -> bool:
        return self.plan.late is not None and (self.plan.filters_late or self.wants_late)

    @property
    def output_type(self) -> StructType:
        """What the stage's task emits: acks, with the results, and the rows set aside, in between
        where somebody reads them."""
        if not self.is_read:
            return _ACK_TYPE
        rejects = _REJECTED_TYPE if self.passes_rejects else ()
        return StructType([*self.plan.result_type, *rejects, *_ACK_TYPE])

    @property
    def is_read(self) -> bool:
        return self.passes_on or self.passes_rejects


@dataclass(frozen=True)
class _Table:
    """A batch table as read at a moment of the monotonic clock."""

    frame: DataFrame
    read_at: float


@dataclass(frozen=True)
class _TimePlan:
    """What is observed at a timestamps node."""

    observed: tuple[Column, ...]
    time_ms: Column
    of_partitions: list[Column] = field(default_factory=list)
    """The newest event time of the first partition, the second, ..., as far as they were needed."""

    def columns(self, partitions: int) -> tuple[Column, ...]:
        """What to observe where so many partitions are watched."""
        # Rounded up, so that there are few different programs for Spark to compile.
        wanted = 1 << (partitions - 1).bit_length()
        partition = F.col(PARTITION_COLUMN)
        for index in range(len(self.of_partitions), wanted):
            top = F.max(F.when(partition == index, self.time_ms))
            self.of_partitions.append(top.alias(f"top_{index}"))
        return (*self.observed, *self.of_partitions[:wanted])


@dataclass
class EpochRunner:
    """Builds and runs the epochs of one execution."""

    session: SparkSession
    job: str
    graph: Graph
    readers: Mapping[str, SourceReader]
    shard_count: int
    partition_count: int
    _stages: dict[str, _Stage] = field(default_factory=dict)
    _times: dict[str, _TimePlan] = field(default_factory=dict)
    partitioned: dict[str, str] = field(default_factory=dict)
    """The source of each timestamps node that watches its partitions, known after `prepare`."""
    _carrying: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Sources and transforms whose rows come with their partition; for a projection, what it has
    to be told to keep."""
    _tables: dict[str, _Table] = field(default_factory=dict)
    _placement: Placement | None = None

    @property
    def placement(self) -> Placement:
        """Where the shards are; from the first use on for the whole execution."""
        if self._placement is None:
            kind = OneMachine if is_local(self.session) else Anchored
            self._placement = kind(self.session, self.shard_count)
        return self._placement

    def prepare(self) -> None:
        """Analyses the whole pipeline on empty inputs, so that mistakes show before data flows.

        Raises:
            PipelineError: a column does not exist, types do not fit; names the stage.
            UserFunctionError: a transform raised.
        """
        ways = self._ways_of_partitions()
        self._carrying = {node: () for way in ways.values() for node in way}
        build = _Build(self, None)
        for node in self.graph:
            frame = build.frame(node)
            if isinstance(node, StatefulNode) and frame is None:
                raise PipelineError("the stage has no input.", job=self.job, stage=node.name)
        self.partitioned = {
            name: way[0] for name, way in ways.items() if self._carrying.keys() >= set(way)
        }
        needed = {node for name in self.partitioned for node in ways[name]}
        self._carrying = {n: more for n, more in self._carrying.items() if n in needed}

    def _ways_of_partitions(self) -> dict[str, tuple[str, ...]]:
        """Per timestamps node of a source with partitions: the nodes from there up to it."""
        ways = {}
        for node in self.graph:
            if isinstance(node, TimestampsNode) and not node.timestamps.of_ingestion:
                way = tuple(n.name for n in self.graph.way_from_source(node.name))
                if way and isinstance(self.readers[way[0]], Partitioned):
                    ways[node.name] = way
        return ways

    def run(self, epoch: EpochInput) -> EpochOutput:
        """Runs the job and returns what the tasks acked.

        Raises:
            JetError: translated from Spark's error, with the reaction it asks for.
        """
        build = _Build(self, epoch)
        try:
            placement = self.placement  # before the first job: it watches over all of them
            acked = [frame for node in self.graph for frame in build.acks_of(node)]
            if not acked:
                return EpochOutput((), {}, {}, {})
            for frame in build.persisted:
                placement.fill(frame)
            union = reduce(lambda a, b: a.union(b), acked)
            acks = tuple(Ack.from_bytes(bytes(row[0])) for row in union.collect())
            self._check_sinks(build, acks)
            placement.check()
            return EpochOutput(acks, build.observed(), build.source_rows(), build.late_rows())
        except JetError:
            raise
        except Exception as error:
            raise self.failure(error, self._user_stages()) from error
        finally:
            build.release()

    def failure(self, error: Exception, user_stages: Sequence[str] = ()) -> JetError:
        """The `JetError` that a failed Spark job stands for.

        That of an executor if one is lost: whatever else went wrong can be a consequence.
        """
        try:
            if self._placement is not None:
                self._placement.check()
        except ExecutorLostError as lost:
            return lost
        except SESSION_GONE:
            pass  # nobody is there to be asked
        return translate(error, self.job, user_stages)

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

    def operator(self, stage: str) -> Operator:
        """The operator of a stateful stage, known after `prepare`."""
        return self._stages[stage].plan.operator

    def close(self) -> None:
        self._tables.clear()
        with suppress(Py4JError, OSError):
            if self._placement is not None:
                self._placement.close()

    def table(self, node: EnrichNode) -> DataFrame:
        """The table of an enrichment, as it was read not longer ago than it may be."""
        known, now = self._tables.get(node.name), time.monotonic()
        if known is not None:
            if node.refresh_ms is None or now - known.read_at < node.refresh_ms / 1000:
                return known.frame
        # Not cache(): that is lazy, and Spark shares it among frames that it takes for equal.
        frame: DataFrame = node.table.frame(self.session).localCheckpoint()
        self._tables[node.name] = _Table(frame, now)
        return frame

    def _user_stages(self) -> list[str]:
        return [node.name for node in self.graph if isinstance(node, TransformNode)]

    def plan(self, node: StatefulNode, sources: Sequence[DataFrame]) -> _Stage:
        plan = plan_stage(self.job, node, sources, self.partition_count)
        readers = self.graph.downstream(node.name)
        late = [n for n in readers if isinstance(n, SinkNode) and n.of_late]
        rejects = [n for n in readers if isinstance(n, SinkNode) and n.of_rejects]
        others = [n for n in readers if n not in late and n not in rejects]
        sinks = tuple(
            n
            for n in others
            if isinstance(n, SinkNode) and n.sink.takes(plan.operator.result_schema)
        )
        reject_sinks = tuple(n for n in rejects if n.sink.takes(REJECT_SCHEMA))
        self._stages[node.name] = _Stage(
            plan,
            sinks,
            reject_sinks,
            passes_on=len(sinks) < len(others),
            passes_rejects=len(reject_sinks) < len(rejects),
            wants_late=bool(late),
        )
        return self._stages[node.name]


@dataclass
class _Build:
    """The frames of one epoch; with `epoch` None, of the analysis on empty inputs."""

    runner: EpochRunner
    epoch: EpochInput | None
    _frames: dict[str, DataFrame | None] = field(default_factory=dict)
    _with_partition: dict[str, DataFrame] = field(default_factory=dict)
    """The same frames with the column that says which partition a row is of."""
    _partitions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Per source, the partitions that are observed."""
    _acks: dict[str, list[DataFrame]] = field(default_factory=dict)
    _rejects: dict[str, DataFrame] = field(default_factory=dict)
    _late: dict[str, DataFrame] = field(default_factory=dict)
    _late_counts: dict[str, Observation] = field(default_factory=dict)
    _observations: dict[str, Observation] = field(default_factory=dict)
    _row_counts: dict[str, Observation] = field(default_factory=dict)
    persisted: list[DataFrame] = field(default_factory=list)
    """Frames that several branches read, upstream ones first."""
    written_sinks: dict[str, DataFrame | None] = field(default_factory=dict)
    """What each sink was given; None where the stage's own task writes."""

    def frame(self, node: Node) -> DataFrame | None:
        """The rows of this epoch at `node`; None if there certainly are none."""
        if node.name not in self._frames:
            frame = self._guarded(node, lambda: self._make(node))
            if frame is not None and self._is_shared(node):
                frame = self._persist(frame)
            if frame is not None and node.name in self.runner._carrying:
                self._with_partition[node.name] = frame
                frame = frame.drop(PARTITION_COLUMN)
            self._frames[node.name] = frame
        return self._frames[node.name]

    def acks_of(self, node: Node) -> list[DataFrame]:
        """Frames of acks that this node contributes to the epoch's action."""
        if isinstance(node, SinkNode):
            return self._sink_acks(node)
        if isinstance(node, StatefulNode):
            self.frame(node)
            return self._acks.get(node.name, [])
        return []

    def observed(self) -> dict[str, Observed]:
        results = {}
        for name, observation in self._observations.items():
            rows, timed, top, *tops = observation.get.values()
            names = self._partitions.get(self.runner.partitioned.get(name, ""), ())
            seen = {p: of_it for p, of_it in zip(names, tops, strict=False) if of_it is not None}
            results[name] = Observed(rows, timed, top, seen)
        return results

    def source_rows(self) -> dict[str, int]:
        return {name: o.get["rows"] for name, o in self._row_counts.items()}

    def late_rows(self) -> dict[str, int]:
        return {name: o.get["late"] for name, o in self._late_counts.items()}

    def release(self) -> None:
        for frame in self.persisted:
            _unpersist(frame)

    # --- nodes ----------------------------------------------------------------------------------

    def _make(self, node: Node) -> DataFrame | None:
        match node:
            case SourceNode():
                return self._source(node)
            case TimestampsNode():
                return self._timestamps(node)
            case StatefulNode():
                return self._stateful(node)
            case SinkNode():
                return None
            case MergeNode():
                inputs = [f for f in map(self._input, node.upstream) if f is not None]
                return reduce(lambda a, b: a.unionByName(b), inputs) if inputs else None
            case TransformNode():
                return self._transform(node)
            case EnrichNode():
                frame = self._input(node.upstream[0])
                if frame is None:
                    return None
                return frame.join(F.broadcast(self.runner.table(node)), list(node.on), node.how)

    def _input(self, name: str) -> DataFrame | None:
        return self.frame(self.runner.graph[name])

    def _is_shared(self, node: Node) -> bool:
        if self.epoch is None or isinstance(node, StatefulNode | SinkNode):
            return False
        readers = [
            n
            for n in self.runner.graph.downstream(node.name)
            if not (isinstance(n, SinkNode) and (n.of_rejects or n.of_late))
        ]
        return len(readers) > 1

    def _persist(self, frame: DataFrame) -> DataFrame:
        self.persisted.append(frame.persist())
        return frame

    def _transform(self, node: TransformNode) -> DataFrame | None:
        frame = self._input(node.upstream[0])
        if frame is None or node.name not in self.runner._carrying:
            return None if frame is None else self._call(node, frame)
        whole = self._with_partition.get(node.upstream[0])
        if self.epoch is not None:
            assert whole is not None
            return self._call(node, whole, *self.runner._carrying[node.name])
        without = self._call(node, frame)
        carrying = None if whole is None else self._carry(node, whole, without)
        if carrying is None:
            del self.runner._carrying[node.name]
        return without if carrying is None else carrying

    def _carry(self, node: TransformNode, whole: DataFrame, without: DataFrame) -> DataFrame | None:
        """The function's result with the partition's column, if that changes nothing else."""
        try:
            carrying = self._call(node, whole)
            if node.is_projection and PARTITION_COLUMN not in carrying.columns:
                self.runner._carrying[node.name] = (PARTITION_COLUMN,)
                carrying = self._call(node, whole, PARTITION_COLUMN)
            if PARTITION_COLUMN not in carrying.columns:
                return None
            plans = [
                frame._jdf.queryExecution().optimizedPlan()
                for frame in (carrying.drop(PARTITION_COLUMN), without)
            ]
        except (PySparkException, UserFunctionError):
            return None
        # A hash over all columns, say, would take in ours.
        return carrying if plans[0].sameResult(plans[1]) else None

    def _call(self, node: TransformNode, frame: DataFrame, *more: str) -> DataFrame:
        from pyspark.sql import DataFrame

        try:
            result = node.function(frame, *more)
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
            schema = node.source.schema
            if node.name in self.runner._carrying:
                schema = f"{schema}, {PARTITION_COLUMN} int"
            return session.createDataFrame([], schema)
        split = self.epoch.splits.get(node.name)
        if split is None:
            return None
        source = self.runner.readers[node.name].frame(session, split)
        rows = source.rows
        if isinstance(self.runner.readers[node.name], Partitioned):
            if node.name not in self.runner._carrying:
                rows = rows.drop(PARTITION_COLUMN)
        if source.shared is not None:
            self._persist(source.shared)
        if source.rejects is not None:
            self._rejects[node.name] = source.rejects
        self._partitions[node.name] = source.partitions
        if self._has_own_timestamps(node):
            return rows
        observation = self._row_counts[node.name] = Observation()
        return rows.observe(observation, F.count(F.lit(1)).alias("rows"))

    def _has_own_timestamps(self, node: SourceNode) -> bool:
        """The one reader is a timestamps node, which counts the rows as well."""
        readers = self.runner.graph.downstream(node.name)
        return any(isinstance(n, TimestampsNode) for n in readers)

    def _timestamps(self, node: TimestampsNode) -> DataFrame | None:
        frame = self._input(node.upstream[0])
        if frame is None:
            return None
        if node.timestamps.of_ingestion:
            frame = self._with_ingestion_time(node, frame)
        if self.epoch is None:
            self.runner._times[node.name] = self._plan_time(node, frame)
            return frame
        observation = self._observations[node.name] = Observation()
        plan = self.runner._times[node.name]
        watched = self._partitions.get(self.runner.partitioned.get(node.name, ""), ())
        if not watched:
            return frame.observe(observation, *plan.observed)
        whole = self._with_partition[node.upstream[0]]
        seen = whole.observe(observation, *plan.columns(len(watched)))
        return seen.drop(PARTITION_COLUMN)

    def _with_ingestion_time(self, node: TimestampsNode, frame: DataFrame) -> DataFrame:
        """One time for the epoch, told by the driver: tasks that are tried again agree."""
        column = node.timestamps.column
        if column in frame.columns:
            raise PipelineError(
                f"there is a column {column!r} already.",
                job=self.runner.job,
                stage=node.upstream[0],
                cure="Choose another for with_ingestion_timestamps(column=...).",
            )
        time_ms = 0 if self.epoch is None else self.epoch.ingestion_ms[node.name]
        return frame.withColumn(column, F.timestamp_millis(F.lit(time_ms)))

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
            ),
            time,
        )

    def _stateful(self, node: StatefulNode) -> DataFrame | None:
        inputs = [self._input(name) for name in node.upstream]
        if self.epoch is None:
            known = [frame for frame in inputs if frame is not None]
            plan = self.runner.plan(node, known).plan
            return self.runner.session.createDataFrame([], plan.result_type)
        stage, given = self.runner._stages[node.name], self.epoch.stages[node.name]
        own_sinks = (*stage.sinks, *stage.reject_sinks)
        self.written_sinks.update(dict.fromkeys(sink.name for sink in own_sinks))
        if stage.takes_out_late and given.before_ms is not None and inputs[0] is not None:
            inputs = [self._without_late(node, stage, inputs[0], given.before_ms)]
        source = stage.plan.frame(inputs)
        task = StageTask(
            barrier=self.epoch.barrier,
            vertex=node.name,
            operator=stage.plan.operator,
            shard_count=self.runner.shard_count,
            before_ms=given.before_ms,
            after_ms=given.after_ms,
            shards=given.shards,
            sinks=tuple((n.name, n.sink) for n in stage.sinks),
            reject_sinks=tuple((n.name, n.sink) for n in stage.reject_sinks),
            passes_on=stage.passes_on,
            passes_rejects=stage.passes_rejects,
            owns_all=self.epoch.few_groups,
            has_input=source is not None,
            early=given.early,
            obsolete=given.obsolete,
        )
        out = self._by_shard(source).mapInArrow(task, stage.output_type)
        if not stage.is_read:
            self._acks[node.name] = [out]
            return None
        out = self._persist(out)
        self._acks[node.name] = [out.where(F.col(ACK_COLUMN).isNotNull()).select(ACK_COLUMN)]
        out = out.where(F.col(ACK_COLUMN).isNull()).drop(ACK_COLUMN)
        if stage.passes_rejects:
            is_rejected = F.col(REJECTED_COLUMN).isNotNull()
            self._rejects[node.name] = out.where(is_rejected).select(f"{REJECTED_COLUMN}.*")
            out = out.where(~is_rejected).drop(REJECTED_COLUMN)
        return out if stage.passes_on else None

    def _without_late(
        self, node: StatefulNode, stage: _Stage, frame: DataFrame, before_ms: int
    ) -> DataFrame:
        """Takes out, and counts, what the watermark has passed; keeps it for its sink."""
        assert stage.plan.late is not None
        late = stage.plan.late(before_ms)
        if stage.wants_late:
            frame = self._persist(frame)
            self._late[node.name] = frame.where(late)
        observation = self._late_counts[node.name] = Observation()
        return frame.observe(observation, F.count_if(late).alias("late")).where(~late)

    def _by_shard(self, source: DataFrame | None) -> DataFrame:
        """A stage's input, one Spark partition per shard (or one for all shards)."""
        assert self.epoch is not None
        if self.epoch.few_groups and source is not None:
            return source.coalesce(1)
        if self.epoch.few_groups:
            return self.runner.session.range(0, 1, 1, 1).select(F.col("id").cast("int"))
        placement = self.runner.placement
        return placement.shards() if source is None else placement.by_shard(source)

    def _sink_acks(self, node: SinkNode) -> list[DataFrame]:
        upstream = self.runner.graph[node.upstream[0]]
        frame = self.frame(upstream)
        if isinstance(upstream, StatefulNode):
            stage = self.runner._stages[upstream.name]
            if node in stage.sinks or node in stage.reject_sinks:
                return []
        if node.of_rejects:
            frame = self._rejects.get(upstream.name)
        elif node.of_late:
            frame = self._late.get(upstream.name)
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

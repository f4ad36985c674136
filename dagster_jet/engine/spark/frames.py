"""The frames of one epoch, node by node; nothing runs here, but tables to enrich with are read.

    source frames -> stateless frames (Catalyst fuses them) -> partial aggregates in the JVM
      -> one task per shard: merge with state, close windows, write to sinks, save -> acks

A frame that two branches read is materialised once per epoch (`persist`), so that all sinks see
the same rows. All branches end in frames of acks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dagster_jet.engine.connector import PARTITION_COLUMN, Partitioned
from dagster_jet.engine.spark.arrivals import together
from dagster_jet.engine.spark.barrier import ACK_COLUMN
from dagster_jet.engine.spark.event_time import Observed, plan_time
from dagster_jet.engine.spark.partition_column import carried_through
from dagster_jet.engine.spark.row_by_row import check_row_by_row
from dagster_jet.engine.spark.session import empty_frame
from dagster_jet.engine.spark.sink_task import SinkTask
from dagster_jet.engine.spark.stage_task import REJECTED_COLUMN, StageTask
from dagster_jet.engine.spark.wiring import ACK_TYPE, wire_stage
from dagster_jet.errors import PipelineError, UserFunctionError
from dagster_jet.pipeline.graph import (
    EnrichNode,
    MergeNode,
    Node,
    SinkNode,
    SourceNode,
    TimestampsNode,
    TransformNode,
)
from dagster_jet.pipeline.stateful import StatefulNode
from dagster_jet.processors.window_results import IS_EARLY
from dagster_jet.snapshot.manifest import Ack, Arrived

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_jet.engine.spark.epoch import EpochInput, EpochRunner


@dataclass
class EpochFrames:
    """The frames of one epoch; with `epoch` None, of the analysis on empty inputs."""

    runner: EpochRunner
    epoch: EpochInput | None
    _frames: dict[tuple[str, bool], DataFrame | None] = field(default_factory=dict)
    """By node, and whether they are early results."""
    _early: dict[str, DataFrame] = field(default_factory=dict)
    """Of stages that show early results in this epoch."""
    _with_partition: dict[str, DataFrame] = field(default_factory=dict)
    """The same frames with the column that says which partition a row is of."""
    _partitions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Per source, the partitions that are observed."""
    _acks: dict[str, list[DataFrame]] = field(default_factory=dict)
    _rejects: dict[str, DataFrame] = field(default_factory=dict)
    _late: dict[tuple[str, int], DataFrame] = field(default_factory=dict)
    """By stage and input."""
    _late_counts: dict[tuple[str, int], Observation] = field(default_factory=dict)
    _observations: dict[str, Observation] = field(default_factory=dict)
    _told: list[str] = field(default_factory=list)
    """Timestamps nodes whose rows of this epoch a stage's tasks count."""
    _row_counts: dict[str, Observation] = field(default_factory=dict)
    persisted: list[DataFrame] = field(default_factory=list)
    """Frames that several branches read, upstream ones first."""
    written_sinks: dict[str, DataFrame | None] = field(default_factory=dict)
    """What each sink was given; None where the stage's own task writes."""

    def frame(self, node: Node, *, early: bool = False) -> DataFrame | None:
        """The rows of this epoch at `node`; None if there certainly are none.

        Args:
            early: of these, instead, what comes from early results of windows. Transforms are
                applied to them on their own, so that they get to sinks, but into no state: that
                would count them besides the final rows.
        """
        key = node.name, early
        if key not in self._frames:
            frame = self._guarded(node, lambda: self._make(node, early))
            if frame is not None and self._is_shared(node):
                frame = self._persist(frame)
            if frame is not None and node.name in self.runner.carrying:
                self._with_partition[node.name] = frame
                frame = frame.drop(PARTITION_COLUMN)
            self._frames[key] = frame
        return self._frames[key]

    def acks_of(self, node: Node) -> list[DataFrame]:
        """Frames of acks that this node contributes to the epoch's action."""
        if isinstance(node, SinkNode):
            return self._sink_acks(node)
        if isinstance(node, StatefulNode):
            self.frame(node)
            return self._acks.get(node.name, [])
        return []

    def observed(self, acks: Sequence[Ack]) -> dict[str, Observed]:
        """By timestamps node, of those that had rows to look at; `acks` are all of the epoch's."""
        results = {}
        for name in self._told:
            stage, ordinal = self.runner.told[name]
            parts = [ack.arrived[ordinal] for ack in acks if ack.vertex == stage]
            results[name] = Observed(together(parts), {})
        for name, observation in self._observations.items():
            rows, timed, top, *tops = observation.get.values()
            arrived = Arrived(rows, timed, top)
            names = self._partitions.get(self.runner.partitioned.get(name, ""), ())
            seen = {p: of_it for p, of_it in zip(names, tops, strict=False) if of_it is not None}
            results[name] = Observed(arrived, seen)
        return results

    def source_rows(self) -> dict[str, int]:
        return {name: o.get["rows"] for name, o in self._row_counts.items()}

    def late_rows(self) -> dict[str, int]:
        late: Counter[str] = Counter()
        for (name, _), observation in self._late_counts.items():
            late[name] += observation.get["late"]
        return late

    def release(self) -> None:
        for frame in self.persisted:
            _unpersist(frame)

    # --- nodes ----------------------------------------------------------------------------------

    def _make(self, node: Node, early: bool) -> DataFrame | None:
        match node:
            case SourceNode():
                return None if early else self._source(node)
            case TimestampsNode():
                # They are of windows that have not ended: no watermark may move by them.
                return None if early else self._timestamps(node)
            case StatefulNode():
                if early:
                    self.frame(node)
                    return self._early.get(node.name)
                return self._stateful(node)
            case SinkNode():
                return None
            case MergeNode():
                inputs = [self._input(name, early) for name in node.upstream]
                known = [frame for frame in inputs if frame is not None]
                return reduce(lambda a, b: a.unionByName(b), known) if known else None
            case TransformNode():
                return self._transform(node, early)
            case EnrichNode():
                frame = self._input(node.upstream[0], early)
                if frame is None:
                    return None
                table = self._without_clashes(node, frame, self.runner.table(node))
                return frame.join(F.broadcast(table), list(node.on), node.how)

    def _input(self, name: str, early: bool = False) -> DataFrame | None:
        return self.frame(self.runner.graph[name], early=early)

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

    def _transform(self, node: TransformNode, early: bool) -> DataFrame | None:
        frame = self._input(node.upstream[0], early)
        if frame is None:
            return None
        whole = self._with_partition.get(node.upstream[0])
        if self.epoch is not None and node.name in self.runner.carrying:
            assert whole is not None
            return self._call(node, whole, *self.runner.carrying[node.name])
        without = self._call(node, frame)
        if self.epoch is None and not node.per_epoch:
            check_row_by_row(self.runner.job, node.name, frame, without)
        if node.name not in self.runner.carrying:
            return without
        carried = None if whole is None else carried_through(node, self._call, whole, without)
        if carried is None:
            del self.runner.carrying[node.name]
            return without
        self.runner.carrying[node.name] = carried.told
        return carried.frame

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

    def _without_clashes(self, node: EnrichNode, frame: DataFrame, table: DataFrame) -> DataFrame:
        """Two columns of one name would be two fields of one name in a JSON object."""
        keys = {key.lower() for key in node.on}  # as Spark resolves names
        own = {name.lower() for name in frame.columns} - keys
        names = [f"{n}{node.suffix}" if n.lower() in own else n for n in table.columns]
        known: set[str] = set(own)
        for name in names:
            if name.lower() in known:
                raise PipelineError(
                    f"two columns would be named {name!r}: the stream has "
                    f"{', '.join(frame.columns)}, the table {', '.join(table.columns)}.",
                    job=self.runner.job,
                    stage=node.name,
                    cure="Choose another enrich(suffix=...).",
                )
            known.add(name.lower())
        return table if names == table.columns else table.toDF(*names)

    def _source(self, node: SourceNode) -> DataFrame | None:
        session = self.runner.session
        if self.epoch is None:
            schema = node.source.schema
            if node.name in self.runner.carrying:
                schema = f"{schema}, {PARTITION_COLUMN} int"
            return empty_frame(session, StructType.fromDDL(schema))
        split = self.epoch.splits.get(node.name)
        if split is None:
            return None
        reader = self.runner.readers[node.name]
        source = reader.frame(session, split)
        rows = source.rows
        if isinstance(reader, Partitioned) and node.name not in self.runner.carrying:
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
            self.runner.times[node.name] = plan_time(self.runner.job, node, frame)
            return frame
        if node.name in self.runner.told:
            self._told.append(node.name)
            return frame
        observation = self._observations[node.name] = Observation()
        plan = self.runner.times[node.name]
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

    def _stateful(self, node: StatefulNode) -> DataFrame | None:
        inputs = [self._input(name) for name in node.upstream]
        if self.epoch is None:
            known = [frame for frame in inputs if frame is not None]
            wiring = wire_stage(
                self.runner.job,
                self.runner.graph,
                node,
                known,
                self.runner.partition_count,
                self.runner.watched,
            )
            self.runner.stages[node.name] = wiring
            for ordinal, name in enumerate(wiring.told):
                if name is not None:
                    self.runner.told[name] = (node.name, ordinal)
            return empty_frame(self.runner.session, wiring.plan.result_type)
        stage, given = self.runner.stages[node.name], self.epoch.stages[node.name]
        own_sinks = (*stage.sinks, *stage.reject_sinks)
        self.written_sinks.update(dict.fromkeys(sink.name for sink in own_sinks))
        if given.before_ms is not None:
            for ordinal, frame in enumerate(inputs):
                if frame is not None and stage.takes_out_late(ordinal):
                    inputs[ordinal] = self._without_late(node, ordinal, frame, given.before_ms)
        source = stage.plan.frame(inputs)
        task = StageTask(
            barrier=self.epoch.barrier,
            vertex=node.name,
            operator=stage.plan.operator,
            shard_count=self.runner.shard_count,
            before_ms=given.before_ms,
            after_ms=given.after_ms,
            dead_until_ms=given.dead_until_ms,
            shards=given.shards,
            sinks=tuple((n.name, n.sink) for n in stage.sinks),
            reject_sinks=tuple((n.name, n.sink) for n in stage.reject_sinks),
            passes_on=stage.passes_on,
            passes_rejects=stage.passes_rejects,
            owns_all=self.epoch.few_groups,
            has_input=source is not None,
            tells_arrivals=bool(stage.told),
            appended=stage.plan.appended,
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
        if given.early:
            self._early[node.name] = out.where(IS_EARLY)
            out = out.where(f"NOT {IS_EARLY}")
        return out if stage.passes_on else None

    def _without_late(
        self, node: StatefulNode, ordinal: int, frame: DataFrame, before_ms: int
    ) -> DataFrame:
        """Takes out, and counts, what the watermark has passed; keeps it for its sink."""
        stage = self.runner.stages[node.name]
        # A row without event time is neither late nor in time: the operator is to refuse it.
        late = F.coalesce(stage.plan.late[ordinal](before_ms), F.lit(False))
        if ordinal in stage.late_inputs:
            frame = self._persist(frame)
            self._late[node.name, ordinal] = frame.where(late)
        observation = self._late_counts[node.name, ordinal] = Observation()
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
            stage = self.runner.stages[upstream.name]
            if node in stage.sinks or node in stage.reject_sinks:
                return []
        if node.of_rejects:
            frame = self._rejects.get(upstream.name)
        elif node.of_late:
            frame = self._late.get((upstream.name, node.late_input))
        elif frame is not None and (early := self.frame(upstream, early=True)) is not None:
            frame = frame.union(early)
        if frame is None or self.epoch is None:
            return []
        self.written_sinks[node.name] = frame
        task = SinkTask(self.epoch.barrier, node.name, node.sink)
        rendered = self._guarded(node, lambda: node.sink.render(frame))
        return [rendered.mapInArrow(task, ACK_TYPE)]

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

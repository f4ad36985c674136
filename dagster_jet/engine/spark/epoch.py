"""One epoch as one Spark job: what it is given, its single action, what its tasks acked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dagster_jet.engine.connector import SourceReader, Table
from dagster_jet.engine.spark.barrier import Barrier
from dagster_jet.engine.spark.errors import naming, translate
from dagster_jet.engine.spark.event_time import Observed, TimePlan
from dagster_jet.engine.spark.executor_watch import SESSION_GONE
from dagster_jet.engine.spark.frames import EpochFrames
from dagster_jet.engine.spark.partition_column import ways_of_partitions
from dagster_jet.engine.spark.placement import Anchored, OneMachine, Placement
from dagster_jet.engine.spark.session import is_local
from dagster_jet.engine.spark.wiring import StageWiring
from dagster_jet.errors import BadRowError, ExecutorLostError, JetError, PipelineError
from dagster_jet.pipeline.graph import EnrichNode, Graph, TransformNode
from dagster_jet.pipeline.stateful import StatefulNode
from dagster_jet.processors.operator import Operator
from dagster_jet.processors.processor_operator import ProcessorOperator
from dagster_jet.processors.saved_schema import saved_columns
from dagster_jet.snapshot.manifest import Ack, ShardState
from dagster_jet.snapshot.plan import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class StageInput:
    """What one stateful stage needs to know in one epoch."""

    shards: tuple[ShardState, ...]
    before_ms: int | None
    after_ms: int | None
    dead_until_ms: int | None
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
class EpochOutput:
    acks: tuple[Ack, ...]
    observed: Mapping[str, Observed]
    source_rows: Mapping[str, int]
    late_rows: Mapping[str, int]
    """Per stateful stage: rows taken out before its operator, which could not have told."""


@dataclass(frozen=True)
class _Table:
    """A batch table as read at a moment of the monotonic clock."""

    frame: DataFrame
    read_at: float


@dataclass
class EpochRunner:
    """Builds and runs the epochs of one execution."""

    session: SparkSession
    job: str
    graph: Graph
    readers: Mapping[str, SourceReader]
    shard_count: int
    partition_count: int
    stages: dict[str, StageWiring] = field(default_factory=dict)
    """Stateful stages; these six are known after `prepare`."""
    times: dict[str, TimePlan] = field(default_factory=dict)
    watched: frozenset[str] = frozenset()
    """Timestamps nodes whose source has partitions."""
    partitioned: dict[str, str] = field(default_factory=dict)
    """The source of each of them that does watch its partitions: nothing on the way loses them."""
    told: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Per timestamps node whose rows a stage's tasks count: the stage, and which input."""
    carrying: dict[str, tuple[str, ...]] = field(default_factory=dict)
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
        ways = ways_of_partitions(self.graph, self.readers)
        self.watched = frozenset(ways)
        self.carrying = {node: () for way in ways.values() for node in way}
        frames = EpochFrames(self, None)
        for node in self.graph:
            frame = frames.frame(node)
            if isinstance(node, StatefulNode) and frame is None:
                raise PipelineError("the stage has no input.", job=self.job, stage=node.name)
        self.partitioned = {
            name: way[0] for name, way in ways.items() if self.carrying.keys() >= set(way)
        }
        needed = {node for name in self.partitioned for node in ways[name]}
        self.carrying = {n: more for n, more in self.carrying.items() if n in needed}

    def run(self, epoch: EpochInput, meanwhile: Callable[[], None]) -> EpochOutput:
        """Runs the job and returns what the tasks acked.

        Args:
            meanwhile: begins what is to go on beside the tasks. Called once the driver has nothing
                left to do but wait for them: threads beside it make it slower while it plans.

        Raises:
            JetError: translated from Spark's error, with the reaction it asks for.
        """
        frames = EpochFrames(self, epoch)
        try:
            placement = self.placement  # before the first job: it watches over all of them
            acked = [frame for node in self.graph for frame in frames.acks_of(node)]
            meanwhile()
            if not acked:
                return EpochOutput((), {}, {}, {})
            for frame in frames.persisted:
                placement.fill(frame)
            union = reduce(lambda a, b: a.union(b), acked)
            acks = tuple(Ack.from_bytes(bytes(row[0])) for row in union.collect())
            self._check_sinks(frames, acks)
            placement.check()
            observed = frames.observed(acks)
            return EpochOutput(acks, observed, frames.source_rows(), frames.late_rows())
        except JetError:
            raise
        except Exception as error:
            raise self.failure(error, self._user_stages()) from error
        finally:
            frames.release()

    def failure(self, error: Exception, user_stages: Sequence[str] = ()) -> JetError:
        """The `JetError` that a failed Spark job stands for.

        That of an executor if one is lost: whatever else went wrong can be a consequence.
        """
        scratch = None
        try:
            if self._placement is not None:
                self._placement.check()
            scratch = self.session.sparkContext.getConf().get("spark.local.dir", gettempdir())
        except ExecutorLostError as lost:
            return lost
        except SESSION_GONE:
            pass  # nobody is there to be asked
        return translate(error, self.job, user_stages, scratch)

    def _check_sinks(self, frames: EpochFrames, acks: tuple[Ack, ...]) -> None:
        """Every sink that was given rows answered; shards of stages are counted elsewhere."""
        acked = {ack.vertex for ack in acks}
        silent = [
            name
            for name, frame in frames.written_sinks.items()
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
        return self.stages[stage].plan.operator

    def plan(self) -> dict[str, Any]:
        """`Graph.plan` with what only the analysis knows, the columns of every stage's state; known
        after `prepare`."""
        plan = self.graph.plan()
        columns = {name: {COLUMNS: saved_columns(self.operator(name))} for name in self.stages}
        return {name: {**stage, **columns.get(name, {})} for name, stage in plan.items()}

    @property
    def processors(self) -> dict[str, ProcessorOperator]:
        """By stage, users' processors; known after `prepare`."""
        operators = {name: self.operator(name) for name in self.stages}
        return {n: op for n, op in operators.items() if isinstance(op, ProcessorOperator)}

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
        self._tables[node.name] = _Table(self._read_table(node), now)
        return self._tables[node.name].frame

    def _read_table(self, node: EnrichNode) -> DataFrame:
        table: Table = node.table
        with naming(node.name, self.job):
            try:
                # Not cache(): that is lazy, and Spark shares it among frames it takes for equal.
                return table.frame(self.session).localCheckpoint()
            except (PySparkException, Py4JError, OSError) as raised:
                error = self.failure(raised)
                if not isinstance(error, BadRowError) or error.position is not None:
                    raise error from raised
                raise BadRowError(
                    "a row of the table does not fit its schema.",
                    job=self.job,
                    stage=node.name,
                    position=table.locate_bad_row(self.session) or table.describe().get("path"),
                    cure="Correct the table; tables have no dead letters.",
                ) from raised

    def _user_stages(self) -> list[str]:
        return [node.name for node in self.graph if isinstance(node, TransformNode)]

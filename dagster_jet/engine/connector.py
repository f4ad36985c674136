"""What a connector owes the engine: the contract between one outside system and an epoch.

A *definition* is what users write (`sources.files(...)`): frozen, picklable, without secrets in
its repr. On the driver it opens a *reader* or a *committer*; inside Spark tasks a sink's definition
opens *writers*. Recipe R of connectors.md: a writer leaves a durable, checksummed, invisible
artifact behind (phase 1); the committer makes it visible, idempotently (phase 2).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from dagster_jet.errors import ConfigurationError
from dagster_jet.pipeline.graph import EnrichNode, Graph, SinkNode, SourceNode
from dagster_jet.processors.rejects import REJECT_SCHEMA
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.snapshot.protocol import Guarantee
from dagster_jet.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION_COLUMN = "__partition"
"""Of the rows of a `Partitioned` reader: an index into `SourceFrame.partitions`, or -1. The engine
takes it away again; users never see it."""

REJECT_COLUMNS = ", ".join(f"{field.name} string" for field in REJECT_SCHEMA)
"""As DDL."""


@dataclass(frozen=True)
class Lag:
    """What a source knows to be waiting, in its own units; `items` decides about epoch sizes."""

    items: int
    details: Mapping[str, int]


@dataclass(frozen=True)
class SourceFrame:
    """A split as frames."""

    rows: DataFrame
    rejects: DataFrame | None = None
    """Bad rows as `REJECT_COLUMNS`; None when a bad row is to fail the job."""
    shared: DataFrame | None = None
    """What both are made from: the engine materialises it once per epoch."""
    partitions: tuple[str, ...] = ()
    """Names of the partitions whose event time is to be observed in this split, each at the cost
    of one aggregate: dozens are nothing, hundreds are felt."""


@dataclass(frozen=True)
class Rejection:
    """What makes a row a bad one that is set aside instead of failing the job."""

    required: tuple[str, ...]
    """Columns that must not be null: event time."""


class SourceReader(Protocol):
    """The driver's side of a source in one execution. One thread."""

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        """Continue after `position`. `journal` holds all rows `take_journal` ever returned."""

    def poll(self) -> Lag:
        """Looks for new input. Raises `SourceError` when what was read has changed or is gone."""
        ...

    def waiting(self) -> Lag:
        """What the last `poll` found and `plan` has not taken yet."""
        ...

    def plan(self, max_rows: int) -> Any | None:
        """The next split, about `max_rows` rows; None if nothing is waiting. Moves the position."""
        ...

    def frame(self, spark: SparkSession, split: Any) -> SourceFrame:
        """The rows of a split; runs nothing."""
        ...

    def verify(self, split: Any, rows: int) -> None:
        """After the epoch's tasks: raises `SourceError` if the split changed while it was read."""

    def locate_bad_row(self, spark: SparkSession, split: Any) -> str | None:
        """Best effort, after a parse failure: a text naming position and content."""
        ...

    def position(self) -> dict[str, Any]:
        """Small JSON: where the last planned split ends."""
        ...

    def take_journal(self) -> pa.Table | None:
        """Rows to append to the source's state since the last call (unbounded positions).

        Once per epoch, on another thread while the epoch's tasks run: it may take as long as they.
        Nothing else is called meanwhile.
        """
        ...

    def whole_journal(self) -> pa.Table:
        """All rows of the source's state, for writing it anew."""
        ...

    def take_lost(self) -> int:
        """Items that the outside system dropped before they were read, since the last call.

        Called once per epoch, after `verify`. They are counted in the snapshot and told; the job
        goes on.
        """
        ...


@runtime_checkable
class Partitioned(Protocol):
    """A reader whose source has partitions that are read at rates of their own.

    Each has a watermark, and the source's is their minimum, so that what was not read yet does not
    become late because others are ahead. The rows of its frames have the `PARTITION_COLUMN`.
    """

    def partitions(self) -> Mapping[str, int]:
        """Which partitions hold the watermark back, as of the last `poll` and `plan`.

        Per name, how many items are known to wait in it: with any it is never idle, with none it is
        after the idle time-out. A partition that is not named holds nothing back, and keeps its
        watermark for its return: it is gone, or what it brings next is as new as the others' rows.
        Names are part of snapshots.
        """
        ...


class InputFate(Enum):
    """What has become of input that an execution had read, seen from a position before it."""

    RESTORED = "restored"
    """The position has it: it will not be read again."""
    WAITING = "waiting"
    """It is there, and will be read again."""
    GONE = "gone"
    """It is not there any more: what was in it cannot be read again."""


@runtime_checkable
class RereadsInput(Protocol):
    """A reader with a journal whose input others can take away: the engine notes what is read
    before a snapshot has it, and asks at the next start what has become of that."""

    def fates(self, journaled: Sequence[Mapping[str, Any]]) -> list[InputFate]:
        """Of rows that `take_journal` has returned, in other executions too. After `restore`."""
        ...

    def shown(self, journaled: Mapping[str, Any]) -> str:
        """Such a row for people: which input it is, and how much is in it."""
        ...

    def check_input(self, split: Any) -> None:
        """After an epoch failed: raises `SourceError` if its split is not what was planned. That
        is the cause then, whatever the tasks have said."""


class Source(Protocol):
    """A source's definition."""

    def describe(self) -> dict[str, str]: ...

    def open(self, job: str, stage: str, rejection: Rejection | None) -> SourceReader:
        """`rejection` None: a bad row fails the job.

        Raises:
            SourceError: the place does not exist; names the cure.
        """
        ...


class Table(Protocol):
    """A batch table to enrich a stream with, as it is when it is read."""

    def describe(self) -> dict[str, str]: ...

    def frame(self, spark: SparkSession) -> DataFrame:
        """Its rows; reading them fails where one does not fit the table's schema.

        Raises:
            SourceError: there is no such table.
        """
        ...

    def locate_bad_row(self, spark: SparkSession) -> str | None:
        """Best effort, after that: a text naming position and content."""
        ...


@dataclass(frozen=True)
class TransactionId:
    """Names what one writer leaves behind; deterministic but for the attempt."""

    job: str
    sink: str
    line: int
    execution_id: int
    epoch_id: int
    shard: int
    attempt: str


class SinkWriter(Protocol):
    """Writes one task's rows of one epoch into the open transaction."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def prepare(self) -> tuple[Artifact, ...]:
        """Durable and checksummed on return; nothing for no rows. A crash leaves a leftover."""
        ...

    def abort(self) -> None:
        """Best effort: remove what was written."""


@dataclass(frozen=True)
class CommitContext:
    """Who commits: markers are keyed by (job, sink, line, epoch)."""

    job: str
    sink: str
    line: int
    execution_id: int
    recovering: bool
    accept_loss: bool = False
    repeatable: bool = False
    """Below exactly-once: the epoch's id may come again in a later execution, with other rows. A
    marker then counts for `execution_id` alone."""
    tell_lost: Callable[[Artifact], None] = field(default=lambda artifact: None, compare=False)
    """With `accept_loss`: of which artifact rows are left out, because they are nowhere."""


class Sink(Protocol):
    """A sink's definition."""

    @property
    def max_guarantee(self) -> Guarantee: ...

    def describe(self) -> dict[str, str]: ...

    def check(self, job: str, stage: str, *, is_new_job: bool) -> None:
        """At every start.

        Raises:
            ConfigurationError: it cannot work as asked.
            SinkError: it cannot be looked at now; the job restarts.
        """

    def takes(self, schema: pa.Schema) -> bool:
        """Can a writer render these columns from Arrow alone, with the same text as `render`?"""
        ...

    def render(self, frame: DataFrame) -> DataFrame:
        """Work that the JVM does better than a writer; the result is what `write` receives."""
        ...

    def open_writer(self, transaction: TransactionId) -> SinkWriter: ...

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        """Makes the artifacts visible. Committing twice is success.

        Raises:
            ArtifactLostError: neither the artifact nor a marker of its commit is there.
            SinkUnavailableError: not now (its reaction is RETRY): the same call is made again, with
                growing pauses, until it succeeds or the execution ends.
            JetError: its reaction says whether the job restarts, and commits then, or fails. What
                is no `JetError` restarts it.
        """

    def abort_leftovers(self, context: CommitContext, keep: Collection[str]) -> int:
        """Removes what executions *older than ours* left open, except the tokens in `keep`."""
        ...


@runtime_checkable
class ReopenableSink(Protocol):
    """A sink's definition whose commits can be finished without the pipeline that it was in.

    Between a decision and its commits a job may die, and start again without this sink or with it
    at another place. Then `reopen` makes a sink from what the manifest has kept, perhaps years
    later and by a newer version, of which only `commit` and `abort_leftovers` are called. A sink
    that has no destination is committed by a pipeline that still has it, and by nobody else: such
    a start is refused.
    """

    def destination(self) -> dict[str, Any]:
        """Where it writes, as small JSON: whole paths and addresses, no secrets. What is equal is
        one place."""
        ...

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> Sink:
        """Raises `KeyError`, `ValueError` or a `JetError` where that is not enough."""
        ...


@runtime_checkable
class StoreResident(Protocol):
    """A source's, table's or sink's definition that reads or writes the job's own store."""

    def with_store(self, store: Store) -> Any:
        """The definition to use in one execution. Pickled, it takes a handle along, not a store."""
        ...


def on_store(graph: Graph, store: Store) -> Graph:
    """The graph with every `StoreResident` on the job's store."""
    nodes = dict(graph.nodes)
    for node in graph:
        if isinstance(node, SourceNode) and isinstance(node.source, StoreResident):
            nodes[node.name] = replace(node, source=node.source.with_store(store))
        elif isinstance(node, SinkNode) and isinstance(node.sink, StoreResident):
            nodes[node.name] = replace(node, sink=node.sink.with_store(store))
        elif isinstance(node, EnrichNode) and isinstance(node.table, StoreResident):
            nodes[node.name] = replace(node, table=node.table.with_store(store))
    return Graph(nodes)


def check_guarantee(wanted: Guarantee, sink: Sink, job: str, stage: str) -> None:
    """Refuses to promise more than a connector can keep.

    Raises:
        ConfigurationError: when the job is submitted; names the connector.
    """
    order = [Guarantee.NONE, Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE]
    if order.index(wanted) > order.index(sink.max_guarantee):
        raise ConfigurationError(
            f"{sink.describe()['kind']} gives {sink.max_guarantee.value} at most, the job asks "
            f"for {wanted.value}.",
            job=job,
            stage=stage,
            cure="Lower JobConfig(guarantee=...), or use another sink.",
        )

"""What a connector owes the engine: the contract between one outside system and an epoch.

A *definition* is what users write (`sources.files(...)`): frozen, picklable, without secrets in
its repr. On the driver it opens a *reader* or a *committer*; inside Spark tasks a sink's definition
opens *writers*. A writer leaves a durable, checksummed, invisible artifact behind (phase 1); the
committer makes it visible, idempotently (phase 2).

Readers and committers may inherit from the protocols here: what most of them need not do has a
body that does nothing.

Whoever talks to an outside system knows what its errors mean: a connector raises a `JetError`,
whose `reaction` says what follows, or says so of any other error (`ClassifiesErrors`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from dagster_jet.connectors.pages import leading_to_page
from dagster_jet.errors import ConfigurationError, JetError, Reaction
from dagster_jet.operators.user.dead_letters import DEAD_LETTER_SCHEMA
from dagster_jet.pipeline.graph import EnrichNode, Graph, SinkNode, SourceNode
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.snapshot.protocol import Guarantee
from dagster_jet.store import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

SOURCE_PARTITION_COLUMN = "__partition"
"""Of the rows of a `Partitioned` reader: an index into `SourceFrame.partitions`, or -1. The engine
takes it away again; users never see it."""

DEAD_LETTER_COLUMNS = ", ".join(f"{field.name} string" for field in DEAD_LETTER_SCHEMA)
"""As DDL."""


@dataclass(frozen=True)
class Lag:
    """What a source knows to be waiting, in its own units; `items` decides about epoch sizes."""

    items: int
    details: Mapping[str, int]
    bytes: int | None = None
    """How much that is, where the source knows: an epoch takes no more than memory allows."""


@dataclass(frozen=True)
class SourceFrame:
    """A split as frames."""

    rows: DataFrame
    dead_letters: DataFrame | None = None
    """Bad rows as `DEAD_LETTER_COLUMNS`; None when a bad row is to fail the job."""
    shared: DataFrame | None = None
    """What both are made from: the engine materialises it once per epoch."""
    partitions: tuple[str, ...] = ()
    """Names of the partitions whose event time is to be observed in this split, each at the cost
    of one aggregate: dozens are nothing, hundreds are felt."""


@dataclass(frozen=True)
class SplitParameters:
    """A split as the task of a prepared frame knows it (`PreparesFrames`)."""

    what: Any
    """Something small that can be pickled."""
    partitions: tuple[str, ...] = ()
    """As `SourceFrame.partitions`."""


@dataclass(frozen=True)
class BadRowRule:
    """Says which rows are bad: they become dead letters instead of failing the job."""

    required: tuple[str, ...]
    """Columns that must not be null: event time."""


class SourceReader(Protocol):
    """The driver's side of a source in one execution.

    `poll` and `close` run on a thread of the source's own, so that a source that answers slowly
    delays neither the others nor an epoch. Everything else runs on the execution's threads, one
    call at a time, perhaps beside a `poll`: what those calls use, `poll` leaves alone, and what
    it finds it returns.
    """

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        """Continues after `position`. `journal` holds all rows that `take_journal` ever returned
        and `whole_journal` still had; of one key the newest first."""

    def poll(self) -> Any:
        """Looks for new input, and returns what it finds, for `accept`.

        The next call comes after that `accept`. It may wait for news for about a second; `close`
        and `Acknowledging.acknowledge` wait until it returns.

        Raises:
            SourceUnavailableError: not now (its reaction is RETRY): the same call is made again,
                with growing pauses. The job goes on with its other sources.
            SourceError: what was read has changed or is gone; the job fails.
        """
        ...

    def accept(self, found: Any) -> None:
        """Takes what a `poll` has found; that `poll` may have begun before the last `plan`."""
        ...

    def waiting(self) -> Lag:
        """Returns how much was accepted that `plan` has not taken yet."""
        ...

    def plan(self, max_rows: int) -> Any | None:
        """Returns the next split of about `max_rows` rows, and moves the position behind it.

        Returns:
            None: nothing is waiting.
        """
        ...

    def frame(self, spark: SparkSession, split: Any) -> SourceFrame:
        """Returns the rows of a split as frames; it runs no Spark job."""
        ...

    def verify(self, split: Any, rows: int) -> None:
        """Checks a split after the epoch's tasks have read it.

        Raises:
            SourceError: it changed while it was read.
        """

    def locate_bad_row(self, spark: SparkSession, split: Any) -> str | None:
        """Returns position and content of a row that could not be parsed, if it can find them."""
        return None

    def position(self) -> dict[str, Any]:
        """Returns where the last planned split ends, as small JSON."""
        ...

    def take_journal(self) -> pa.Table | None:
        """Returns the rows to append to the source's state since the last call.

        For positions that have no bound. The first column is a text, the row's key: a row replaces
        older ones of its key. A column `journal_parts.PART_COLUMN` spreads a large journal.

        Called once per epoch, on another thread while the epoch's tasks run, so it may take as long
        as they do. Only `poll` may be called meanwhile.
        """
        return None

    def whole_journal(self, parts: Collection[int], undecided: Collection[str]) -> pa.Table:
        """Returns all rows of some parts of the source's state, to write them anew. Called after
        `take_journal`, where a snapshot ends the epoch.

        What the source need not remember any longer it may forget here, and leave out; but not what
        has a key in `undecided`: no decided snapshot has that.
        """
        return pa.table({})

    def take_lost(self) -> int:
        """Returns how many items the outside system dropped before they were read, since last time.

        Called once per epoch, after `verify`. The snapshot counts them, an event reports them, and
        the job goes on.
        """
        return 0

    def close(self) -> None:
        """Closes connections; the last call, however the execution ends."""
        return


@runtime_checkable
class ClassifiesErrors(Protocol):
    """A reader or committer that knows the errors of its client library."""

    def reaction(self, error: Exception) -> Reaction:
        """Returns how the job reacts to an error that is no `JetError`.

        RETRY the same call, RESTART from the last snapshot, FAIL until a person has changed
        something, or STOP, because a newer owner has fenced this one.
        """
        ...


def reaction_to(error: Exception, connector: object) -> Reaction | None:
    """What follows an error of a connector; None for one that nobody has foreseen."""
    if isinstance(error, JetError):
        return error.reaction
    return connector.reaction(error) if isinstance(connector, ClassifiesErrors) else None


@runtime_checkable
class Partitioned(Protocol):
    """A reader whose source has partitions that are read at rates of their own.

    Each has a watermark, and the source's is their minimum, so that what was not read yet does not
    become late because others are ahead. The rows of its frames have the `SOURCE_PARTITION_COLUMN`.
    """

    def partitions(self) -> Mapping[str, int]:
        """Returns the partitions that hold the watermark back, as of the last `poll` and `plan`.

        The value is how many items are known to wait in the partition: with any it is never idle,
        with none it is idle after the idle time-out. A partition that is not named holds nothing
        back, and keeps its watermark for its return: it is gone, or its next rows are as new as
        those of the others. Names are part of snapshots.
        """
        ...


@runtime_checkable
class Acknowledging(Protocol):
    """A reader of a queue that delivers messages again until they are acknowledged.

    Messages are acknowledged in phase 2 of the first snapshot that has them, after the sinks have
    committed, and again after a crash. A message that is delivered again after it was read is
    dropped by its id (`connectors.messages.ReadMessages` does both).
    """

    def unacknowledged(self) -> Mapping[str, Any]:
        """Returns, by id, what acknowledges each message that `plan` has handed out and that
        `acknowledge` was not called for: JSON, part of the snapshot. Called with `position`."""
        ...

    def restore_unacknowledged(self, messages: Mapping[str, Any]) -> None:
        """Takes the snapshot's messages, after `restore`; `acknowledge` follows, before any row."""
        ...

    def acknowledge(self, messages: Mapping[str, Any]) -> None:
        """Acknowledges messages, on the thread of `poll`, while an epoch runs.

        To acknowledge twice is success. A message that cannot be acknowledged any more, because the
        connection is a new one, is acknowledged when it is delivered again.

        Raises:
            SourceUnavailableError: not now; the same call is made again.
        """
        ...


class Backlog(Enum):
    """What is left of what a source had when its input was said to end."""

    READ = "read"
    """Nothing: all of it was accepted."""
    WAITING = "waiting"
    """The next poll may bring some."""
    HELD = "held"
    """Some; but no more comes before a snapshot has acknowledged what was read."""


@runtime_checkable
class ReadsBacklog(Protocol):
    """A reader whose place is read in parts: one poll does not bring all that is there, as of a
    queue that hands out so many messages at a time.

    Where the input is to end (a drained run, a job that completes), it is polled until nothing is
    left of its backlog. Of a reader without this, one poll finds all that is there.
    """

    def mark_backlog(self) -> None:
        """What is there when the next poll begins is the backlog. At most once per execution."""
        ...

    def backlog(self) -> Backlog:
        """What is left of it, as of the last `accept`. It comes to an end although others go on
        filling the place: what has come since `mark_backlog` does not count."""
        ...


@runtime_checkable
class KeepsAcknowledged(Acknowledging, Protocol):
    """An acknowledging reader whose source keeps messages all the same: they are acknowledged for
    others to see how far it is, and read again from any position."""

    keeps_acknowledged: bool


@runtime_checkable
class AcknowledgesPositions(Acknowledging, Protocol):
    """An acknowledging reader of a log: one position, as an id, stands for all rows before it."""

    acknowledges_positions: bool


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

    def take_gone(self) -> Sequence[Mapping[str, Any]]:
        """Returns such rows of input that the position has to a part, and whose rest is gone. From
        here on nobody waits for it: its loss is accepted, or the execution ends."""
        ...

    def shown(self, journaled: Mapping[str, Any]) -> str:
        """Such a row for people: which input it is, and how much is in it."""
        ...

    def check_input(self, split: Any) -> None:
        """After an epoch failed: raises `SourceError` if its split is not what was planned. That
        is the cause then, whatever the tasks have said."""


@runtime_checkable
class LimitsSnapshotInterval(Protocol):
    """A source's definition whose place does not wait for a snapshot for ever."""

    def check_snapshot_interval(self, interval: timedelta, job: str, stage: str) -> None:
        """Called at every start.

        Raises:
            ConfigurationError: the place does not wait that long.
        """
        ...


@runtime_checkable
class PreparesFrames(Protocol):
    """A reader that can make the frame of a small split before it knows the split: the frame is
    made once and run in every epoch, and its task learns what to read when it runs."""

    def prepared_frame(
        self, spark: SparkSession, split: Callable[[], Any], partitions: int
    ) -> SourceFrame | None:
        """Returns a frame of one partition, or None: each split needs a frame of its own. What is
        `SourceFrame.shared` in it is not materialised: each branch reads it.

        Args:
            split: to be called in the task; returns `SplitParameters.what`.
            partitions: the length of `SplitParameters.partitions`, or more.
        """
        ...

    def split_parameters(self, split: Any) -> SplitParameters | None:
        """Returns what the task gets of a split; None: this one needs a frame of its own."""
        ...


@runtime_checkable
class LocatesRows(Protocol):
    """A reader that finds a row of a split once more, so that an error can name it."""

    def locate_row(
        self, spark: SparkSession, split: Any, is_meant: Callable[[DataFrame], Column]
    ) -> str | None:
        """Returns position and content of the first row that is meant; None: there is none.

        It reads the split again.

        Args:
            is_meant: the condition, of a frame with the source's columns.
        """
        ...


@runtime_checkable
class ReadsFewerColumns(Protocol):
    """A reader that saves work where nobody looks at a column, or at a field of a struct."""

    def read_only(self, columns: StructType) -> None:
        """Says which ones are looked at, and that nobody asks for the file of a row.

        Called at most once, before any `frame`. The frames keep all columns and fields; those that
        are not in `columns` may be null.
        """
        ...


class Source(Protocol):
    """A source's definition."""

    @property
    def schema(self) -> str | None:
        """The columns of its rows, as DDL. An execution reads it after `LooksAtItsPlace.at_start`;
        before, it may be None or raise `PipelineError`, if only the place knows them."""
        ...

    def describe(self) -> dict[str, str]:
        """Returns kind, place and format, without secrets: for people, lineage and the plan."""
        ...

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> SourceReader:
        """Returns the reader of one execution.

        Args:
            job: the name of the job.
            stage: the name of the source in the pipeline.
            bad_rows: which rows become dead letters; None: a bad row fails the job.

        Raises:
            SourceError: the place does not exist; names the cure.
        """
        ...


class Table(Protocol):
    """A batch table to enrich a stream with, as it is when it is read."""

    def describe(self) -> dict[str, str]:
        """Returns kind, place and format, without secrets: for people, lineage and the plan."""
        ...

    def frame(self, spark: SparkSession) -> DataFrame:
        """Returns its rows; to read a row that does not fit the table's schema fails.

        Raises:
            SourceError: there is no such table.
        """
        ...

    def locate_bad_row(self, spark: SparkSession) -> str | None:
        """Returns position and content of such a row, if it can find them."""
        ...


@dataclass(frozen=True)
class TransactionId:
    """Names what one writer leaves behind. Only the attempt differs when a task runs again."""

    job: str
    sink: str
    timeline: int
    execution_id: int
    epoch_id: int
    shard: int
    attempt: str


class SinkWriter(Protocol):
    """Writes one task's rows of one epoch into the open transaction."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes rows, as `Sink.render` made them. Called any number of times.

        The rows of one source partition, behind stateless stages, come in their order: first those
        of the writer with the lowest `TransactionId.shard`, of one writer as they are written.
        """
        ...

    def prepare(self) -> tuple[Artifact, ...]:
        """Returns the artifacts, durable and with checksums; none if there were no rows.

        A crash here leaves an orphan.
        """
        ...

    def abort(self) -> None:
        """Removes what was written, as far as it can."""

    def close(self) -> None:
        """Closes connections; the last call, after `prepare` or `abort`."""
        return


Piece = Callable[[], Any]
"""Of a commit: carried out anywhere, by itself, perhaps twice. Picklable, as its result."""


def carry_out_here(pieces: Sequence[Piece]) -> list[Any]:
    """The pieces in this process, one after the other; what each has returned."""
    return [piece() for piece in pieces]


def report_to_nobody(artifact: Artifact) -> None:
    """Of a commit whose losses nobody listens to."""


@dataclass(frozen=True)
class Refused:
    """A row that a sink's place never takes."""

    reason: str
    """A sentence without its full stop."""
    raw: str
    """The row, as text."""
    position: str | None = None
    """Where people find it: its key, if it has one."""


DECIDED_CURE = (
    "what is decided is kept and committed then. If rows are decided that the place shall never "
    "take, start with JobConfig(refused_to_dead_letters=True): they go to the sink's dead-letter "
    "sink (write_to(...).dead_letter_to(...)), and the others are committed."
)
"""Of a `RowsRefusedError`, what goes on behind "start again;"."""


class RefusedRows(Protocol):
    """What a commit does with decided rows that the place refuses: `refused_to_dead_letters`."""

    @property
    def may_leave_out(self) -> bool:
        """Whether this start may commit an epoch without such rows."""
        ...

    @property
    def references_will_not_come(self) -> bool:
        """Whether rows are refused, too, that refer to a row that is not there: no other sink of
        the snapshot will commit it. Otherwise raise `ReferenceMissingError`."""
        ...

    def stage(self, epoch_id: int, rows: Sequence[Refused]) -> str:
        """Stages the rows for the dead-letter sink. Returns a memo: the committer keeps it in the
        outside system, in one transaction with the marker of the epoch, and calls `deliver` once
        that is committed. A crash before leaves an orphan."""
        ...

    def deliver(self, memo: str) -> None:
        """Commits what was staged, and reports it. To deliver twice is success: call it for every
        memo that is still kept, at every commit, also in later executions; then remove the memo."""
        ...


@dataclass(frozen=True)
class CommitContext:
    """Says who commits. The key of a marker is (job, sink, timeline, epoch)."""

    job: str
    sink: str
    timeline: int
    execution_id: int
    recovering: bool
    accept_loss: bool = False
    owns_job: bool = False
    """Of `KnowsCommits.has_committed`: an execution that begins asks, which may lock older ones out
    first. Else nobody is locked out."""
    repeatable: bool = False
    """Below exactly-once: the epoch's id may come again in a later execution, with other rows. A
    marker then counts for `execution_id` alone."""
    report_lost: Callable[[Artifact], None] = field(default=report_to_nobody, compare=False)
    """With `accept_loss`: of which artifact rows are left out, because they are nowhere."""
    refused: RefusedRows | None = field(default=None, compare=False, repr=False)
    """For committers that can leave rows out of an epoch."""
    held_writers: int = 0
    """Of a sink with held transactions: the most writers that any execution has had. So many have
    to be asked what they have left open."""
    retained_epoch_id: int = 0
    """Of the oldest snapshot that a start can go back to: it asks for the newest output up to then,
    so that marker has to stay, and all newer ones. 0: nobody knows, every marker stays."""
    in_tasks: Callable[[Sequence[Piece]], list[Any]] = field(
        default=carry_out_here, compare=False, repr=False
    )
    """Carries out pieces of a commit in Spark's tasks, in parallel, and returns their results in
    order: where rows are moved, they do not pass the driver. Raises the first `JetError` that a
    piece has raised, once all have ended. It costs a Spark job, and waits for tasks of a running
    epoch: a few small values are moved faster here."""


class Committer(Protocol):
    """The driver's side of a sink in one execution: phase 2.

    There is one call at a time, on any thread; other sinks commit at the same time.
    """

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        """Makes the artifacts visible. To commit twice is success.

        They come by epoch, and those of an epoch by shard: a place that keeps the order of rows
        makes it that order.

        Raises:
            ArtifactLostError: neither the artifact nor a marker of its commit is there.
            SinkUnavailableError: not now (its reaction is RETRY): the same call is made again, with
                growing pauses, until it succeeds or the execution ends.
            FencedError: a newer owner has locked this one out.
            JetError: its reaction says whether the job restarts, and commits then, or fails. Other
                errors are classified (`ClassifiesErrors`); what nobody has foreseen restarts it.
        """

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        """Removes what executions *older than ours* left open, except the tokens in `keep`.

        Returns:
            How many it has removed.
        """
        ...

    def close(self) -> None:
        """Closes connections; the last call, however the execution ends."""
        return


@runtime_checkable
class KnowsCommits(Protocol):
    """A committer whose outside system can be asked what is committed: `Jet.ledger` asks it.

    Of others the job's record says it. Every start asks, too, so that a place that has come back
    empty or older is not written on (`snapshot.newest_output`).
    """

    def has_committed(self, artifacts: Collection[Artifact], context: CommitContext) -> bool:
        """Returns whether all of these artifacts are committed, by the outside system's own marks.

        They may be some of their epoch's, and may have been read or moved on since. It changes
        nothing and locks nobody out (but see `CommitContext.owns_job`), also while an execution
        commits. Of a place that has lost its marks nothing is committed.

        Raises:
            JetError: it cannot be asked now, or another job commits to the place.
        """
        ...


@runtime_checkable
class GivesUpItsPlace(Protocol):
    """A committer whose place notes whose it is: a job that is deleted may take its marks along."""

    def give_up_place(self, context: CommitContext) -> None:
        """Removes what says that the place is this sink's. Output stays, also its list of epochs
        where readers go by that. To repeat it is success.

        Raises:
            JetError: not now. A place that is another sink's is left alone, without an error.
        """
        ...


class Sink(Protocol):
    """A sink's definition."""

    @property
    def max_guarantee(self) -> Guarantee:
        """The strongest guarantee that it gives; see `Limited`."""
        ...

    def describe(self) -> dict[str, str]:
        """Returns its `kind` and where it writes, without secrets: for people and lineage."""
        ...

    def check(self, job: str, stage: str, *, is_new_job: bool) -> None:
        """Checks at every start that it can be written to. It writes nothing of its own, unless
        the job is new (`ClaimsItsPlace`).

        Raises:
            ConfigurationError: it cannot work as asked.
            SinkError: it cannot be looked at now; the job restarts.
        """

    def takes(self, schema: pa.Schema) -> bool:
        """Returns whether a writer can render these columns from Arrow, as `render` would."""
        ...

    def render(self, frame: DataFrame) -> DataFrame:
        """Returns the rows as `SinkWriter.write` takes them: work that the JVM does better."""
        ...

    def open_writer(self, transaction: TransactionId) -> SinkWriter:
        """Returns the writer of a task. Called in the task."""
        ...

    def open_committer(self, job: str, stage: str) -> Committer:
        """Returns the committer of an execution. Called on the driver, once if there is something
        to commit or to remove. It connects to nothing yet, so that `Committer.commit` is retried.
        """
        ...


@runtime_checkable
class ClaimsItsPlace(Protocol):
    """A sink's definition that writes marks of its own into its place before there are rows.

    `Sink.check` writes them for a new job only: a place that has come back empty, as a folder that
    is not mounted, is left as it is until it is known to have what was committed there.
    """

    def claim_place(self, job: str, stage: str) -> None:
        """Writes what is missing, before any writer and any commit of an execution.

        Raises:
            ConfigurationError, SinkError: as `Sink.check`.
        """
        ...


@runtime_checkable
class ChecksColumns(Protocol):
    """A sink's definition that cannot write rows of every type."""

    def check_columns(self, columns: pa.Schema, job: str, stage: str) -> None:
        """Called at every start, with the columns that the sink gets.

        Raises:
            PipelineError: a column cannot be written.
        """
        ...


@runtime_checkable
class KnowsRefusals(Protocol):
    """A sink's definition that can say of a row whether its place will ever take it.

    What is decided has to be written, so it is asked before. Such a row goes to the sink's
    dead-letter sink, in the same epoch; without one it fails the job, and nothing of the epoch
    counts.
    """

    def refused(self, rows: pa.RecordBatch) -> Mapping[int, Refused]:
        """Returns, by row number, the rows that the place never takes.

        Called in the task, with rows as `SinkWriter.write` takes them. What only the outside system
        knows is not asked here.
        """
        ...


@runtime_checkable
class LeavesNothingOut(KnowsRefusals, Protocol):
    """One whose rows build on each other, as changes do: it has no dead-letter sink, and a row that
    its place never takes fails the job."""

    leaves_nothing_out: bool


@runtime_checkable
class ReopenableSink(Protocol):
    """A sink's definition whose commits can be finished without the pipeline that it was in.

    Between a decision and its commits a job may die, and start again without this sink or with it
    at another place. Then `reopen` makes a sink from what the manifest has kept, perhaps years
    later and by a newer version; only its committer is used. A sink that is not reopenable is
    committed only by a pipeline that still has it; another start is refused.
    """

    def destination(self) -> dict[str, Any]:
        """Returns where it writes, as small JSON: whole paths and addresses, no secrets.

        Equal destinations are one place, and so are those that differ in `options` alone: what only
        says how the place is reached.
        """
        ...

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> Sink:
        """Returns a sink that writes there, to commit only.

        Raises:
            KeyError, ValueError, JetError: the destination does not say enough.
        """
        ...


@runtime_checkable
class StoreResident(Protocol):
    """A source's, table's or sink's definition that reads or writes the job's own store."""

    def with_store(self, store: Store) -> Any:
        """The definition to use in one execution. Pickled, it takes a handle along, not a store."""
        ...


@runtime_checkable
class HoldsTransactions(Protocol):
    """A sink's definition whose writers prepare transactions in the outside system
    (`connectors.held`). Every epoch of its job ends in a snapshot."""

    @property
    def held_writers(self) -> int:
        """How many writers an epoch has, always: `render` divides the rows among so many Spark
        partitions, and `takes` refuses all."""
        ...


@runtime_checkable
class HoldsForATime(HoldsTransactions, Protocol):
    """One whose outside system gives a held transaction up when its time is over. A start checks
    that it lasts from one snapshot to the next, and over a restart."""

    @property
    def held_for_ms(self) -> int: ...


@runtime_checkable
class LooksAtItsPlace(Protocol):
    """A source's, table's or sink's definition that looks at its place before an execution."""

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> Any:
        """The definition to use, with what only its place knows.

        Args:
            on_one_host: all tasks see the files that the driver sees.

        Raises:
            ConfigurationError: it cannot work as asked.
            SourceUnavailableError, SinkUnavailableError: it cannot be looked at now; an execution
                waits, and makes the same call again.
        """
        ...


def on_store(graph: Graph, store: Store) -> Graph:
    """The graph with every `StoreResident` on the job's store."""

    def change(name: str, definition: Any) -> Any:
        is_resident = isinstance(definition, StoreResident)
        return definition.with_store(store) if is_resident else definition

    return _with_definitions(graph, change)


Ask = Callable[[str, object, Callable[[], Any]], Any]
"""Of a stage's connector: makes the call, perhaps again and again, and returns what it returns."""


def ask_once(stage: str, connector: object, call: Callable[[], Any]) -> Any:
    """A place that cannot be looked at now ends the start."""
    return call()


def at_start(graph: Graph, job: str, *, on_one_host: bool, ask: Ask = ask_once) -> Graph:
    """The graph with what its places know. Raises as `LooksAtItsPlace.at_start`."""

    def change(name: str, definition: Any) -> Any:
        if not isinstance(definition, LooksAtItsPlace):
            return definition
        looks = partial(definition.at_start, job, name, on_one_host=on_one_host)
        with leading_to_page(definition):
            return ask(name, definition, looks)

    return _with_definitions(graph, change)


def _with_definitions(graph: Graph, change: Callable[[str, Any], Any]) -> Graph:
    nodes = dict(graph.nodes)
    for node in graph:
        if isinstance(node, SourceNode):
            nodes[node.name] = replace(node, source=change(node.name, node.source))
        elif isinstance(node, SinkNode):
            nodes[node.name] = replace(node, sink=change(node.name, node.sink))
        elif isinstance(node, EnrichNode):
            nodes[node.name] = replace(node, table=change(node.name, node.table))
    return Graph(nodes)


@runtime_checkable
class Limited(Protocol):
    """A source's or sink's definition that may give less than the job asks for, because its outside
    system can do no more, or because its user wants it so (`guarantee=`). `describe` shows it."""

    @property
    def max_guarantee(self) -> Guarantee: ...


def effective_guarantee(wanted: Guarantee, connector: object) -> Guarantee:
    """What a connector gives in a job that wants this; lowering is told at every start."""
    return wanted.at_most(connector.max_guarantee) if isinstance(connector, Limited) else wanted


def effective_guarantees(graph: Graph, wanted: Guarantee) -> dict[str, Guarantee]:
    """By name, what each source and sink of a pipeline gives in a job that wants this."""
    connectors: dict[str, object] = {node.name: node.source for node in graph.sources}
    connectors |= {node.name: node.sink for node in graph.sinks}
    return {name: effective_guarantee(wanted, each) for name, each in connectors.items()}


def guarantee_named(value: str | Guarantee) -> Guarantee:
    """A connector's `guarantee=`.

    Raises:
        ConfigurationError: there is no such guarantee.
    """
    try:
        return Guarantee(value)
    except ValueError:
        known = ", ".join(f'"{guarantee.value}"' for guarantee in Guarantee)
        raise ConfigurationError(
            f"guarantee: {value!r} is unknown.", cure=f"Use one of {known}."
        ) from None


def shown_guarantee(limit: Guarantee) -> dict[str, str]:
    """For `describe`: nothing where nothing is lowered."""
    return {} if limit is Guarantee.EXACTLY_ONCE else {"guarantee": limit.value}

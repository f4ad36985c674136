"""Contract between connectors and the engine.

Users write a *definition* (`sources.files(...)`): frozen, picklable, without secrets in its repr.
On the driver a definition opens a *reader* or a *committer*; inside Spark tasks a sink's definition
opens *writers*. A writer produces a durable, checksummed, invisible artifact (phase 1). The
committer makes it visible, idempotently (phase 2).

Readers and committers may inherit from the protocols here: methods that most connectors do not
need have a default that does nothing.

Connectors classify the errors of their systems: they raise a `JetError`, whose `reaction` says how
the job reacts, or implement `ClassifiesErrors` for other exceptions.
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
"""Column in frames of a `Partitioned` reader: index into `SourceFrame.partitions`, or -1. The
engine drops it; users never see it."""

DEAD_LETTER_COLUMNS = ", ".join(f"{field.name} string" for field in DEAD_LETTER_SCHEMA)
"""Schema of dead letters, as DDL."""


@dataclass(frozen=True)
class Lag:
    """Known unread input of a source, in its own units; `items` determines epoch sizes."""

    items: int
    details: Mapping[str, int]
    bytes: int | None = None
    """Size of the unread input, if known: it limits an epoch to what fits into memory."""


@dataclass(frozen=True)
class SourceFrame:
    """DataFrames of one split."""

    rows: DataFrame
    dead_letters: DataFrame | None = None
    """Bad rows as `DEAD_LETTER_COLUMNS`; None if a bad row fails the job."""
    shared: DataFrame | None = None
    """Common parent of `rows` and `dead_letters`: the engine materialises it once per epoch."""
    partitions: tuple[str, ...] = ()
    """Names of the partitions whose event time is observed in this split, by two aggregates in
    total."""


@dataclass(frozen=True)
class SplitParameters:
    """Description of a split for the task of a prepared frame (`PreparesFrames`)."""

    what: Any
    """Small picklable value."""
    partitions: tuple[str, ...] = ()
    """See `SourceFrame.partitions`."""


@dataclass(frozen=True)
class BadRowRule:
    """Defines bad rows: they become dead letters instead of failing the job."""

    required: tuple[str, ...]
    """Columns that must not be null: the event time."""


class SourceReader(Protocol):
    """The driver's side of a source in one execution.

    `poll` and `close` run on the source's own thread, so that a slow source delays neither other
    sources nor an epoch. All other methods run on the execution's threads, one call at a time,
    possibly concurrently with `poll`. `poll` must not touch the state that they use; it returns its
    findings instead.
    """

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        """Continues after `position`. `journal` holds all rows that `take_journal` ever returned
        and `whole_journal` still kept; for each key the newest first."""

    def poll(self) -> Any:
        """Looks for new input, and returns it for `accept`.

        The next call comes after that `accept`. A call may wait about a second for new input;
        `close` and `Acknowledging.acknowledge` wait until it returns.

        Raises:
            SourceUnavailableError: temporarily unavailable (its reaction is RETRY): the call is
                repeated with growing pauses. The job continues with its other sources.
            SourceError: input that was already read has changed or is gone; the job fails.
        """
        ...

    def accept(self, found: Any) -> None:
        """Takes the result of a `poll`, which may have begun before the last `plan`."""
        ...

    def waiting(self) -> Lag:
        """Returns the accepted input that `plan` has not taken yet."""
        ...

    def plan(self, max_rows: int) -> Any | None:
        """Returns the next split of about `max_rows` rows, and advances the position past it.

        Returns:
            The split; None if no input is waiting.
        """
        ...

    def frame(self, spark: SparkSession, split: Any) -> SourceFrame:
        """Returns the DataFrames of a split, without running a Spark job."""
        ...

    def verify(self, split: Any, rows: int) -> None:
        """Checks a split after the epoch's tasks have read it.

        Raises:
            SourceError: it changed while it was read.
        """

    def locate_bad_row(self, spark: SparkSession, split: Any) -> str | None:
        """Returns position and content of a row that could not be parsed, if it can be found."""
        return None

    def position(self) -> dict[str, Any]:
        """Returns the end of the last planned split, as small JSON."""
        ...

    def take_journal(self) -> pa.Table | None:
        """Returns the rows to append to the source's state since the last call.

        For positions of unbounded size. The first column is a string, the row's key: a row replaces
        older rows with its key. A column `journal_parts.PART_COLUMN` spreads a large journal.

        Called once per epoch, on another thread while the epoch's tasks run, so it may take as long
        as they do. Only `poll` may run concurrently.
        """
        return None

    def whole_journal(self, parts: Collection[int], undecided: Collection[str]) -> pa.Table:
        """Returns all rows of some parts of the source's state, to be rewritten.

        Called after `take_journal` if a snapshot ends the epoch. The source may drop rows here that
        it no longer needs, except those with a key in `undecided`, which are in no decided
        snapshot.
        """
        return pa.table({})

    def take_lost(self) -> int:
        """Returns how many items the outside system dropped unread since the last call.

        Called once per epoch, after `verify`. The snapshot counts them, an event reports them, and
        the job continues.
        """
        return 0

    def close(self) -> None:
        """Closes connections. Always the last call, also if the execution fails."""
        return


@runtime_checkable
class ClassifiesErrors(Protocol):
    """A reader or committer that classifies errors of its client library."""

    def reaction(self, error: Exception) -> Reaction:
        """Returns how the job reacts to an error that is not a `JetError`.

        RETRY the same call, RESTART from the last snapshot, FAIL until a person has changed
        something, or STOP, because a newer owner has fenced this one.
        """
        ...


def reaction_to(error: Exception, connector: object) -> Reaction | None:
    """Returns the job's reaction to a connector's error; None if nobody classifies it."""
    if isinstance(error, JetError):
        return error.reaction
    return connector.reaction(error) if isinstance(connector, ClassifiesErrors) else None


@runtime_checkable
class Partitioned(Protocol):
    """A reader whose source has partitions that are read at different rates.

    Each partition has a watermark. The source's watermark is their minimum, so that unread rows do
    not become late because other partitions are ahead. Its frames have the
    `SOURCE_PARTITION_COLUMN`.
    """

    def partitions(self) -> Mapping[str, int]:
        """Returns the partitions that hold the watermark back, as of the last `poll` and `plan`.

        The value is the number of items known to wait in the partition. With waiting items it is
        never idle; without, it is idle after the idle time-out. A partition that is missing here
        does not hold the watermark back, and keeps its own watermark for its return: it is gone, or
        its next rows are as new as those of the others. Names are part of snapshots.
        """
        ...


@runtime_checkable
class Acknowledging(Protocol):
    """A reader of a queue that redelivers messages until they are acknowledged.

    Messages are acknowledged in phase 2 of the first snapshot that contains them, after the sinks
    have committed, and again after a crash. A message that is redelivered after it was read is
    dropped by its id. `connectors.messages.ReadMessages` does both.
    """

    def unacknowledged(self) -> Mapping[str, Any]:
        """Returns, by id, the acknowledgement handle of each message that `plan` has handed out and
        `acknowledge` was not called for: JSON, part of the snapshot. Called with `position`."""
        ...

    def restore_unacknowledged(self, messages: Mapping[str, Any]) -> None:
        """Takes the snapshot's messages, after `restore`; `acknowledge` follows, before any row."""
        ...

    def acknowledge(self, messages: Mapping[str, Any]) -> None:
        """Acknowledges messages, on the thread of `poll`, while an epoch runs.

        Idempotent. A message of a lost connection, which can no longer be acknowledged, is
        acknowledged when it is redelivered.

        Raises:
            SourceUnavailableError: temporarily unavailable; the call is repeated.
        """
        ...


class Backlog(Enum):
    """State of the backlog: the input that a source had when its input was declared to end."""

    READ = "read"
    """All of it was accepted."""
    WAITING = "waiting"
    """The next poll may return some."""
    HELD = "held"
    """Some is left, but it arrives only after a snapshot has acknowledged the messages read."""


@runtime_checkable
class ReadsBacklog(Protocol):
    """A reader that needs several polls for its backlog, such as a queue with limited batches.

    If the input is to end (a drained run, a job that completes), the source is polled until its
    backlog is read. For a reader without this protocol one poll finds all input.
    """

    def mark_backlog(self) -> None:
        """Defines the backlog as all input present when the next poll begins. Called at most once
        per execution."""
        ...

    def backlog(self) -> Backlog:
        """Returns the backlog's state as of the last `accept`. It must end although others keep
        adding input: input newer than `mark_backlog` does not count."""
        ...


@runtime_checkable
class KeepsAcknowledged(Acknowledging, Protocol):
    """An acknowledging reader whose source keeps acknowledged messages: acknowledging only reports
    progress to others, and any position can be read again."""

    keeps_acknowledged: bool


@runtime_checkable
class AcknowledgesPositions(Acknowledging, Protocol):
    """An acknowledging reader of a log: one position, as an id, stands for all rows before it."""

    acknowledges_positions: bool


class InputFate(Enum):
    """State of input that an execution had read, relative to an earlier position."""

    RESTORED = "restored"
    """The position includes it: it will not be read again."""
    WAITING = "waiting"
    """It exists, and will be read again."""
    GONE = "gone"
    """It no longer exists and cannot be read again."""


@runtime_checkable
class RereadsInput(Protocol):
    """A reader with a journal whose input others can remove: the engine records input that is read
    before a snapshot contains it, and asks for its state at the next start."""

    def fates(self, journaled: Sequence[Mapping[str, Any]]) -> list[InputFate]:
        """Returns the state of each row that `take_journal` returned, also in other executions.
        Called after `restore`."""
        ...

    def take_gone(self) -> Sequence[Mapping[str, Any]]:
        """Returns journal rows of input that the position covers in part and whose rest is gone.
        The reader no longer waits for it: the loss is accepted, or the execution ends."""
        ...

    def shown(self, journaled: Mapping[str, Any]) -> str:
        """Describes a journal row for people: the input and its size."""
        ...

    def check_input(self, split: Any) -> None:
        """Called after an epoch failed: raises `SourceError` if the split is no longer as planned.
        That error then replaces the tasks' error."""


@runtime_checkable
class LimitsSnapshotInterval(Protocol):
    """A source's definition whose outside system limits the time between snapshots."""

    def check_snapshot_interval(self, interval: timedelta, job: str, stage: str) -> None:
        """Called at every start.

        Raises:
            ConfigurationError: the interval exceeds the outside system's limit.
        """
        ...


@runtime_checkable
class PreparesFrames(Protocol):
    """A reader that can make a small split's frame in advance: the frame is made once and run in
    every epoch, and its task gets the split when it runs."""

    def prepared_frame(
        self, spark: SparkSession, split: Callable[[], Any], partitions: int
    ) -> SourceFrame | None:
        """Returns a frame of one Spark partition; None if each split needs its own frame.
        `SourceFrame.shared` in it is not materialised: each branch reads it.

        Args:
            split: to be called in the task; returns `SplitParameters.what`.
            partitions: upper bound of the length of `SplitParameters.partitions`.
        """
        ...

    def split_parameters(self, split: Any) -> SplitParameters | None:
        """Returns the task's description of a split; None if this split needs its own frame."""
        ...


@runtime_checkable
class LocatesRows(Protocol):
    """A reader that finds a row of a split again, so that an error can name it."""

    def locate_row(
        self, spark: SparkSession, split: Any, is_meant: Callable[[DataFrame], Column]
    ) -> str | None:
        """Reads the split again; returns position and content of the first match, or None.

        Args:
            is_meant: returns the condition for a frame with the source's columns.
        """
        ...


@runtime_checkable
class ReadsFewerColumns(Protocol):
    """A reader that skips unused columns and struct fields."""

    def read_only(self, columns: StructType) -> None:
        """Sets the used columns and fields; the file of a row is not used either.

        Called at most once, before any `frame`. The frames keep all columns and fields; those that
        are not in `columns` may be null.
        """
        ...


class Source(Protocol):
    """A source's definition."""

    @property
    def schema(self) -> str | None:
        """The columns of its rows, as DDL. An execution reads it after `LooksAtItsPlace.at_start`.
        Before, it may be None or raise `PipelineError` if only the outside system knows them."""
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
    """A batch table to enrich a stream with, read in its current state."""

    def describe(self) -> dict[str, str]:
        """Returns kind, place and format, without secrets: for people, lineage and the plan."""
        ...

    def frame(self, spark: SparkSession) -> DataFrame:
        """Returns its rows; reading a row that does not fit the table's schema fails.

        Raises:
            SourceError: there is no such table.
        """
        ...

    def locate_bad_row(self, spark: SparkSession) -> str | None:
        """Returns position and content of a row that does not fit, if it can be found."""
        ...


@dataclass(frozen=True)
class TransactionId:
    """Identifies the output of one writer. Task retries differ only in `attempt`."""

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

        Behind stateless stages the rows of one source partition stay in order: by
        `TransactionId.shard` across writers, by order of `write` within a writer.
        """
        ...

    def prepare(self) -> tuple[Artifact, ...]:
        """Returns the artifacts, durable and with checksums; none if there were no rows.

        A crash here leaves an orphan.
        """
        ...

    def abort(self) -> None:
        """Removes the written data, best effort."""

    def close(self) -> None:
        """Closes connections; the last call, after `prepare` or `abort`."""
        return


Piece = Callable[[], Any]
"""Independent part of a commit: may run in any process, and twice. It and its result are
picklable."""


def carry_out_here(pieces: Sequence[Piece]) -> list[Any]:
    """Runs the pieces sequentially in this process and returns their results."""
    return [piece() for piece in pieces]


def report_to_nobody(artifact: Artifact) -> None:
    """Ignores a lost artifact."""


@dataclass(frozen=True)
class Refused:
    """A row that a sink's outside system never accepts."""

    reason: str
    """A sentence without its full stop."""
    raw: str
    """The row, as text."""
    position: str | None = None
    """Location of the row for people: its key, if it has one."""


DECIDED_CURE = (
    "the decided rows are kept, and that start commits them. If the sink can never accept some "
    "of them, start with JobConfig(refused_to_dead_letters=True): these rows go to the sink's "
    "dead-letter sink (write_to(...).dead_letter_to(...)), and the others are committed."
)
"""Rest of the cure of a `RowsRefusedError`, after "start again;"."""


class RefusedRows(Protocol):
    """Handles decided rows that the outside system refuses in a commit
    (`refused_to_dead_letters`)."""

    @property
    def may_leave_out(self) -> bool:
        """Whether this start may commit an epoch without such rows."""
        ...

    @property
    def references_will_not_come(self) -> bool:
        """Whether a row that references a missing row is refused, too, because no other sink of
        the snapshot will commit that row. If False, raise `ReferenceMissingError` for it."""
        ...

    def stage(self, epoch_id: int, rows: Sequence[Refused]) -> str:
        """Stages the rows for the dead-letter sink. Returns a memo: the committer keeps it in the
        outside system, in one transaction with the epoch's marker, and calls `deliver` once that
        is committed. A crash before leaves an orphan."""
        ...

    def deliver(self, memo: str) -> None:
        """Commits and reports the staged rows. Idempotent: call it for every memo that is still
        kept, at every commit, also in later executions; then remove the memo."""
        ...


@dataclass(frozen=True)
class CommitContext:
    """Identifies the committing execution. The key of a marker is (job, sink, timeline, epoch)."""

    job: str
    sink: str
    timeline: int
    execution_id: int
    recovering: bool
    accept_loss: bool = False
    owns_job: bool = False
    """For `KnowsCommits.has_committed`: True if a starting execution asks; the call may then fence
    older executions first. False: the call fences nobody."""
    repeatable: bool = False
    """True below exactly-once: a later execution may reuse the epoch's id for other rows. A marker
    then counts only for its `execution_id`."""
    report_lost: Callable[[Artifact], None] = field(default=report_to_nobody, compare=False)
    """With `accept_loss`: called with each artifact that is left out because its rows are lost."""
    refused: RefusedRows | None = field(default=None, compare=False, repr=False)
    """For committers that can leave rows out of an epoch."""
    held_writers: int = 0
    """Highest number of writers in any execution of a sink with held transactions. Each may have
    left open transactions."""
    retained_epoch_id: int = 0
    """Epoch of the oldest snapshot that a start can go back to. Such a start asks for the newest
    output up to that epoch, so its marker and all newer ones must stay. 0: unknown, keep all."""
    in_tasks: Callable[[Sequence[Piece]], list[Any]] = field(
        default=carry_out_here, compare=False, repr=False
    )
    """Runs pieces of a commit in parallel Spark tasks, so that rows do not pass the driver, and
    returns their results in order. Raises the first `JetError` of a piece once all have ended. It
    costs a Spark job and waits for tasks of a running epoch: for a few small values the driver is
    faster."""


class Committer(Protocol):
    """The driver's side of a sink in one execution: phase 2.

    There is one call at a time, on any thread; other sinks commit concurrently.
    """

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        """Makes the artifacts visible. Idempotent.

        Artifacts are ordered by epoch, then by shard. A sink that keeps the order of rows keeps
        that order.

        Raises:
            ArtifactLostError: neither the artifact nor a marker of its commit exists.
            SinkUnavailableError: temporarily unavailable (its reaction is RETRY): the call is
                repeated with growing pauses until it succeeds or the execution ends.
            FencedError: a newer owner has fenced this one.
            JetError: its reaction says whether the job fails, or restarts and then commits. Other
                errors are classified by `ClassifiesErrors`; unclassified ones restart the job.
        """

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        """Removes orphans of executions *older than ours*, except the tokens in `keep`.

        Returns:
            The number of removed orphans.
        """
        ...

    def close(self) -> None:
        """Closes connections. Always the last call, also if the execution fails."""
        return


@runtime_checkable
class KnowsCommits(Protocol):
    """A committer whose outside system can be asked which artifacts are committed.

    `Job.ledger` asks it; for other committers it uses the job's record. Every start asks, too, so
    that a job does not continue on a place that came back empty or older
    (`snapshot.newest_output`).
    """

    def has_committed(self, artifacts: Collection[Artifact], context: CommitContext) -> bool:
        """Returns whether all of these artifacts are committed, by the outside system's markers.

        They may be some of their epoch's artifacts, and readers may have consumed or moved the
        output since. The call changes nothing and fences nobody (but see `CommitContext.owns_job`),
        also while an execution commits. If the markers are lost, it returns False.

        Raises:
            JetError: the outside system is unavailable, or another job commits there.
        """
        ...


@runtime_checkable
class GivesUpItsPlace(Protocol):
    """A committer whose outside system records the owning sink; a deleted job can release it."""

    def give_up_place(self, context: CommitContext) -> None:
        """Removes the ownership record. Output stays, also its list of epochs if readers use it.
        Idempotent.

        Raises:
            JetError: temporarily unavailable. If another sink owns the place, the call does
                nothing.
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
        """Checks at every start that the sink can be written to. It writes no marks of its own,
        unless the job is new (`ClaimsItsPlace`).

        Raises:
            ConfigurationError: it cannot work as configured.
            SinkError: it cannot be checked now; the job restarts.
        """

    def takes(self, schema: pa.Schema) -> bool:
        """Returns whether a writer can render these columns from Arrow, as `render` would."""
        ...

    def render(self, frame: DataFrame) -> DataFrame:
        """Converts the rows to the form of `SinkWriter.write`, in the JVM."""
        ...

    def open_writer(self, transaction: TransactionId) -> SinkWriter:
        """Returns the writer of a task. Called in the task."""
        ...

    def open_committer(self, job: str, stage: str) -> Committer:
        """Returns the committer of an execution. Called on the driver, at most once, if there is
        something to commit or to remove. It connects to nothing, so that `Committer.commit` is
        retried."""
        ...


@runtime_checkable
class ClaimsItsPlace(Protocol):
    """A sink's definition that writes its own marks into its place before any rows.

    `Sink.check` writes them for a new job only: a place that came back empty, such as an unmounted
    folder, stays unchanged until it is known to hold the committed output.
    """

    def claim_place(self, job: str, stage: str) -> None:
        """Writes missing marks, before any writer and any commit of an execution.

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
    """A sink's definition that can tell in advance whether its outside system accepts a row.

    Decided rows must be written, so they are checked before the decision. A refused row goes to the
    sink's dead-letter sink in the same epoch. Without one it fails the job, and the epoch is
    discarded.
    """

    def refused(self, rows: pa.RecordBatch) -> Mapping[int, Refused]:
        """Returns, by row number, the rows that the outside system never accepts.

        Called in the task, with rows as `SinkWriter.write` takes them. It does not ask the outside
        system.
        """
        ...


@runtime_checkable
class LeavesNothingOut(KnowsRefusals, Protocol):
    """A sink whose rows depend on each other, such as changes: it has no dead-letter sink, and a
    row that the outside system never accepts fails the job."""

    leaves_nothing_out: bool


@runtime_checkable
class ReducesRows(KnowsRefusals, Protocol):
    """A sink whose `render` keeps one row of several."""

    def with_dead_letters(self) -> Sink:
        """Returns this sink for a place in a pipeline where it has a dead-letter sink: its `render`
        then keeps every refused row, and beside them what it keeps of the others."""
        ...


@runtime_checkable
class ReopenableSink(Protocol):
    """A sink's definition whose commits can be completed without its pipeline.

    Between a decision and its commits a job may die, and start again without this sink or with
    another destination. `reopen` then makes a sink from the manifest, possibly years later and by a
    newer version; only its committer is used. A start without a sink that is not reopenable is
    refused while commits of that sink are due.
    """

    def destination(self) -> dict[str, Any]:
        """Returns where it writes, as small JSON: whole paths and addresses, no secrets.

        Destinations are the same place if they are equal apart from `options`, which only say how
        the place is reached.
        """
        ...

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> Sink:
        """Returns a sink for the destination, to commit only.

        Raises:
            KeyError, ValueError, JetError: the destination is incomplete or not valid.
        """
        ...


@runtime_checkable
class StoreResident(Protocol):
    """A source's, table's or sink's definition that reads or writes the job's own store."""

    def with_store(self, store: Store) -> Any:
        """Returns the definition for one execution. It pickles a handle instead of the store."""
        ...


@runtime_checkable
class HoldsTransactions(Protocol):
    """A sink's definition whose writers prepare transactions in the outside system
    (`connectors.held`). Every epoch of its job ends in a snapshot."""

    @property
    def held_writers(self) -> int:
        """Fixed number of writers per epoch: `render` divides the rows among as many Spark
        partitions, and `takes` returns False."""
        ...


@runtime_checkable
class HoldsForATime(HoldsTransactions, Protocol):
    """A sink whose outside system rolls held transactions back after a time-out. A start checks
    that the time-out covers the time between two snapshots and a restart."""

    @property
    def held_for_ms(self) -> int: ...


@runtime_checkable
class LooksAtItsPlace(Protocol):
    """A source's, table's or sink's definition that inspects its place before an execution."""

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> Any:
        """Returns the definition to use, completed with facts that only its place knows.

        Args:
            on_one_host: all tasks see the files that the driver sees.

        Raises:
            ConfigurationError: it cannot work as configured.
            SourceUnavailableError, SinkUnavailableError: temporarily unavailable; an execution
                waits, and repeats the call.
        """
        ...


def on_store(graph: Graph, store: Store) -> Graph:
    """Returns the graph with every `StoreResident` on the job's store."""

    def change(name: str, definition: Any) -> Any:
        is_resident = isinstance(definition, StoreResident)
        return definition.with_store(store) if is_resident else definition

    return _with_definitions(graph, change)


Ask = Callable[[str, object, Callable[[], Any]], Any]
"""Makes a call of a stage's connector, possibly with retries, and returns its result."""


def ask_once(stage: str, connector: object, call: Callable[[], Any]) -> Any:
    """Makes the call without retries: an unavailable place ends the start."""
    return call()


def at_start(graph: Graph, job: str, *, on_one_host: bool, ask: Ask = ask_once) -> Graph:
    """Calls `LooksAtItsPlace.at_start` of all connectors; returns the graph with the results.

    Raises as that call does."""

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
    """A source's or sink's definition that may give a weaker guarantee than the job's: its outside
    system supports no more, or its user chose it (`guarantee=`). `describe` shows it."""

    @property
    def max_guarantee(self) -> Guarantee: ...


def effective_guarantee(wanted: Guarantee, connector: object) -> Guarantee:
    """Returns a connector's guarantee in a job that wants `wanted`; every start reports a weaker
    one."""
    return wanted.at_most(connector.max_guarantee) if isinstance(connector, Limited) else wanted


def effective_guarantees(graph: Graph, wanted: Guarantee) -> dict[str, Guarantee]:
    """Returns the effective guarantee of each source and sink of a pipeline, by name."""
    connectors: dict[str, object] = {node.name: node.source for node in graph.sources}
    connectors |= {node.name: node.sink for node in graph.sinks}
    return {name: effective_guarantee(wanted, each) for name, each in connectors.items()}


def guarantee_named(value: str | Guarantee) -> Guarantee:
    """Parses a connector's `guarantee=`.

    Raises:
        ConfigurationError: the guarantee is unknown.
    """
    try:
        return Guarantee(value)
    except ValueError:
        known = ", ".join(f'"{guarantee.value}"' for guarantee in Guarantee)
        raise ConfigurationError(
            f"guarantee: {value!r} is unknown.", cure=f"Use one of {known}."
        ) from None


def shown_guarantee(limit: Guarantee) -> dict[str, str]:
    """Returns the entry for `describe`; empty for exactly-once."""
    return {} if limit is Guarantee.EXACTLY_ONCE else {"guarantee": limit.value}

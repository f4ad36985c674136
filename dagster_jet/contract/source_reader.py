"""The driver's side of a source in one execution."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from dagster_jet.contract.part import ClassifiesErrors
from dagster_jet.core.arrow_types import ArrowTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

SOURCE_PARTITION_COLUMN = "__partition"
"""Column in frames of a reader that `is_partitioned`: index into `SourceFrame.partitions`, or -1.
The engine drops it; users never see it."""


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
    """Bad rows, with the text columns source, position, reason and raw; None if a bad row fails
    the job."""
    shared: DataFrame | None = None
    """Common parent of `rows` and `dead_letters`: the engine materialises it once per epoch."""
    partitions: tuple[str, ...] = ()
    """Names of the partitions whose event time is observed in this split, by two aggregates in
    total."""


@dataclass(frozen=True)
class SplitParameters:
    """Description of a split for the task of a prepared frame."""

    what: Any
    """Small picklable value."""
    partitions: tuple[str, ...] = ()
    """See `SourceFrame.partitions`."""


class Acknowledges(Enum):
    """Kind of input that a reader acknowledges to its outside system in phase 2."""

    NOTHING = "nothing"
    MESSAGES = "messages"
    """Each message by its id. The outside system then forgets it."""
    POSITIONS = "positions"
    """One position, as an id, for all rows before it. The outside system then forgets them."""
    PROGRESS = "progress"
    """Positions, for others to see. Any position can still be read again."""

    @property
    def forgets(self) -> bool:
        """Whether acknowledged input cannot be read again."""
        return self in (Acknowledges.MESSAGES, Acknowledges.POSITIONS)


class Backlog(Enum):
    """State of the backlog: the input that a source had when its input was declared to end."""

    READ = "read"
    """All of it was accepted."""
    WAITING = "waiting"
    """The next poll may return some."""
    HELD = "held"
    """Some is left, but it arrives only after a snapshot has acknowledged the messages read."""


class InputFate(Enum):
    """State of input that an execution had read, relative to an earlier position."""

    RESTORED = "restored"
    """The position includes it: it will not be read again."""
    WAITING = "waiting"
    """It exists, and will be read again."""
    GONE = "gone"
    """It no longer exists and cannot be read again."""


class SourceReader(ClassifiesErrors):
    """The driver's side of a source in one execution.

    `poll`, `acknowledge` and `close` run on the source's own thread, so that a slow source delays
    neither other sources nor an epoch. All other methods run on the execution's threads, one call
    at a time, possibly concurrently with `poll`. `poll` must not touch the state that they use; it
    returns its findings instead.
    """

    _TOGETHER: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("take_journal", "whole_journal"),
        ("is_partitioned", "partitions"),
        ("acknowledges", "unacknowledged", "restore_unacknowledged", "acknowledge"),
        ("mark_backlog", "backlog"),
        ("rereads_input", "fates", "take_gone", "shown", "check_input"),
        ("prepared_frame", "split_parameters"),
        ("skips_columns", "read_only"),
    )

    # --- what every reader has ---

    @abstractmethod
    def restore(self, position: Mapping[str, Any], journal: ArrowTable | None) -> None:
        """Continues after `position`. `journal` holds all rows that `take_journal` ever returned
        and `whole_journal` still kept; for each key the newest first."""

    @abstractmethod
    def poll(self) -> Any:
        """Looks for new input, and returns it for `accept`.

        The next call comes after that `accept`. A call may wait about a second for new input;
        `close` and `acknowledge` wait until it returns.

        Raises:
            SourceUnavailableError: temporarily unavailable (its reaction is RETRY): the call is
                repeated with growing pauses. The job continues with its other sources.
            SourceError: input that was already read has changed or is gone; the job fails.
        """

    @abstractmethod
    def accept(self, found: Any) -> None:
        """Takes the result of a `poll`, which may have begun before the last `plan`."""

    @abstractmethod
    def waiting(self) -> Lag:
        """Returns the accepted input that `plan` has not taken yet."""

    @abstractmethod
    def plan(self, max_rows: int) -> Any | None:
        """Returns the next split of about `max_rows` rows, and advances the position past it.

        Returns:
            The split; None if no input is waiting.
        """

    @abstractmethod
    def frame(self, spark: SparkSession, split: Any) -> SourceFrame:
        """Returns the DataFrames of a split, without running a Spark job."""

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """Returns the end of the last planned split, as small JSON."""

    # --- what a reader may check and report ---

    counts_gaps: ClassVar[bool] = False
    """Whether items of `waiting` may have no row, as offsets of a log from which rows were removed.
    Epochs are then sized by items; otherwise by the rows that were read, of which items may be an
    estimate."""

    def verify(self, split: Any, rows: int) -> None:
        """Checks a split after the epoch's tasks have read it.

        Raises:
            SourceError: it changed while it was read.
        """

    def locate_bad_row(self, spark: SparkSession, split: Any) -> str | None:
        """Returns position and content of a row that could not be parsed, if it can be found."""
        return None

    def locate_row(
        self, spark: SparkSession, split: Any, is_meant: Callable[[DataFrame], Column]
    ) -> str | None:
        """Reads the split again, so that an error can name a row; returns position and content of
        the first match, or None.

        Args:
            is_meant: returns the condition for a frame with the source's columns.
        """
        return None

    def take_lost(self) -> int:
        """Returns how many items the outside system dropped unread since the last call.

        Called once per epoch, after `verify`. The snapshot counts them, an event reports them, and
        the job continues.
        """
        return 0

    def close(self) -> None:
        """Closes connections. Always the last call, also if the execution fails."""

    # --- a journal, for positions of unbounded size ---

    def take_journal(self) -> ArrowTable | None:
        """Returns the rows to append to the source's state since the last call.

        The first column is a string, the row's key: a row replaces older rows with its key. A
        column `journal_parts.PART_COLUMN` spreads a large journal.

        Called once per epoch, on another thread while the epoch's tasks run, so it may take as long
        as they do. Only `poll` may run concurrently.
        """
        return None

    def whole_journal(self, parts: Collection[int], undecided: Collection[str]) -> ArrowTable:
        """Returns all rows of some parts of the source's state, to be rewritten.

        Called after `take_journal` if a snapshot ends the epoch. The source may drop rows here that
        it no longer needs, except those with a key in `undecided`, which are in no decided
        snapshot.
        """
        raise NotImplementedError

    # --- partitions that are read at different rates ---

    is_partitioned: ClassVar[bool] = False
    """Whether each partition has a watermark of its own. The source's watermark is their minimum,
    so that unread rows do not become late because other partitions are ahead. Its frames have the
    `SOURCE_PARTITION_COLUMN`."""

    def partitions(self) -> Mapping[str, int]:
        """Returns the partitions that hold the watermark back, as of the last `poll` and `plan`.

        The value is the number of items known to wait in the partition. With waiting items it is
        never idle; without, it is idle after the idle time-out. A partition that is missing here
        does not hold the watermark back, and keeps its own watermark for its return: it is gone, or
        its next rows are as new as those of the others. Names are part of snapshots.
        """
        return {}

    # --- acknowledgements, for queues that redeliver messages until they are acknowledged ---

    acknowledges: ClassVar[Acknowledges] = Acknowledges.NOTHING
    """Messages are acknowledged in phase 2 of the first snapshot that contains them, after the
    sinks have committed, and again after a crash. A message that is redelivered after it was read
    is dropped by its id. `connector_kit.ReadMessages` does both."""

    def unacknowledged(self) -> Mapping[str, Any]:
        """Returns, by id, the acknowledgement handle of each message that `plan` has handed out and
        `acknowledge` was not called for: JSON, part of the snapshot. Called with `position`."""
        return {}

    def restore_unacknowledged(self, messages: Mapping[str, Any]) -> None:
        """Takes the snapshot's messages, after `restore`. `acknowledge` follows before any row; it
        does not if it was called for this snapshot and returned False, or for an exported one."""

    def acknowledge(self, messages: Mapping[str, Any]) -> bool | None:
        """Acknowledges messages, on the thread of `poll`, while an epoch runs.

        Idempotent. A message of a lost connection, which can no longer be acknowledged, is
        acknowledged when it is redelivered.

        Returns:
            False if messages may come again, because the outside system has not confirmed that it
            forgets them. A start from this snapshot then calls `restore_unacknowledged`.

        Raises:
            SourceUnavailableError: temporarily unavailable; the call is repeated.
        """

    # --- a backlog that takes several polls, such as a queue with limited batches ---

    def mark_backlog(self) -> None:
        """Defines the backlog as all input present when the next poll begins. Called at most once
        per execution, if the input is to end (a drained run, a job that completes)."""

    def backlog(self) -> Backlog:
        """Returns the backlog's state as of the last `accept`: the source is polled until it is
        READ. It must end although others keep adding input: input newer than `mark_backlog` does
        not count. Default: one poll finds all input."""
        return Backlog.READ

    # --- a journal whose input others can remove ---

    rereads_input: ClassVar[bool] = False
    """Whether the engine records input that is read before a snapshot contains it, and asks for
    its state at the next start."""

    def fates(self, journaled: Sequence[Mapping[str, Any]]) -> list[InputFate]:
        """Returns the state of each row that `take_journal` returned, also in other executions.
        Called after `restore`."""
        raise NotImplementedError

    def take_gone(self) -> Sequence[Mapping[str, Any]]:
        """Returns journal rows of input that the position covers in part and whose rest is gone.
        The reader no longer waits for it: the loss is accepted, or the execution ends."""
        return ()

    def shown(self, journaled: Mapping[str, Any]) -> str:
        """Describes a journal row for people: the input and its size."""
        raise NotImplementedError

    def check_input(self, split: Any) -> None:
        """Called after an epoch failed: raises `SourceError` if the split is no longer as planned.
        That error then replaces the tasks' error."""

    # --- frames of small splits, made once and run in every epoch ---

    def prepared_frame(
        self, spark: SparkSession, split: Callable[[], Any], partitions: int
    ) -> SourceFrame | None:
        """Returns a frame of one Spark partition, whose task gets the split when it runs; None if
        each split needs its own frame. `SourceFrame.shared` in it is not materialised: each branch
        reads it.

        Args:
            split: to be called in the task; returns `SplitParameters.what`.
            partitions: upper bound of the length of `SplitParameters.partitions`.
        """
        return None

    def split_parameters(self, split: Any) -> SplitParameters | None:
        """Returns the task's description of a split; None if this split needs its own frame."""
        return None

    # --- columns that the pipeline does not use ---

    skips_columns: ClassVar[bool] = False
    """Whether the reader skips unused columns and struct fields."""

    def read_only(self, columns: StructType) -> None:
        """Sets the used columns and fields; the file of a row is not used either.

        Called at most once, before any `frame`. The frames keep all columns and fields; those that
        are not in `columns` may be null.
        """

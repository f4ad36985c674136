"""Sinks: the definition that users pass to `write_to`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dagster_jet.contract.definition import Definition
from dagster_jet.core.arrow_types import ArrowBatch, ArrowSchema
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.core.hold_back import HoldBack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_jet.contract.commit import Committer
    from dagster_jet.contract.refused import Refused
    from dagster_jet.contract.sink_writer import SinkWriter, TransactionId


@dataclass(frozen=True)
class Held:
    """Transactions that a sink's writers hold in the outside system until the snapshot is
    decided."""

    writers: int
    """Fixed number of writers per epoch: `Sink.render` divides the rows among as many Spark
    partitions, and `Sink.takes` returns False."""
    for_ms: int | None = None
    """Time after which the outside system rolls them back; None: never. A start checks that it
    covers the time between two snapshots and a restart."""


class Sink(Definition):
    """A sink's definition."""

    _TOGETHER: ClassVar[tuple[tuple[str, ...], ...]] = (("destination", "reopen"),)

    max_guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    """The strongest guarantee that it gives. A weaker one than the job's is reported at every
    start."""

    commits_sparingly: bool = False
    """Whether each commit costs its outside system something lasting, such as a version of a table.
    Without a `snapshot_interval` it is then asked for about one commit a second."""

    # --- what every sink has ---

    @abstractmethod
    def takes(self, schema: ArrowSchema) -> bool:
        """Returns whether a writer can render these columns from Arrow, as `render` would. Several
        such sinks of the same rows are written by one task, in one pass and without `render`."""

    @abstractmethod
    def render(self, frame: DataFrame) -> DataFrame:
        """Converts the rows to the form of `SinkWriter.write`, in the JVM."""

    @abstractmethod
    def open_writer(self, transaction: TransactionId) -> SinkWriter:
        """Returns the writer of a task. Called in the task."""

    @abstractmethod
    def open_committer(self, job: str, stage: str) -> Committer:
        """Returns the committer of an execution. Called on the driver, at most once, if there is
        something to commit or to remove. It connects to nothing, so that `Committer.commit` is
        retried."""

    # --- checks of a start ---

    def check(self, job: str, stage: str, *, is_new_job: bool) -> None:
        """Checks at every start that the sink can be written to. It writes no marks of its own,
        unless the job is new (`claim_place`).

        Raises:
            ConfigurationError: it cannot work as configured.
            SinkError: it cannot be checked now; the job restarts.
        """

    def claim_place(self, job: str, stage: str) -> None:
        """Writes missing marks into the place, before any writer and any commit of an execution.

        `check` writes them for a new job only: a place that came back empty, such as an unmounted
        folder, stays unchanged until it is known to hold the committed output.

        Raises:
            ConfigurationError, SinkError: as `check`.
        """

    def formerly(self, name: str) -> Sink:
        """Returns the sink for a start that renames it by word (`renamed`). Its place may have the
        marks of a sink of this former name: `check` admits them, `claim_place` replaces them.

        What is staged under the former name is committed under it, by a sink that is reopened.
        """
        return self

    def check_columns(self, rows: DataFrame, job: str, stage: str) -> None:
        """Called at every start, with an empty frame of the rows that the sink gets.

        Raises:
            PipelineError: a column cannot be written.
        """

    # --- rows that the outside system never accepts ---

    def refused(self, rows: ArrowBatch) -> Mapping[int, Refused]:
        """Returns, by row number, the rows that the outside system never accepts.

        Decided rows must be written, so they are checked before the decision: in the task, with
        rows as `SinkWriter.write` takes them, without asking the outside system. A refused row goes
        to the sink's dead-letter sink in the same epoch. Without one it fails the job, and the
        epoch is discarded.
        """
        return {}

    def can_leave_out(self) -> bool:
        """Returns whether a refused row can be left out, and go to a dead-letter sink. False if
        rows depend on each other, such as changes: a refused row then always fails the job."""
        return True

    def with_dead_letters(self) -> Sink:
        """Returns this sink for a place in a pipeline where it has a dead-letter sink. If `render`
        keeps one row of several, it then keeps every refused row, and beside them what it keeps of
        the others."""
        return self

    # --- rows that wait for more of them ---

    def hold_back(self) -> HoldBack | None:
        """Returns the bounds within which snapshots hold its staged rows back; None: each snapshot
        commits them. The place then judges an artifact by the timeline in which it was staged: a
        start that goes back commits what the older snapshot has held back, unless it is there."""
        return None

    # --- commits that are completed without the pipeline ---

    def destination(self) -> dict[str, Any] | None:
        """Returns where it writes, as small JSON: whole paths and addresses, no secrets.

        Between a decision and its commits a job may die, and start again without this sink or with
        another destination. `reopen` then makes a sink from the manifest, possibly years later and
        by a newer version; only its committer is used. `connector_kit.add_sink_kind` says which
        class that is. A start without a sink that cannot be reopened (None) is refused while
        commits of that sink are due.

        Destinations are the same place if they are equal apart from `options`, which only say how
        the place is reached.
        """
        return None

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> Sink:
        """Returns a sink for the destination, to commit only.

        Raises:
            KeyError, ValueError, JetError: the destination is incomplete or not valid.
        """
        raise NotImplementedError

    # --- held transactions ---

    def held(self) -> Held | None:
        """Returns the transactions that its writers prepare in the outside system
        (`connector_kit.HeldTransactions`); None if they hold none. With them, every epoch of the
        job ends in a snapshot."""
        return None

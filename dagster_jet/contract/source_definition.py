"""Sources: the definition that users pass to `read_from`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from dagster_jet.contract.definition import Definition
from dagster_jet.core.guarantee import Guarantee

if TYPE_CHECKING:
    from dagster_jet.contract.sink_definition import Sink
    from dagster_jet.contract.source_reader import SourceReader


@dataclass(frozen=True)
class BadRowRule:
    """Defines bad rows: they become dead letters instead of failing the job."""

    required: tuple[str, ...]
    """Columns that must not be null: the event time."""


class Source(Definition):
    """A source's definition."""

    max_guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    """The strongest guarantee that it gives. A weaker one than the job's is reported at every
    start."""
    runs_users_plans: ClassVar[bool] = False
    """Whether a user's function makes its frames: an error in their tasks is then the user's."""
    can_peek: ClassVar[bool] = True
    """Whether nothing outside changes if a reader is opened, restored, polled once and closed, only
    to see whether input waits. False for a queue that counts deliveries."""

    @abstractmethod
    def row_schema(self) -> str | None:
        """Returns the columns of its rows, as DDL. An execution calls it after `at_start`. Before,
        it may return None or raise `PipelineError` if only the outside system knows them."""

    @abstractmethod
    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> SourceReader:
        """Returns the reader of one execution.

        Args:
            job: the name of the job.
            stage: the name of the source in the pipeline.
            bad_rows: which rows become dead letters; None: a bad row fails the job.

        Raises:
            SourceError: the place does not exist; names the cure.
        """

    def reads_output_of(self, sink: Sink) -> bool:
        """Returns whether it would read what `sink` writes. A job with both would not end; its
        start is refused."""
        return False

    def check_snapshot_interval(self, interval: timedelta, job: str, stage: str) -> None:
        """Called at every start, for outside systems that limit the time between snapshots.

        Raises:
            ConfigurationError: the interval exceeds the outside system's limit.
        """

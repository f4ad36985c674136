"""Phase 1 of a sink: writers in tasks."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_jet.contract.part import ConnectorPart
from dagster_jet.core.arrow_types import ArrowBatch

if TYPE_CHECKING:
    from dagster_jet.snapshot.manifest import Artifact


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


class SinkWriter(ConnectorPart):
    """Writes one task's rows of one epoch into the open transaction."""

    @abstractmethod
    def write(self, batch: ArrowBatch) -> None:
        """Takes rows, as `Sink.render` made them. Called any number of times.

        Behind stateless stages the rows of one source partition stay in order: by
        `TransactionId.shard` across writers, by order of `write` within a writer.
        """

    @abstractmethod
    def prepare(self) -> tuple[Artifact, ...]:
        """Returns the artifacts, durable and with checksums; none if there were no rows.

        A crash here leaves an orphan.
        """

    @abstractmethod
    def abort(self) -> None:
        """Removes the written data, best effort."""

    def close(self) -> None:
        """Closes connections; the last call, after `prepare` or `abort`."""

"""Log lines and events about output whose commit was not as usual."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dagster_jet.execution.events import JobEvent, OutputLost, OutputRefused, SinkReopened
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.snapshot.owed import Destination, OwedCommit, epochs_of, rows_of
from dagster_jet.snapshot.record import ExecutionRecord

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CommitReports:
    """Reports of one execution. Any thread."""

    job: str
    record: Callable[[], ExecutionRecord]
    emit: Callable[[JobEvent], None]

    def reopened(self, owed: OwedCommit) -> None:
        where = place_text(owed.destination)
        _logger.warning(
            "%s: %d rows of epochs %s, decided before the sink %s %s, are committed to %s",
            self.job,
            owed.rows,
            span(owed.epoch_ids),
            owed.sink,
            owed.change.value,
            where,
        )
        execution_id = self.record().execution_id
        self.emit(
            SinkReopened(
                self.job, execution_id, owed.sink, owed.change, where, owed.epoch_ids, owed.rows
            )
        )

    def lost(self, sink: str, artifacts: Sequence[Artifact], why: str) -> None:
        rows, epoch_ids = rows_of(artifacts), epochs_of(artifacts)
        _logger.warning(
            "%s: %d rows of epochs %s are lost and never reach the sink %s, as accept_loss "
            "allows: %s",
            self.job,
            rows,
            span(epoch_ids),
            sink,
            why,
        )
        tokens = tuple(artifact.token for artifact in artifacts)
        execution_id = self.record().execution_id
        self.emit(OutputLost(self.job, execution_id, sink, epoch_ids, rows, tokens, why))

    def refused(self, event: OutputRefused) -> None:
        _logger.warning(
            "%s: %d rows of epoch %d that the sink %s refuses were written to %s: %s",
            self.job,
            event.rows,
            event.epoch_id,
            event.sink,
            event.dead_letter_sink,
            event.reason,
        )
        self.emit(event)

    def artifact_lost(self, artifact: Artifact) -> None:
        why = "the staged rows are gone, and no marker shows that they were committed."
        self.lost(artifact.sink, (artifact,), why)


def place_text(destination: Destination) -> str:
    """Returns the destination in words."""
    return str(destination.get("path", destination["kind"]))


def span(epoch_ids: Sequence[int]) -> str:
    return f"{epoch_ids[0]} to {epoch_ids[-1]}" if len(epoch_ids) > 1 else f"{epoch_ids[0]}"

"""Definition of a queue as a source, and the checks of SQS before a start."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta

from dagster_jet.connectors.guarantees import shown_guarantee
from dagster_jet.connectors.queue_source import QueueSource, check_count
from dagster_jet.connectors.sqs.message_table import METADATA_DDL
from dagster_jet.connectors.sqs.queue import HIDDEN_MAX_S, SqsQueue
from dagster_jet.connectors.sqs.sqs_reader import (
    VISIBILITY_MIN_S,
    Reading,
    SqsReader,
    visibility_of,
)
from dagster_jet.contract import BadRowRule
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.errors import ConfigurationError, SourceUnavailableError

RECEIVERS_MAX = 8


@dataclass(frozen=True, kw_only=True)
class SqsSource(QueueSource):
    """Reads one queue as its only consumer; creates nothing."""

    metadata_ddl = METADATA_DDL
    prefetch_max = 100_000  # Below 120,000, SQS's limit of undeleted messages that a queue gives.

    queue: SqsQueue
    receivers: int
    visibility_s: int | None
    message_id: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        cure = "Four are enough for most queues."
        check_count("receivers", self.receivers, RECEIVERS_MAX, cure=cure)
        visibility_s = self.visibility_s
        if visibility_s is not None and not VISIBILITY_MIN_S <= visibility_s <= HIDDEN_MAX_S:
            raise ConfigurationError(
                f"visibility_timeout: {visibility_s} s is not from {VISIBILITY_MIN_S} s to 12 "
                "hours, SQS's limit."
            )

    def describe(self) -> dict[str, str]:
        return {
            "kind": "sqs",
            "queue": self.queue.shown,
            "format": self.format,
            **shown_guarantee(self.max_guarantee),
        }

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> SqsSource:
        """Checks the queue, so that a wrong queue, wrong credentials or a missing permission fail
        the start with a clear error. If SQS is unavailable, `poll` waits for it."""
        with suppress(SourceUnavailableError), closing(self.queue.open(job, stage)) as client:
            visibility_of(client, self.visibility_s, job, stage)
            client.check_rights()
        return self

    def check_snapshot_interval(self, interval: timedelta, job: str, stage: str) -> None:
        """Raises `ConfigurationError` if messages would come again before a snapshot has them."""
        if interval.total_seconds() >= HIDDEN_MAX_S:
            raise ConfigurationError(
                f"snapshot_interval is {interval}, and SQS hides a message that was received for "
                "12 hours at most, however often that is renewed: messages would come again before "
                "a snapshot has them.",
                job=job,
                stage=stage,
                cure="Take snapshots more often: an interval of minutes is already long.",
            )

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> SqsReader:
        reading = Reading(
            self.queue,
            self.values,
            self.metadata,
            self.prefetch,
            self.receivers,
            self.visibility_s,
            self.message_id,
            self.max_guarantee is Guarantee.EXACTLY_ONCE,
        )
        return SqsReader(reading, job, stage, bad_rows)

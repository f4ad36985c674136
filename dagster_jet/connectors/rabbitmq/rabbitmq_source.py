"""Definition of a queue as a source, and the checks of the server before a start."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from dagster_jet.connectors.guarantees import shown_guarantee
from dagster_jet.connectors.queue_source import QueueSource
from dagster_jet.connectors.rabbitmq.message_table import METADATA_DDL
from dagster_jet.connectors.rabbitmq.queue_facts import ask_queue
from dagster_jet.connectors.rabbitmq.rabbitmq_reader import RabbitReader, Reading
from dagster_jet.connectors.rabbitmq.server import RabbitServer, hang_up
from dagster_jet.contract import BadRowRule
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.core.secret import refuse_written_out, shown
from dagster_jet.errors import ConfigurationError, SourceUnavailableError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RabbitSource(QueueSource):
    """Reads one queue as its only consumer; declares nothing."""

    metadata_ddl = METADATA_DDL
    prefetch_max = 65_535  # AMQP's maximum: two bytes. 0 would mean no limit.

    server: RabbitServer
    queue: str

    def __post_init__(self) -> None:
        refuse_written_out(self.server.url, "url")
        if not self.queue:
            raise ConfigurationError("queue: a name is missing.")
        super().__post_init__()

    def describe(self) -> dict[str, str]:
        return {
            "kind": "rabbitmq",
            "server": shown(self.server.url),
            "queue": self.queue,
            "format": self.format,
            **shown_guarantee(self.max_guarantee),
        }

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> RabbitSource:
        """Checks the queue, so that a wrong name, wrong credentials, a missing right or a stream
        fail the start with a clear error. If the server is unavailable, `poll` waits for it beside
        the other sources."""
        with (
            suppress(SourceUnavailableError),
            self.server.as_source_errors(self.queue, job, stage),
        ):
            connection = self.server.connect()
            try:
                others = ask_queue(connection, self.queue).consumers
            finally:
                hang_up(connection)
            if others:
                _logger.warning(
                    "job %r, stage %r: the queue %r has %d other %s, and the broker divides "
"messages among all of them: only one job may read a queue",
                    job, stage, self.queue, others, "consumers" if others > 1 else "consumer",
                )  # fmt: skip
        return self

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> RabbitReader:
        needs_ids = self.max_guarantee is Guarantee.EXACTLY_ONCE
        reading = Reading(
            self.server, self.queue, self.values, self.metadata, self.prefetch, needs_ids
        )
        return RabbitReader(reading, job, stage, bad_rows)

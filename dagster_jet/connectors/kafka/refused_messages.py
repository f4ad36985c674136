"""An epoch without the messages that its topic refuses: what is decided, and what only the brokers
know, is found out by trying.

Messages are tried in halves, each in a transaction that is given up, until those that are refused
stand alone. Nobody who reads committed messages sees any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_jet.connectors.contract import Refused
from dagster_jet.connectors.kafka.cluster import client_library, error_of, said
from dagster_jet.connectors.kafka.topic_limits import TopicLimits
from dagster_jet.connectors.kafka.transactions import (
    Advance,
    FirstRefusal,
    patiently,
    refuses_message,
    send_rows,
)
from dagster_jet.errors import SinkError


@dataclass(frozen=True)
class LeftOut:
    """Of an epoch's batches, how many messages each has, and which of them are left out."""

    batches: tuple[tuple[int, tuple[int, ...]], ...]
    memo: str
    """Of `RefusedRows.stage`."""

    def rest(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The others."""
        known = iter(self.batches)
        for batch in batches:
            count, numbers = next(known, (-1, ()))
            if batch.num_rows != count:
                raise SinkError("what is staged has changed since it was tried")
            yield batch.filter(pa.array(~np.isin(np.arange(count), numbers)))


@dataclass
class Trying:
    """Tries messages with a producer that has no transaction open, and none afterwards."""

    client: Any
    topic: str
    limits: TopicLimits
    refusal: FirstRefusal
    """That the client reports to."""
    refused: list[Refused] = field(default_factory=list)
    batches: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def tries(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Raises the client's errors, but for those of messages."""
        for batch in batches:
            found = self.limits.refused(batch)
            numbers = np.setdiff1d(np.arange(batch.num_rows), list(found))
            self._try(batch, numbers, found)
            self.refused += [found[number] for number in sorted(found)]
            self.batches.append((batch.num_rows, tuple(sorted(found))))

    def _try(self, batch: pa.RecordBatch, numbers: Any, found: dict[int, Refused]) -> None:
        """`numbers`: of messages that are tried together; what is refused comes into `found`."""
        if not len(numbers):
            return
        error = self._refusal_of(batch.take(pa.array(numbers)))
        if error is None:
            return
        if len(numbers) > 1:
            half = len(numbers) // 2
            self._try(batch, numbers[:half], found)
            self._try(batch, numbers[half:], found)
            return
        [number] = numbers
        found[int(number)] = self.limits.as_refused(batch, int(number), said(error))

    def _refusal_of(self, messages: pa.RecordBatch) -> Any:
        """Why the topic does not take one of them; None: it takes all."""
        client, left = self.client, partial(len, self.client)
        client.begin_transaction()
        failed: Exception | None = None
        try:
            send_rows(client, self.topic, messages, left)
        except client_library().KafkaException as error:
            failed = error
        advance = Advance(left)
        while client.flush(0.2):
            if advance.has_stopped():
                raise TimeoutError("the cluster takes no messages")
        patiently(client.abort_transaction, left)
        client.poll(0)
        refused = self.refusal.take() or (failed and error_of(failed))
        if refused is None and failed is not None:
            raise failed
        if refused is not None and not refuses_message(refused):
            raise client_library().KafkaException(refused)
        return refused

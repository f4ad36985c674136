"""Finds the messages of an epoch that its topic refuses, by trying: only the brokers know.

Halves of the messages are tried recursively, each in a transaction that is aborted, until each
refused message is isolated. No reader of committed messages sees any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_jet.connectors.kafka.cluster import client_library, error_of, said
from dagster_jet.connectors.kafka.topic_limits import Limits
from dagster_jet.connectors.kafka.transactions import (
    Advance,
    FirstRefusal,
    patiently,
    refuses_message,
    send_rows,
)
from dagster_jet.contract import Refused
from dagster_jet.errors import SinkError


@dataclass(frozen=True)
class LeftOut:
    """Number of messages in each batch of an epoch, and the numbers of those left out."""

    batches: tuple[tuple[int, tuple[int, ...]], ...]
    memo: str
    """Memo of `RefusedRows.stage`."""

    def rest(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the batches without the messages left out."""
        known = iter(self.batches)
        for batch in batches:
            count, numbers = next(known, (-1, ()))
            if batch.num_rows != count:
                raise SinkError("what is staged has changed since it was tried")
            yield batch.filter(pa.array(~np.isin(np.arange(count), numbers)))


@dataclass
class Trying:
    """Tries messages, each time in a transaction that is aborted."""

    open: Callable[[], tuple[Any, FirstRefusal]]
    """Returns a new producer without a transaction, and the callback of its delivery reports."""
    topic: str
    limits: Limits
    producer: tuple[Any, FirstRefusal] | None = None
    """None after a refusal: librdkafka 2.16 numbers later messages as if the refused batch had been
    written, and the broker takes none of them."""
    refused: list[Refused] = field(default_factory=list)
    batches: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def tries(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Raises the client's errors, except refusals of messages."""
        for batch in batches:
            found = self.limits.refused(batch)
            numbers = np.setdiff1d(np.arange(batch.num_rows), list(found))
            self._try(batch, numbers, found)
            self.refused += [found[number] for number in sorted(found)]
            self.batches.append((batch.num_rows, tuple(sorted(found))))

    def _try(self, batch: pa.RecordBatch, numbers: Any, found: dict[int, Refused]) -> None:
        """Tries the messages `numbers` together, and adds refused ones to `found`."""
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
        """Error of a message that the topic refuses; None if it takes all."""
        client, refusal = self.producer = self.producer or self.open()
        left = partial(len, client)
        client.begin_transaction()
        failed: Exception | None = None
        try:
            send_rows(client, self.topic, messages, left)
        except client_library().KafkaException as error:
            failed = error
        advance = Advance(left)
        # After a refusal the client keeps the messages that it has not sent.
        while client.flush(0.2) and not refusal.is_known:
            if advance.has_stopped():
                raise TimeoutError("the cluster takes no messages")
        patiently(client.abort_transaction, left)
        client.poll(0)
        refused = refusal.take() or (failed and error_of(failed))
        if refused is None and failed is not None:
            raise failed
        if refused is not None and not refuses_message(refused):
            raise client_library().KafkaException(refused)
        if refused is not None:
            self.producer = None
        return refused

"""Why messages of a held transaction are not taken: the cause, in whatever order it is reported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from dagster_jet.connectors.kafka.cluster import Cluster
from dagster_jet.connectors.kafka.held_rows import HeldWriter
from dagster_jet.connectors.kafka.markers import Owner
from dagster_jet.contract import TransactionId
from dagster_jet.errors import Reaction, SinkError

PURGED, TOO_LARGE = KafkaError._PURGE_QUEUE, KafkaError.MSG_SIZE_TOO_LARGE
ROWS = pa.record_batch({"__key": [b"a", b"b"], "__value": [b"1", b"2"]})


class Reporting:
    """librdkafka's producer, which says of each message why it was not taken: one at each poll."""

    def __init__(self, *codes: int) -> None:
        self.reports = list(codes)
        self.writer: Any = None

    def produce(self, *_: Any) -> None:
        """Taken into its queue."""

    def poll(self, _: float) -> None:
        if self.reports:
            self.writer._delivered(KafkaError(self.reports.pop(0)), None)


@pytest.mark.parametrize(
    ("codes", "reaction"),
    [
        ((PURGED, TOO_LARGE), Reaction.FAIL),
        ((TOO_LARGE, PURGED), Reaction.FAIL),
        ((PURGED, PURGED), Reaction.RETRY),
    ],
    ids=["what was purged comes first", "the cause comes first", "nothing was refused"],
)
def test_a_refusal_is_named_and_not_what_was_purged_because_of_it(
    codes: tuple[int, ...], reaction: Reaction
) -> None:
    client = Reporting(*codes)
    writer = HeldWriter(
        Cluster("a:9092"), "t", "markers", Owner("store", "", "j", "out"),
        TransactionId("j", "out", 1, 1, 1, 0, "a0"),
        staged=SimpleNamespace(write=lambda batch: None),
        newest=SimpleNamespace(noted=lambda: 1),
        _client=client,
    )  # fmt: skip
    client.writer = writer
    with pytest.raises(SinkError) as told:
        writer.write(ROWS)
    assert told.value.reaction is reaction
    assert ("max.message.bytes" in str(told.value)) is (reaction is Reaction.FAIL)
    assert isinstance(told.value.__cause__, KafkaException)

"""Administrative calls of a cluster, repeated while its brokers do not agree on leaders."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    LastError,
    admin_library,
    answered,
    client_library,
    error_of,
    is_moving,
)

T = TypeVar("T")
MOVES_S = 10.0
"""Seconds for which a call is repeated."""
_CALL_S = 10.0
_PAUSE_S = 0.05


class Administration:
    """librdkafka's admin client; created at the first call, and again after every error.

    It keeps a partition's leader until its metadata is five minutes old: until then each call goes
    to a broker that leads no more (NOT_LEADER_FOR_PARTITION) or has restarted
    (FENCED_LEADER_EPOCH).
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._client: Any = None
        self.last_error = LastError()

    def call(
        self,
        call: Callable[[Any], T],
        *,
        repeats_s: float = MOVES_S,
        prepare: Callable[[Any], object] | None = None,
    ) -> T:
        """Calls with a client, again while the error is `is_moving`; raises the last error.

        Args:
            prepare: first call of each new client.
        """
        began = time.monotonic()
        while True:
            client, self._client = self._client, None
            is_new = client is None
            if is_new:
                settings = self._cluster.settings(error_cb=self.last_error)
                client = admin_library().AdminClient(settings)
            try:
                if is_new and prepare is not None:
                    prepare(client)
                answer = call(client)
            except client_library().KafkaException as error:
                client.poll(0)  # delivers background errors
                raised = error_of(error)
                if raised is None or not is_moving(raised):
                    raise
                if time.monotonic() - began >= repeats_s:
                    raise
                time.sleep(_PAUSE_S)
            else:
                self._client = client
                return answer

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Ends of partitions, including undecided messages. Raises `TimeoutError` without an
        answer."""
        library, administration = client_library(), admin_library()
        places = {number: library.TopicPartition(topic, number) for number in partitions}
        known = library.TopicCollection([topic])

        def connect(client: Any) -> None:
            """A client that is not connected yet looks for leaders once, and again after 3 s."""
            client.describe_topics(known, request_timeout=_CALL_S)[topic].result(_CALL_S)

        def call(client: Any) -> dict[int, int]:
            futures = client.list_offsets(
                dict.fromkeys(places.values(), administration.OffsetSpec.latest()),
                isolation_level=library.IsolationLevel.READ_UNCOMMITTED,
                request_timeout=_CALL_S,
            )
            return {
                number: answered(futures[place].result(_CALL_S).offset)
                for number, place in places.items()
            }

        return self.call(call, prepare=connect)

    def close(self) -> None:
        self._client = None

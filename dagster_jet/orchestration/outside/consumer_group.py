"""A Kafka consumer group: committed offsets against the ends of its partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from dagster_jet.connectors.kafka.admin_client import Administration
from dagster_jet.connectors.kafka.cluster import Cluster, client_library, error_of
from dagster_jet.orchestration.outside.kafka_lag import Offsets, kafka_lag, of_cluster
from dagster_jet.orchestration.outside.reading import Reading

_ANSWER_S = 5.0
_WAIT_S = 10.0
"""Above `_ANSWER_S`: the client's own error names the reason."""


@dataclass(frozen=True)
class ConsumerGroup:
    """A group by its id. Kafka does not show when a group committed."""

    cluster: Cluster
    group: str

    def read(self) -> Reading:
        """Reads the group's members and offsets, and the ends of its partitions.

        Raises:
            SourceUnavailableError: the cluster does not answer, or refuses.
        """
        state, members = of_cluster(self.cluster, self._described)
        offsets = of_cluster(self.cluster, self._committed)
        return group_reading(state, members, offsets, kafka_lag(self.cluster, offsets))

    def _described(self, administration: Administration) -> tuple[str, int]:
        def call(client: Any) -> Any:
            (future,) = client.describe_consumer_groups(
                [self.group], request_timeout=_ANSWER_S
            ).values()
            return future.result(_WAIT_S)

        library = client_library()
        try:
            found = administration.call(call)
        except library.KafkaException as raised:
            error = error_of(raised)
            if error is None or error.code() != library.KafkaError.GROUP_ID_NOT_FOUND:
                raise
            return "unknown", 0
        return str(found.state.name).lower(), len(found.members)

    def _committed(self, administration: Administration) -> Offsets:
        library = client_library()
        asked = library.ConsumerGroupTopicPartitions(self.group)

        def call(client: Any) -> Any:
            (future,) = client.list_consumer_group_offsets(
                [asked], request_timeout=_ANSWER_S
            ).values()
            return future.result(_WAIT_S)

        found = administration.call(call).topic_partitions
        return {(one.topic, one.partition): one.offset for one in found if one.offset >= 0}


def group_reading(state: str, members: int, offsets: Offsets, lag: int) -> Reading:
    """Returns the reading of a group.

    Args:
        state: the group's state, as Kafka names it.
        members: number of its members; consumers that assign partitions themselves are none.
        offsets: committed offsets.
        lag: number of messages behind them.
    """
    if not offsets:
        return Reading("", f"{state}, and has never committed", is_up=False)
    listed = "\n".join(f"{topic} {n} {end}" for (topic, n), end in sorted(offsets.items()))
    by_topic: dict[str, int] = {}
    for (topic, _), offset in offsets.items():
        by_topic[topic] = by_topic.get(topic, 0) + offset
    # The marker of a transaction takes an offset, which some clients do not commit.
    is_idle = lag == 0 or (members > 0 and lag <= len(offsets))
    return Reading(
        f"{sum(offsets.values())}-{xxhash.xxh32_hexdigest(listed.encode())}",
        f"{state} with {members} members",
        is_idle=is_idle,
        lag=lag,
        details=_details(members, by_topic, len(offsets)),
    )


def _details(members: int, by_topic: Mapping[str, int], partitions: int) -> dict[str, Any]:
    return {"members": members, "partitions": partitions, "offsets": dict(by_topic)}

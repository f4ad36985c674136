"""Unread rows of Kafka partitions, between known offsets and their ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dagster_jet.connectors.kafka.admin_client import Administration
from dagster_jet.connectors.kafka.cluster import Cluster, client_library, error_of, said
from dagster_jet.core.secret import shown
from dagster_jet.errors import SourceUnavailableError

Offsets = Mapping[tuple[str, int], int]
"""Offset of the next message to read, by topic and partition."""

T = TypeVar("T")


def kafka_lag(cluster: Cluster, offsets: Offsets) -> int:
    """Returns the number of messages from `offsets` to the ends of the partitions.

    Raises:
        SourceUnavailableError: the cluster does not answer, or refuses.
    """
    partitions: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in offsets:
        partitions[topic].append(number)

    def ends(administration: Administration) -> dict[tuple[str, int], int]:
        return {
            (topic, number): end
            for topic, numbers in partitions.items()
            for number, end in administration.ends(topic, numbers).items()
        }

    found = of_cluster(cluster, ends)
    return sum(max(0, found[place] - offset) for place, offset in offsets.items())


def of_cluster(cluster: Cluster, query: Callable[[Administration], T]) -> T:
    """Calls `query` with an admin client.

    Raises:
        SourceUnavailableError: the cluster does not answer, or refuses.
    """
    administration: Any = Administration(cluster)
    try:
        return query(administration)
    except client_library().KafkaException as raised:
        error = error_of(raised)
        why = said(administration.last_error.explain(error)) if error is not None else str(raised)
    except TimeoutError:
        last = administration.last_error.last
        why = said(last) if last is not None else "no answer"
    finally:
        administration.close()
    raise SourceUnavailableError(f"the Kafka cluster at {shown(cluster.servers)}: {why}.") from None

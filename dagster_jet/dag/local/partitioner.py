"""The partition of a processor's key: the store's rule, which is Spark's."""

from __future__ import annotations

from dagster_jet.core.partition import DEFAULT_PARTITION_COUNT, partition_of_key
from dagster_jet.dag.partitioning import Partitioning


def partitioning(partition_count: int = DEFAULT_PARTITION_COUNT) -> Partitioning:
    return Partitioning(partition_of_key, partition_count)

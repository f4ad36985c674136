"""The partition of a processor's key: the store's rule, which is Spark's."""

from __future__ import annotations

from typing import cast

from dagster_jet.core.partitioning import Partitioning
from dagster_jet.store.partition import DEFAULT_PARTITION_COUNT, KeyValue, partition_id


def partition_of_key(key: object, partition_count: int) -> int:
    """A tuple is a key of several columns.

    Raises:
        TypeError: a type without a hash that Spark shares.
    """
    columns = key if isinstance(key, tuple) else (key,)
    return partition_id(*cast("tuple[KeyValue, ...]", columns), partition_count=partition_count)


def partitioning(partition_count: int = DEFAULT_PARTITION_COUNT) -> Partitioning:
    return Partitioning(partition_of_key, partition_count)

"""Carries the partition of a row from its source to the node that observes its event time.

Users' transforms in between must neither see nor lose the column. The analysis checks on empty
frames whether a transform passes it on; if not, the source counts as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from dagster_jet.contract import SOURCE_PARTITION_COLUMN, SourceReader
from dagster_jet.errors import UserFunctionError
from dagster_jet.pipeline.graph import Graph, TimestampsNode, TransformNode
from dagster_jet.spark.plans.passed_columns import is_same_result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def partition_paths(
    graph: Graph, readers: Mapping[str, SourceReader]
) -> dict[str, tuple[str, ...]]:
    """Per timestamps node of a partitioned source: the nodes from the source up to it."""
    paths = {}
    for node in graph:
        if isinstance(node, TimestampsNode) and not node.timestamps.of_ingestion:
            path = tuple(n.name for n in graph.way_from_source(node.name))
            reader = readers.get(path[0]) if path else None
            if reader is not None and reader.is_partitioned:
                paths[node.name] = path
    return paths


@dataclass(frozen=True)
class WithPartition:
    """A transform's result with the partition's column."""

    frame: DataFrame
    asked: tuple[str, ...] = ()
    """Columns that a projection must be told to keep."""


def kept_by(
    node: TransformNode,
    call: Callable[..., DataFrame],
    whole: DataFrame,
    without: DataFrame,
) -> WithPartition | None:
    """The transform's result with the partition's column, if nothing else changes.

    Args:
        call: calls the node's function: (frame, columns to keep).
        whole: its input with the column.
        without: its result for the input without the column.
    """
    try:
        kept = WithPartition(call(whole))
        if node.is_projection and SOURCE_PARTITION_COLUMN not in kept.frame.columns:
            kept = WithPartition(call(whole, SOURCE_PARTITION_COLUMN), (SOURCE_PARTITION_COLUMN,))
        if SOURCE_PARTITION_COLUMN not in kept.frame.columns:
            return None
        # A hash over all columns, for example, would include ours.
        is_same = is_same_result(kept.frame.drop(SOURCE_PARTITION_COLUMN), without)
    except (PySparkException, UserFunctionError):
        return None
    return kept if is_same else None

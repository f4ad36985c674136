"""The partition of a row, from its source to where its event time is observed.

Users' transforms in between must neither see the column nor lose it. Whether one passes it on is
found out on empty frames, before data flows; where one does not, the source counts as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from dagster_jet.engine.connector import PARTITION_COLUMN, Partitioned, SourceReader
from dagster_jet.errors import UserFunctionError
from dagster_jet.pipeline.graph import Graph, TimestampsNode, TransformNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def ways_of_partitions(
    graph: Graph, readers: Mapping[str, SourceReader]
) -> dict[str, tuple[str, ...]]:
    """Per timestamps node of a source with partitions: the nodes from there up to it."""
    ways = {}
    for node in graph:
        if isinstance(node, TimestampsNode) and not node.timestamps.of_ingestion:
            way = tuple(n.name for n in graph.way_from_source(node.name))
            if way and isinstance(readers.get(way[0]), Partitioned):
                ways[node.name] = way
    return ways


@dataclass(frozen=True)
class Carried:
    """A transform's result with the partition's column."""

    frame: DataFrame
    told: tuple[str, ...] = ()
    """What a projection has to be told to keep."""


def carried_through(
    node: TransformNode,
    call: Callable[..., DataFrame],
    whole: DataFrame,
    without: DataFrame,
) -> Carried | None:
    """The transform's result with the partition's column, if that changes nothing else.

    Args:
        call: calls the node's function: (node, frame, columns to keep).
        whole: its input with the column.
        without: its result for the input without the column.
    """
    try:
        carried = Carried(call(node, whole))
        if node.is_projection and PARTITION_COLUMN not in carried.frame.columns:
            carried = Carried(call(node, whole, PARTITION_COLUMN), (PARTITION_COLUMN,))
        if PARTITION_COLUMN not in carried.frame.columns:
            return None
        plans = [
            frame._jdf.queryExecution().optimizedPlan()
            for frame in (carried.frame.drop(PARTITION_COLUMN), without)
        ]
    except (PySparkException, UserFunctionError):
        return None
    # A hash over all columns, say, would take in ours.
    return carried if plans[0].sameResult(plans[1]) else None

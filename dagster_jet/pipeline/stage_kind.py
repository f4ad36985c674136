"""The kinds of stages that a pipeline is made of."""

from __future__ import annotations

from enum import Enum


class StageKind(str, Enum):
    """What a node of the graph is. The values are in plans and fingerprints: they stay."""

    SOURCE = "source"
    TIMESTAMPS = "timestamps"
    TRANSFORM = "transform"
    MERGE = "merge"
    ENRICH = "enrich"
    SINK = "sink"
    AGGREGATE = "aggregate"
    ROLLING_AGGREGATE = "rolling_aggregate"
    DEDUPLICATE = "deduplicate"
    JOIN = "join"
    MAP_STATEFUL = "map_stateful"
    MAP_STATEFUL_IN_BATCHES = "map_stateful_in_batches"
    PROCESSOR = "processor"

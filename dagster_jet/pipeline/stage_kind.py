"""Kinds of pipeline stages."""

from __future__ import annotations

from enum import Enum


class StageKind(str, Enum):
    """Kind of a graph node. The values are stored in plans and fingerprints and must not change."""

    SOURCE = "source"
    TIMESTAMPS = "timestamps"
    TRANSFORM = "transform"
    MERGE = "merge"
    ENRICH = "enrich"
    SINK = "sink"
    AGGREGATE = "aggregate"
    ROLLING_AGGREGATE = "rolling_aggregate"
    COUNT_WINDOW = "count_window"
    DEDUPLICATE = "deduplicate"
    JOIN = "join"
    JOIN_AS_OF = "join_as_of"
    MAP_STATEFUL = "map_stateful"
    MAP_STATEFUL_IN_BATCHES = "map_stateful_in_batches"
    PROCESSOR = "processor"

"""What one epoch is given and what it returns: between the execution and Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dagster_jet.snapshot.manifest import Ack, Arrived
from dagster_jet.spark.tasks.barrier import Barrier
from dagster_jet.spark.tasks.stage_input import StageInput


@dataclass(frozen=True)
class EpochInput:
    """One epoch as planned: a barrier, and a split for every source that has something."""

    barrier: Barrier
    splits: Mapping[str, Any]
    stages: Mapping[str, StageInput]
    ingestion_ms: Mapping[str, int]
    """Per timestamps node whose event time is that of reading: the one of this epoch's rows."""
    few_groups: bool
    """There is one shard, or so few groups in recent epochs that one task merges them faster than
    several; only where every task can read every run."""
    few_rows: bool = False
    """So few that one task reads them faster than several, and than a shuffle between tasks."""


@dataclass(frozen=True)
class Observed:
    """What was seen at a timestamps node, before any filter."""

    arrived: Arrived
    partition_tops_ms: Mapping[str, int] = field(default_factory=dict)
    """Newest event time per source partition that was observed and had rows."""


@dataclass(frozen=True)
class EpochOutput:
    """What an epoch's tasks acked, and what was counted beside them."""

    acks: tuple[Ack, ...] = ()
    observed: Mapping[str, Observed] = field(default_factory=dict)
    """Per timestamps node that had rows to look at."""
    source_rows: Mapping[str, int] = field(default_factory=dict)
    """Per source with rows whose event time nobody observes."""
    late_rows: Mapping[str, int] = field(default_factory=dict)
    """Per stateful stage: rows taken out before its operator, which could not have counted them."""

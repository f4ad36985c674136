"""Input and output of one epoch: the interface between the execution and Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dagster_jet.core.measures import Measures
from dagster_jet.snapshot.manifest import Ack, Arrived
from dagster_jet.spark.tasks.barrier import Barrier
from dagster_jet.spark.tasks.stage_input import StageInput


@dataclass(frozen=True)
class EpochInput:
    """One epoch as planned: a barrier, and a split for every source with input."""

    barrier: Barrier
    splits: Mapping[str, Any]
    stages: Mapping[str, StageInput]
    ingestion_ms: Mapping[str, int]
    """Ingestion time of this epoch's rows, per timestamps node that uses it."""
    latest_ms: Mapping[str, int]
    """Newest event time that moves the watermark, per timestamps node with a `max_ahead`."""
    clock_ms: int
    """The clock of the epoch, by which both are defined."""
    few_groups: bool
    """There is one shard, or recent epochs had so few groups that one task merges them faster than
    several. Only if every task can read every run."""
    few_rows: bool = False
    """One task reads the rows faster than several tasks, and than a shuffle between tasks."""


@dataclass(frozen=True)
class Observed:
    """Statistics of a timestamps node, before any filter."""

    arrived: Arrived
    partition_tops_ms: Mapping[str, int] = field(default_factory=dict)
    """Newest event time per observed source partition that had rows."""
    ahead: int = 0
    """Number of rows later than `EpochInput.latest_ms`. Newest event times leave them out."""
    farthest_ms: int | None = None
    """Newest event time of any row, if that is known."""


@dataclass(frozen=True)
class EpochOutput:
    """Acks of an epoch's tasks, and the counts that are not in acks."""

    acks: tuple[Ack, ...] = ()
    observed: Mapping[str, Observed] = field(default_factory=dict)
    """Per timestamps node that had rows."""
    source_rows: Mapping[str, int] = field(default_factory=dict)
    """Per source with rows whose event time is not observed."""
    late_rows: Mapping[str, int] = field(default_factory=dict)
    """Per stateful stage: late rows removed before its operator, which could not count them."""
    counted: Mapping[str, Measures] = field(default_factory=dict)
    """Counters per stateless stage, whose tasks send no ack."""

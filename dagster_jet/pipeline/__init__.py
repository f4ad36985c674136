"""Pipeline definitions: frozen data written by users. Nothing here imports Spark."""

from dagster_jet.pipeline import aggregates, windows
from dagster_jet.pipeline.graph import Graph
from dagster_jet.pipeline.pipeline import Pipeline
from dagster_jet.pipeline.stage import (
    DeadLetterStage,
    JoinedStage,
    KeyedStage,
    LateDeadLetterStage,
    LateStage,
    SourceStage,
    Stage,
    WindowedStage,
)
from dagster_jet.pipeline.written import Written

__all__ = [
    "DeadLetterStage", "Graph", "JoinedStage", "KeyedStage", "LateDeadLetterStage", "LateStage",
    "Pipeline", "SourceStage", "Stage", "WindowedStage", "Written", "aggregates", "windows",
]  # fmt: skip

"""Pipeline definitions: frozen data written by users. Nothing here imports Spark."""

from dagster_jet.pipeline import aggregates, windows
from dagster_jet.pipeline.graph import Graph
from dagster_jet.pipeline.pipeline import KeyedStage, Pipeline, Stage, WindowedStage
from dagster_jet.pipeline.written import Written

__all__ = [
    "Graph", "KeyedStage", "Pipeline", "Stage", "WindowedStage", "Written", "aggregates", "windows",
]  # fmt: skip

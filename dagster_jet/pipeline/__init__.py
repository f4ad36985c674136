"""What users write: frozen definitions. Nothing here imports Spark."""

from dagster_jet.pipeline import aggregates, windows
from dagster_jet.pipeline.graph import Graph
from dagster_jet.pipeline.pipeline import Pipeline, Stage

__all__ = ["Graph", "Pipeline", "Stage", "aggregates", "windows"]

"""Sinks to try out a pipeline: rows in this process's memory or at the terminal."""

from dagster_jet.connectors.trial.collect import CollectSink, collected, forget
from dagster_jet.connectors.trial.console import ConsoleSink

__all__ = ["CollectSink", "ConsoleSink", "collected", "forget"]

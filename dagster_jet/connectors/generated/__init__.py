"""Streams that are made, not read: deterministic, replayable, at a rate."""

from dagster_jet.connectors.generated.items import ItemsSource
from dagster_jet.connectors.generated.nexmark import NexmarkSource
from dagster_jet.connectors.generated.sequence import SequenceSource

__all__ = ["ItemsSource", "NexmarkSource", "SequenceSource"]

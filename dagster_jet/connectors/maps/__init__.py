"""Maps of the job's own store: their journal and entries as sources, a map as a sink."""

from dagster_jet.connectors.maps.entries import MapEntriesSource
from dagster_jet.connectors.maps.journal import MapJournalSource
from dagster_jet.connectors.maps.sink import MapSink

__all__ = ["MapEntriesSource", "MapJournalSource", "MapSink"]

"""Maps of the job's own store as sources (journal, entries), table and sink."""

from dagster_jet.connectors.maps.entries import MapEntriesSource
from dagster_jet.connectors.maps.journal import MapJournalSource
from dagster_jet.connectors.maps.map_sink import MapSink
from dagster_jet.connectors.maps.map_table import MapTable

__all__ = ["MapEntriesSource", "MapJournalSource", "MapSink", "MapTable"]

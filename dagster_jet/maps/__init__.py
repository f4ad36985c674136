"""Maps for users: typed keys and values, totally ordered batches, an event journal."""

from dagster_jet.maps.changes import DELETE, PUT, Record
from dagster_jet.maps.event_journal import Journal
from dagster_jet.maps.key_encoding import Key
from dagster_jet.maps.settings import JournalConfig, MapSettings
from dagster_jet.maps.user_map import JetMap

__all__ = [
    "DELETE",
    "PUT",
    "JetMap",
    "Journal",
    "JournalConfig",
    "Key",
    "MapSettings",
    "Record",
]

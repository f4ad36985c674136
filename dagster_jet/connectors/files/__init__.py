"""Files as a replayable source, a table and a transactional sink."""

from dagster_jet.connectors.files.sink import FilesSink
from dagster_jet.connectors.files.source import FilesSource
from dagster_jet.connectors.files.table import FilesTable

__all__ = ["FilesSink", "FilesSource", "FilesTable"]

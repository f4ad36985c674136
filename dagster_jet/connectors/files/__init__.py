"""Files: replayable source, transactional sink."""

from dagster_jet.connectors.files.sink import FilesSink
from dagster_jet.connectors.files.source import FilesSource
from dagster_jet.connectors.files.table import FilesTable

__all__ = ["FilesSink", "FilesSource", "FilesTable"]

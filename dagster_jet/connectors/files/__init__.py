"""Files as a replayable source, a table and a transactional sink."""

from dagster_jet.connectors.files.files_sink import FilesSink
from dagster_jet.connectors.files.files_source import FilesSource
from dagster_jet.connectors.files.files_table import FilesTable

__all__ = ["FilesSink", "FilesSource", "FilesTable"]

"""The driver's side of a Delta Lake table that is read by version."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dagster_jet.connectors.delta.log_folder import options_of
from dagster_jet.connectors.delta.table_changes import TableChanges, contents_of
from dagster_jet.connectors.delta.table_log import TableLog, reading_errors_named
from dagster_jet.connectors.lake.added_rows import AddedFile
from dagster_jet.connectors.lake.data_folder import data_folder
from dagster_jet.connectors.lake.table_reader import Found, TableReader


@dataclass
class DeltaReader(TableReader):
    """Reader of one execution."""

    _log: TableLog | None = None
    """As of the last poll."""

    @property
    def _changes(self) -> TableChanges:
        source = self.source
        return TableChanges(
            source.url, source.storage_options, source.skips_deletes, self.job, self.stage
        )

    def poll(self) -> Found:
        with reading_errors_named(self.source.url, self.job, self.stage):
            if self._log is None or not self._log.look():
                self._log = self._opened()
            log = self._log
            self.check_table(log.id)
            contents, first = self._contents, self._next_version
            if self._from is None:
                contents, first = self._beginning(log)
            files: list[AddedFile] = []
            for version in range(first, log.version + 1):
                if version == contents:
                    files += contents_of(self._opened(version))
                else:
                    files += self._changes.of_version(version)
            return Found(log.id, first, max(first, log.version + 1), files, contents)

    def _opened(self, version: int | None = None) -> TableLog:
        options = options_of(data_folder(self.source.url, self.source.storage_options))
        return self.existing(TableLog.open(self.source.url, options, version))

    def _beginning(self, log: TableLog) -> tuple[int, int]:
        """Returns the version whose contents a new job reads, or -1, and the first version."""
        start = self.source.start
        if isinstance(start, datetime):
            ms = start.timestamp() * 1000
            later = [one["version"] for one in log.table.history() if one["timestamp"] >= ms]
            return -1, min(later, default=log.version + 1)
        if start == "latest":
            return -1, log.version + 1
        if start == "earliest":
            return log.version, log.version
        return -1, int(start)

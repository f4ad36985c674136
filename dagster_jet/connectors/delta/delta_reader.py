"""The driver's side of a Delta Lake table that is read by version."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dagster_jet.connectors.delta.change_feed import ChangeFeed, has_feed, no_feed
from dagster_jet.connectors.delta.fitness import unreadable
from dagster_jet.connectors.delta.log_folder import options_of
from dagster_jet.connectors.delta.table_changes import TableChanges, digest_of
from dagster_jet.connectors.delta.table_log import TableLog, reading_errors_named
from dagster_jet.connectors.lake.added_rows import AddedFile
from dagster_jet.connectors.lake.data_folder import data_folder
from dagster_jet.connectors.lake.table_reader import Found, Head, TableReader
from dagster_jet.errors import SourceError


@dataclass
class DeltaReader(TableReader):
    """Reader of one execution."""

    reads_changes: bool = False
    _log: TableLog | None = None
    """As of the last poll."""
    _checked: int | None = None
    """Newest version at the last checks."""

    @property
    def _changes(self) -> TableChanges:
        source, kind = self.source, ChangeFeed if self.reads_changes else TableChanges
        return kind(source.url, source.storage_options, source.skips_deletes, self.job, self.stage)

    def poll(self) -> Found:
        with reading_errors_named(self.source.url, self.job, self.stage):
            if self._log is None or not self._log.look():
                self._log = self._opened()
            log = self._log
            self.check_table(log.id)
            if log.version != self._checked:
                self._check_readable(log)
                self._check_continues(log)
                self._checked = log.version
            contents, first = self._contents, self._next_version
            if self._from is None:
                contents, first = self._beginning(log)
                if self.reads_changes and first <= log.version:
                    self._check_feed(self._opened(first))
            files: list[AddedFile] = []
            changes = self._changes
            for version in range(first, log.version + 1):
                if version == contents:
                    files += changes.of_contents(self._opened(version))
                else:
                    files += changes.of_version(version)
            head = self._head
            if head is None or head.number != log.version:
                head = Head(log.version, self._digest(log.version))
            return Found(log.id, first, max(first, log.version + 1), files, contents, head)

    def _opened(self, version: int | None = None) -> TableLog:
        options = options_of(data_folder(self.source.url, self.source.storage_options))
        return self.existing(TableLog.open(self.source.url, options, version))

    def _check_readable(self, log: TableLog) -> None:
        """Asks again what the start has asked: features may be turned on meanwhile."""
        if why := unreadable(log):
            raise SourceError(
                f"the table {self.source.url!r} cannot be read any more: {why}.",
                job=self.job,
                stage=self.stage,
                position=str(log.version),
                cure="Take that back, and start the job again. To read the table from its present "
                "contents on, start a job of another name.",
            )

    def _check_continues(self, log: TableLog) -> None:
        """Checks that the log still has what was listed: another writer may have gone on from an
        older copy of the table, with the same numbers."""
        head, begins = self._head, self._next_version
        if head is None:  # a new job, or a position without it
            is_ahead = begins == self.source.start  # it waits for a version that is to come
            head = Head(-1 if is_ahead else begins - 1, None)
        is_another = head.id is not None and self._digest(head.number) not in (None, head.id)
        if log.version < head.number or is_another:
            raise self.older(f"version {head.number}")

    def _digest(self, version: int) -> str | None:
        """Returns what tells a version's file of the log from another one; None if it is gone."""
        return digest_of(self.source.url, self.source.storage_options, version)

    def _check_feed(self, log: TableLog) -> None:
        if not has_feed(log.properties):
            raise no_feed(self.source.url, log.version, self.job, self.stage)

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

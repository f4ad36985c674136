"""Maintenance of a Delta Lake table: compaction, VACUUM, checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from dagster_jet.connectors.delta.log_folder import options_of, sync_files, sync_log
from dagster_jet.connectors.delta.table_log import TableLog, delta_library, errors_named
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.lake.data_folder import data_folder
from dagster_jet.connectors.lake.lake_committer import first_line
from dagster_jet.connectors.lake.table_maintenance import BUSY, SmallFiles, TableMaintenance
from dagster_jet.errors import SinkUnavailableError
from dagster_jet.system.backoff import attempts

DELETED_KEPT = "delta.deletedFileRetentionDuration"
_KEPT = {
    DELETED_KEPT: "interval 7 days",
    "delta.logRetentionDuration": "interval 30 days",
}
"""Properties that say how long the past is kept, with the format's defaults."""
_PART = re.compile(r"(\d+) *([a-z]+?)s?\b")
_UNITS_MS = {
    "millisecond": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_ATTEMPTS_MAX = 8
_PAUSE_S = 5.0


@dataclass
class DeltaMaintenance(TableMaintenance):
    """Maintains one table; `table` is the URL."""

    compacts: ClassVar[str] = "Let the maintenance run more often, which compacts them."

    storage_options: StorageOptions

    def run(self, longest_outage_ms: int, target_bytes: int) -> Mapping[str, int | str]:
        with self.errors_named():
            properties = self._opened().properties
            for name in _KEPT:
                self.check_kept(kept_of(properties, name), longest_outage_ms, name)
            compacted = self._compact(target_bytes)
            removed = self._vacuum()
            log = self._opened()
            log.table.create_checkpoint()
            log.table.cleanup_metadata()
            sync_log(self.table, -1, log.version)
            return {**compacted, **removed, "table_version": log.version}

    def small_files(self, target_bytes: int) -> SmallFiles:
        with self.errors_named():
            actions = pa.table(self._opened().table.get_add_actions(flatten=False)).to_pylist()
        by = [(str(one.get("partition")), int(one["size_bytes"])) for one in actions]
        return SmallFiles.of(by, target_bytes)

    def errors_named(self) -> AbstractContextManager[None]:
        return errors_named(self.table, self.job, self.stage)

    def _opened(self) -> TableLog:
        options = options_of(data_folder(self.table, self.storage_options))
        return self.existing(TableLog.open(self.table, options))

    def _compact(self, target_bytes: int) -> Mapping[str, int]:
        """Writes small files together. A concurrent MERGE makes it fail; concurrent appends do
        not."""
        failure: Exception | None = None
        for _ in attempts(_ATTEMPTS_MAX, base_s=0.5, cap_s=_PAUSE_S, budget_s=600):
            log = self._opened()
            before = log.paths()
            try:
                done = log.table.optimize.compact(target_size=target_bytes)
            except delta_library().exceptions.CommitFailedError as error:
                failure = error
                continue
            log = self._opened()
            sync_files(self.table, log.paths() - before)  # before those that they replace may go
            sync_log(self.table, -1, log.version)
            return {"files_added": done["numFilesAdded"], "files_replaced": done["numFilesRemoved"]}
        raise SinkUnavailableError(
            f"the table {self.table!r} is not compacted: each time another commit came first: "
            f"{first_line(failure) if failure else ''}.",
            job=self.job,
            stage=self.stage,
            cure=BUSY,
        ) from failure

    def _vacuum(self) -> Mapping[str, int]:
        """Removes files that no version needs within the table's retention, but for staged ones."""
        log = self._opened()
        found = log.table.vacuum(dry_run=True, full=True)
        folder = data_folder(self.table, self.storage_options)
        return self.remove_committed(folder, found, log.marker)


def kept_of(properties: Mapping[str, str], name: str) -> int | None:
    """Returns the time for which a table keeps the past; None if it is not known."""
    return kept_ms(properties.get(name, _KEPT[name]))


def kept_ms(text: str) -> int | None:
    """Returns the duration that a property names; None if it is not known.

    Example:
        >>> kept_ms("interval 1 week 2 days"), kept_ms("interval 1 month")
        (777600000, None)
    """
    parts = _PART.findall(text.lower())
    if not parts or any(unit not in _UNITS_MS for _, unit in parts):
        return None
    return sum(int(number) * _UNITS_MS[unit] for number, unit in parts)

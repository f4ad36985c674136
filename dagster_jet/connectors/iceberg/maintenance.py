"""Maintenance of an Iceberg table: small files become fewer, old snapshots expire, and files that
only they need are removed.

The library's own expiry leaves all files where they are, so that they are removed here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.iceberg.catalog import CatalogPlace, errors_named
from dagster_jet.connectors.iceberg.compaction import Compaction
from dagster_jet.connectors.iceberg.snapshot_expiry import (
    entries_of,
    expirable,
    number_in,
    paths_needed,
    read_up_to,
    remove_files,
)
from dagster_jet.connectors.iceberg.storage import folder_at
from dagster_jet.connectors.iceberg.table_version import TableVersion
from dagster_jet.connectors.lake.lake_committer import first_line
from dagster_jet.connectors.lake.table_maintenance import BUSY, SmallFiles, TableMaintenance
from dagster_jet.errors import SinkUnavailableError
from dagster_jet.system.backoff import attempts

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

_KEPT = "history.expire.max-snapshot-age-ms"
_KEPT_BY_DEFAULT_MS = 5 * 86_400_000
_ATTEMPTS_MAX = 8


@dataclass
class IcebergMaintenance(TableMaintenance):
    """Maintains one table; `table` is the name in the catalog."""

    compacts: ClassVar[str] = "Let the maintenance run more often, which compacts them."

    catalog: CatalogPlace
    storage_options: StorageOptions
    branch: str

    def run(self, longest_outage_ms: int, target_bytes: int) -> Mapping[str, int | str]:
        with self.errors_named(), self._opened() as version:
            kept_ms = number_in(version.metadata, _KEPT, _KEPT_BY_DEFAULT_MS)
            self.check_kept(kept_ms, longest_outage_ms, _KEPT)
            compacted = self._compact(version, target_bytes)
            before_ms = time.time_ns() // 1_000_000 - kept_ms
            now, expired = self._expire(self._newest(version), before_ms)
            removed = remove_files(expired, now, self.storage_options, before_ms)
            attempts_removed = self._remove_attempts(now)
            return {
                **compacted,
                **attempts_removed,
                **_held_by(now.metadata),
                "snapshots_expired": len(expired),
                "snapshots": len(now.metadata.snapshots),
                "files_removed": removed + attempts_removed["files_removed"],
                "snapshot_id": str(now.snapshot_id),
            }

    def _compact(self, version: TableVersion, target_bytes: int) -> Mapping[str, int | str]:
        return Compaction(
            self.owner,
            self.table,
            self.storage_options,
            target_bytes,
            partial(self._newest, version),
        ).run()

    def _newest(self, version: TableVersion) -> TableVersion:
        return self.existing(TableVersion.open(version.table.catalog, self.table, self.branch))

    def _expire(self, found: TableVersion, before_ms: int) -> tuple[TableVersion, list[Snapshot]]:
        """Returns the table as it is then, and the snapshots that have expired."""
        failure: Exception | None = None
        for _ in attempts(_ATTEMPTS_MAX):
            snapshots = found.metadata.snapshots
            past = [one for one in snapshots if one.timestamp_ms < before_ms]
            old = expirable(found.metadata, past)
            if not old:
                return found, []
            failure = found.expire([one.snapshot_id for one in old])
            found = self._newest(found)
            if not any(found.metadata.snapshot_by_id(one.snapshot_id) for one in old):
                return found, old
        raise SinkUnavailableError(
            f"snapshots of the table {self.table!r} do not expire: "
            f"{first_line(failure) if failure else 'they are still there'}.",
            job=self.job,
            stage=self.stage,
            cure=BUSY,
        )

    def small_files(self, target_bytes: int) -> SmallFiles:
        with self.errors_named(), self._opened() as version:
            head = version.metadata.snapshot_by_name(self.branch)
            entries = [] if head is None else entries_of([head], version.table.io)
            files = [one.data_file for one in entries if one.data_file.content.value == 0]
            spec = version.metadata.default_spec_id
        by = [(str(one.partition) if one.spec_id == spec else one.file_path, one) for one in files]
        return SmallFiles.of([(name, one.file_size_in_bytes) for name, one in by], target_bytes)

    def errors_named(self) -> AbstractContextManager[None]:
        return errors_named(self.table, self.job, self.stage)

    @contextmanager
    def _opened(self) -> Iterator[TableVersion]:
        with closing(self.catalog.open(self.storage_options)) as catalog:
            yield self.existing(TableVersion.open(catalog, self.table, self.branch))

    def _remove_attempts(self, version: TableVersion) -> Mapping[str, int]:
        """Removes files of committed epochs that no snapshot has: those of attempts that lost."""
        folder = folder_at(version.data, self.storage_options)
        beginnings = (self.owner.beginning, self.owner.beginning_of_merged)
        found = set(folder.paths(beginnings)) - paths_needed(version, self.storage_options)
        return self.remove_committed(folder, found, version.marker)


def _held_by(metadata: TableMetadata) -> Mapping[str, str]:
    """Returns the tag that keeps the oldest snapshot."""
    tags = read_up_to(metadata)
    return {"held_by": min(tags)[1]} if tags else {}

"""Maintenance of an Iceberg table: small files become fewer, old snapshots expire, and files that
only they need are removed.

The library's own expiry leaves all files where they are, so that they are removed here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.iceberg.catalog import CatalogPlace, errors_named
from dagster_jet.connectors.iceberg.compaction import Compaction
from dagster_jet.connectors.iceberg.storage import folder_at
from dagster_jet.connectors.iceberg.table_version import TableVersion
from dagster_jet.connectors.lake.lake_committer import first_line
from dagster_jet.connectors.lake.staged_names import APPLICATIONS
from dagster_jet.connectors.lake.table_maintenance import BUSY, SmallFiles, TableMaintenance
from dagster_jet.errors import SinkUnavailableError
from dagster_jet.system.backoff import attempts

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestEntry
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

_KEPT = "history.expire.max-snapshot-age-ms"
_KEPT_BY_DEFAULT_MS = 5 * 86_400_000
_KEPT_COUNT = "history.expire.min-snapshots-to-keep"
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
            kept_ms = _number(version.metadata, _KEPT, _KEPT_BY_DEFAULT_MS)
            self.check_kept(kept_ms, longest_outage_ms, _KEPT)
            compacted = self._compact(version, target_bytes)
            before_ms = time.time_ns() // 1_000_000 - kept_ms
            now, expired = self._expire(self._newest(version), before_ms)
            removed = _remove_unneeded(expired, now)
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
            old = expiring(found.metadata, before_ms)
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
            entries = [] if head is None else _entries([head], version.table.io)
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
        found = set(folder.paths(beginnings)) - version.paths()
        return self.remove_committed(folder, found, version.marker)


def expiring(metadata: TableMetadata, before_ms: int) -> list[Snapshot]:
    """Returns the snapshots that may go: older than a time, without a branch or tag, not among the
    last ones that the table keeps of each branch, and read by all jobs that have a tag."""
    refs = metadata.refs.values()
    kept, by_id = {ref.snapshot_id for ref in refs}, {s.snapshot_id: s for s in metadata.snapshots}
    count = _number(metadata, _KEPT_COUNT, 1)
    for ref in refs:
        if ref.snapshot_ref_type.value == "branch":
            kept |= set(_ancestors(by_id, ref.snapshot_id)[: ref.min_snapshots_to_keep or count])
    unread = min((number for number, _ in read_up_to(metadata)), default=math.inf)
    old = [one for one in metadata.snapshots if one.timestamp_ms < before_ms]
    return [
        one for one in old if one.snapshot_id not in kept and (one.sequence_number or 0) < unread
    ]


def read_up_to(metadata: TableMetadata) -> list[tuple[int, str]]:
    """Returns the numbers of the snapshots that jobs which read the table go on from, and the names
    of their tags."""
    by_id = {one.snapshot_id: one.sequence_number or 0 for one in metadata.snapshots}
    return [
        (by_id[ref.snapshot_id], name)
        for name, ref in metadata.refs.items()
        if name.startswith(APPLICATIONS) and ref.snapshot_id in by_id
    ]


def _held_by(metadata: TableMetadata) -> Mapping[str, str]:
    """Returns the tag that keeps the oldest snapshot."""
    tags = read_up_to(metadata)
    return {"held_by": min(tags)[1]} if tags else {}


def _ancestors(by_id: Mapping[int, Snapshot], newest: int) -> list[int]:
    """Returns a snapshot and those before it, back to one that is gone."""
    found: list[int] = []
    at: int | None = newest
    while at is not None and at in by_id:
        found.append(at)
        at = by_id[at].parent_snapshot_id
    return found


def _remove_unneeded(expired: list[Snapshot], now: TableVersion) -> int:
    """Removes the files of expired snapshots that no other snapshot has."""
    io: Any = now.table.io
    found = _files(expired, io) - _files(now.metadata.snapshots, io) if expired else set()
    for path in found:
        io.delete(path)
    return len(found)


def _files(snapshots: list[Snapshot], io: FileIO) -> set[str]:
    """Returns manifest lists, manifests and data files."""
    manifests = {one.manifest_path for snapshot in snapshots for one in snapshot.manifests(io)}
    lists = {snapshot.manifest_list for snapshot in snapshots if snapshot.manifest_list}
    data = {entry.data_file.file_path for entry in _entries(snapshots, io)}
    return lists | manifests | data


def _entries(snapshots: list[Snapshot], io: FileIO) -> list[ManifestEntry]:
    """Returns the entries of files that the snapshots have."""
    found = {one.manifest_path: one for snapshot in snapshots for one in snapshot.manifests(io)}
    return [entry for one in found.values() for entry in one.fetch_manifest_entry(io)]


def _number(metadata: TableMetadata, name: str, default: int) -> int:
    return int(metadata.properties.get(name, default))

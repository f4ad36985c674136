"""Finds the files that each snapshot of a table added, in its manifests.

Snapshots are told apart by their sequence numbers, which grow along a branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from dagster_jet.connectors.iceberg.partition_fields import IDENTITY
from dagster_jet.connectors.iceberg.storage import place_of
from dagster_jet.connectors.iceberg.table_version import TableVersion
from dagster_jet.connectors.lake.added_rows import AddedFile
from dagster_jet.errors import SourceError

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.snapshots import Snapshot

_APPEND, _REPLACE = "append", "replace"


@dataclass(frozen=True)
class TableSnapshots:
    """Reads the snapshots of a branch, in order."""

    version: TableVersion
    names: Mapping[int, str]
    """`TableRead.names`."""
    skips_deletes: bool
    name: str
    job: str
    stage: str

    def of_branch(self) -> list[Snapshot]:
        """Returns the snapshots that lead to the newest one, the oldest first."""
        metadata, found = self.version.metadata, []
        at = metadata.snapshot_by_name(self.version.branch)
        while at is not None:
            found.append(at)
            parent = at.parent_snapshot_id
            at = None if parent is None else metadata.snapshot_by_id(parent)
        return found[::-1]

    def contents(self, snapshot: Snapshot) -> list[AddedFile]:
        """Returns all files of a snapshot, in an order that depends on their names only.

        Raises:
            SourceError: it has files of deletions.
        """
        io, files = self.version.table.io, []
        for manifest in snapshot.manifests(io):
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
                if entry.data_file.content.value != 0:
                    raise self._refused(
                        snapshot,
                        "has files that delete rows",
                        "Compact the table, such as by rewrite_data_files of Spark, or begin with "
                        'later snapshots: start="latest".',
                    )
                files.append(entry.data_file)
        return self._numbered(snapshot, sorted(files, key=lambda one: one.file_path))

    def added_by(self, snapshot: Snapshot) -> list[AddedFile]:
        """Returns the files that a snapshot added. Compaction adds no rows.

        Raises:
            SourceError: it updates or deletes rows.
        """
        done = None if snapshot.summary is None else snapshot.summary.operation.value
        if done == _REPLACE:
            return []
        if done != _APPEND:
            if self.skips_deletes:
                return []
            raise self._refused(
                snapshot,
                "updates or deletes rows",
                "Read a table that is only appended to, or skip such snapshots whole: "
                'iceberg(..., deletes="skip").',
            )
        io, id = self.version.table.io, snapshot.snapshot_id
        added = [
            entry.data_file
            for manifest in snapshot.manifests(io)
            if manifest.added_snapshot_id == id
            for entry in manifest.fetch_manifest_entry(io)
            if entry.snapshot_id == id and entry.status.name == "ADDED"
        ]
        return self._numbered(snapshot, added)

    def _numbered(self, snapshot: Snapshot, files: Iterable[DataFile]) -> list[AddedFile]:
        found, mapped = [], self.version.mapped()
        for number, one in enumerate(files):
            place = place_of(one.file_path)
            if place is None or one.file_format.name != "PARQUET":
                raise self._refused(
                    snapshot, f"has the file {one.file_path!r}, which is not read", "Rewrite it."
                )
            size, rows = one.file_size_in_bytes, one.record_count
            partition = tuple(self._partition(one))
            version = number_of(snapshot)
            added = AddedFile(version, number, place, size, rows, partition, mapped=mapped)
            found.append(added)
        return found

    def _partition(self, file: DataFile) -> Iterator[tuple[str, Any]]:
        """Yields the values of columns that are equal in all rows of a file. It may lack these
        columns, as files of Hive do."""
        metadata, values = self.version.metadata, cast(Any, file.partition)
        columns = {one.field_id for one in metadata.schema().fields} & self.names.keys()
        for number, one in enumerate(metadata.specs()[file.spec_id].fields):
            if str(one.transform) == IDENTITY and one.source_id in columns:
                yield self.names[one.source_id], values[number]

    def _refused(self, snapshot: Snapshot, why: str, cure: str) -> SourceError:
        return SourceError(
            f"the snapshot {snapshot.snapshot_id} of the table {self.name!r} {why}.",
            job=self.job,
            stage=self.stage,
            position=str(snapshot.snapshot_id),
            cure=cure,
        )


def number_of(snapshot: Snapshot) -> int:
    """Returns the sequence number: a later snapshot of a branch has a higher one."""
    return snapshot.sequence_number or 0

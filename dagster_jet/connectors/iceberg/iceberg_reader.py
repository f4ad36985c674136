"""The driver's side of an Iceberg table that is read by snapshot.

A version of the position is a snapshot's sequence number. A tag of the table keeps the snapshot
from which the job would go on after a restart.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from dagster_jet.connectors.iceberg.catalog import CatalogPlace, reading_errors_named
from dagster_jet.connectors.iceberg.table_snapshots import TableSnapshots, number_of
from dagster_jet.connectors.iceberg.table_version import TableVersion
from dagster_jet.connectors.lake.table_reader import Found, Head, TableReader
from dagster_jet.contract import Acknowledges
from dagster_jet.errors import SourceError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table.snapshots import Snapshot

_TAG_EVERY_S = 60.0
"""Shortest time between two moves of the tag, each of which is a commit of the table."""
_READ = "read"


@dataclass(kw_only=True)
class IcebergReader(TableReader):
    """Reader of one execution."""

    acknowledges: ClassVar[Acknowledges] = Acknowledges.PROGRESS

    table: str
    """Name in the catalog."""
    catalog: CatalogPlace
    branch: str
    tag: str | None
    """Name of the tag; None: the table gets none."""
    _acknowledged: int | None = field(default=None, init=False)
    # For the polling thread only:
    _opened: Catalog | None = field(default=None, init=False)
    _tagged_at_s: float | None = field(default=None, init=False)

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        super().restore(position, journal)
        if position.get("snapshot") is not None:  # a position that was saved without its number
            self._head = Head(-1, position["snapshot"])

    # --- listing ---

    def poll(self) -> Found:
        with reading_errors_named(self.source.name, self.job, self.stage):
            version = self._look()
            self.check_table(version.id)
            snapshots = self._snapshots(version)
            branch = snapshots.of_branch()
            contents, first = self._contents, self._next_version
            if self._from is None:
                contents, first = self._beginning(version, branch)
            self._check_complete(version, branch, first)
            files = [
                file
                for one in branch
                if number_of(one) >= first
                for file in (
                    snapshots.contents(one)
                    if number_of(one) == contents
                    else snapshots.added_by(one)
                )
            ]
            head = Head(number_of(branch[-1]), branch[-1].snapshot_id) if branch else None
            end = first if head is None else max(first, head.number + 1)
            return Found(version.id, first, end, files, contents, head)

    def _look(self) -> TableVersion:
        """Returns the newest version; the catalog is opened again after an error."""
        try:
            if self._opened is None:
                self._opened = self.catalog.open(self.source.storage_options)
            version = TableVersion.open(self._opened, self.table, self.branch)
        except Exception:
            self.close()
            raise
        return self.existing(version)

    def _snapshots(self, version: TableVersion) -> TableSnapshots:
        source, at = self.source, (self.job, self.stage)
        return TableSnapshots(version, source.names, source.skips_deletes, source.name, *at)

    def _beginning(self, version: TableVersion, branch: Sequence[Snapshot]) -> tuple[int, int]:
        """Returns the number of the snapshot whose contents a new job reads, or -1, and the first
        number."""
        start = self.source.start
        last: Any = version.metadata
        later = 1 + (number_of(branch[-1]) if branch else last.last_sequence_number)
        if isinstance(start, datetime):
            ms = start.timestamp() * 1000
            return -1, min((number_of(s) for s in branch if s.timestamp_ms >= ms), default=later)
        if start == "earliest" and branch:
            return later - 1, later - 1
        if isinstance(start, str):
            return -1, later
        for one in branch:
            if one.snapshot_id == start:
                return -1, number_of(one)
        raise SourceError(
            f"the branch {self.branch!r} of the table {self.source.name!r} has no snapshot "
            f"{start}.",
            job=self.job,
            stage=self.stage,
            position=str(start),
            cure="Correct start: the snapshot may have expired.",
        )

    def _check_complete(
        self, version: TableVersion, branch: Sequence[Snapshot], first: int
    ) -> None:
        """Checks that no snapshot that the job has to read is gone, and none that it has read."""
        oldest, head = number_of(branch[0]) if branch else 0, self._head
        if oldest > first:
            raise SourceError(
                f"snapshots of the table {self.source.name!r} have expired before they were read: "
                f"its oldest one is {branch[0].snapshot_id}.",
                job=self.job,
                stage=self.stage,
                position=None if head is None else str(head.id),
                cure="Keep snapshots for longer than a job is down "
                "(history.expire.max-snapshot-age-ms, dagster-jet.snapshots-kept). To read the "
                "table from its present contents on, start a job of another name.",
            )
        # Sequence numbers of a table only grow, also when a branch is set back.
        metadata: Any = version.metadata
        last = metadata.last_sequence_number
        if last < first - 1:
            raise self.older(f"sequence number {first - 1}")
        if head is None:
            return
        known = {one.snapshot_id: number_of(one) for one in metadata.snapshots}
        is_another = 0 < head.number in known.values() and head.id not in known
        if last < head.number or is_another:
            raise self.older(f"snapshot {head.id} (sequence number {head.number})")
        is_away = head.id not in {one.snapshot_id for one in branch}
        was_back = is_away and (head.id in known or 0 < oldest < first)
        if was_back and not self.source.skips_deletes:
            raise SourceError(
                f"the table {self.source.name!r} was set back to before its snapshot {head.id}, "
                "which the job has read.",
                job=self.job,
                stage=self.stage,
                position=str(head.id),
                cure="Set it forward again, or go on with later snapshots: "
                'iceberg(..., deletes="skip").',
            )

    # --- the tag ---

    def unacknowledged(self) -> Mapping[str, Any]:
        if self.tag is None or self._from is None or self._from[0] == self._acknowledged:
            return {}
        return {_READ: self._from[0]}

    def restore_unacknowledged(self, messages: Mapping[str, Any]) -> None:
        """Ignored: nothing depends on them, and `acknowledge` follows."""

    def acknowledge(self, messages: Mapping[str, Any]) -> None:
        """Moves the tag to the snapshot that the job would go on from. If another commit comes
        first, the tag stays where it is until the next time: it keeps more then."""
        if self.tag is None or _READ not in messages:
            return
        now_s, at = time.monotonic(), int(messages[_READ])
        if self._tagged_at_s is None or now_s - self._tagged_at_s >= _TAG_EVERY_S:
            with reading_errors_named(self.source.name, self.job, self.stage):
                version = self._look()
                branch = self._snapshots(version).of_branch()
                read = [one for one in branch if number_of(one) <= at]
                if read:
                    version.set_tag(self.tag, read[-1].snapshot_id)
            self._tagged_at_s = now_s
        self._acknowledged = at

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = None

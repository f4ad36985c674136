"""Compaction of an Iceberg table: small files of a partition are written together, and one snapshot
of the operation `replace` has the new files in their place. The table's rows stay the same.

    announce this run -> write the files anew, group by group -> look: is this run still the newest?
    are the old files in the table, and the new ones there? -> one snapshot, on condition that the
    branch has none since the look -> look again

The sink's marker stays as it is. A late commit of a dead driver is refused, as after any snapshot.
If another writer came first, the same files are committed on its snapshot, but for those whose old
ones it has replaced.

Files of a run that died stay until the next one, because a late request may name them. A run is
announced by a property of the table, and each run looks at it before its commit. The next run
announces itself, adds a snapshot, which may change nothing, and sees its own announcement again:
from then on all requests of earlier runs are refused, and their files are removed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.iceberg.data_file import LiveFile
from dagster_jet.connectors.iceberg.old_file import OldFile
from dagster_jet.connectors.iceberg.old_rows import OldRows
from dagster_jet.connectors.iceberg.snapshot_expiry import paths_needed
from dagster_jet.connectors.iceberg.storage import folder_at
from dagster_jet.connectors.iceberg.table_version import TableVersion
from dagster_jet.connectors.lake.data_writer import DataWriter
from dagster_jet.connectors.lake.lake_committer import first_line
from dagster_jet.connectors.lake.staged_names import Owner
from dagster_jet.connectors.lake.table_maintenance import BUSY, below_which_small
from dagster_jet.contract import TransactionId
from dagster_jet.errors import SinkMismatchError, SinkUnavailableError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.backoff import attempts
from dagster_jet.system.failpoint import fail_point

_ATTEMPTS_MAX = 8
_PAUSE_S = 5.0
_RUN = "dagster_jet.compaction"


@dataclass(frozen=True)
class _Group:
    """Files of one partition, and the new ones with their rows."""

    old: Sequence[LiveFile]
    new: Sequence[Artifact]


@dataclass
class Compaction:
    """One run, in the process that calls it. Its memory is that of one group of rows."""

    owner: Owner
    table: str
    """Named in errors."""
    storage_options: StorageOptions
    target_bytes: int
    look: Callable[[], TableVersion]
    """Returns the newest version."""
    _run: str = field(default_factory=lambda: uuid.uuid4().hex)
    _skipped: str | None = None

    @property
    def announced(self) -> str:
        """Name of the property."""
        return f"{self.owner.application(repeatable=False)}/compaction"

    def run(self) -> Mapping[str, int | str]:
        """Compacts the table once.

        Raises:
            SinkUnavailableError: each time another commit came first.
        """
        first = self.look()
        if why := first.unfit() or first.unmergeable():
            return {**_counts({}), "not_compacted": why}
        folder = folder_at(first.data, self.storage_options)
        found = set(folder.paths(self.owner.beginning_of_compacted))
        left = found - self._needed(first) if found else found
        groups = groups_of(first, self.target_bytes)
        if not groups and not left:
            return _counts({})
        first = self._announce()
        written = self._written(first, groups)
        fail_point("lake.compact.written")
        summary = self._commit(first, written, must=bool(left))
        fail_point("lake.compact.after")
        last = self.look()
        if summary and last.metadata.properties.get(self.announced) == self._run:
            folder.remove(left - self._needed(last) if left else left)
            folder.remove_unfinished(self._is_of_another_run)
        skipped = {"not_compacted": self._skipped} if self._skipped else {}
        return {**_counts(summary), **skipped}

    def _needed(self, version: TableVersion) -> set[str]:
        return paths_needed(version, self.storage_options)

    def _is_of_another_run(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        return name.startswith(self.owner.beginning_of_compacted) and self._run not in name

    def _announce(self) -> TableVersion:
        """Returns the version from then on. The condition is that of a commit: an announcement that
        arrives late is refused, too."""
        failure, version = None, self.look()
        for _ in attempts(_ATTEMPTS_MAX, base_s=0.5, cap_s=_PAUSE_S):
            failure = version.announce(self.announced, self._run)
            version = self.look()
            if version.metadata.properties.get(self.announced) == self._run:
                return version
        raise self._busy(failure)

    def _written(self, version: TableVersion, groups: Sequence[Sequence[LiveFile]]) -> list[_Group]:
        layout, storage = version.layout(), self.storage_options
        rows = OldRows(self.table, self.owner, layout, storage, version.mapped())
        found = []
        for number, group in enumerate(groups):
            try:
                found.append(self._rewritten(rows, version, group, number))
            except SinkMismatchError as error:
                self._skipped = str(error)
        return found

    def _rewritten(
        self, rows: OldRows, version: TableVersion, group: Sequence[LiveFile], number: int
    ) -> _Group:
        owner, folder = self.owner, folder_at(version.data, self.storage_options)
        alone = TransactionId(owner.job, owner.sink, 0, 0, 0, number, self._run)
        beginning = owner.beginning_of_compacted
        writer = DataWriter(self.table, folder, owner, rows.layout, alone, beginning)
        try:
            for one in group:
                file = OldFile.of(one.file, version.metadata)
                assert file is not None, "it is not among the groups"
                for batch in rows.rows_of(file):
                    rows.write_anew(writer, file, batch)
            new = writer.prepare()
            wanted = sum(one.file.record_count for one in group)
            if sum(one.rows for one in new) != wanted:
                raise rows.refusal(group[0].file.file_path, f"by the metadata there are {wanted}")
        except BaseException:
            writer.abort()
            raise
        return _Group(group, new)

    def _commit(
        self, first: TableVersion, written: Sequence[_Group], *, must: bool
    ) -> Mapping[str, str]:
        """Returns the summary of the snapshot; an empty one if there is none.

        Args:
            must: whether a snapshot is made that changes nothing, too.
        """
        failure, version = None, self.look()
        for _ in attempts(_ATTEMPTS_MAX, base_s=0.5, cap_s=_PAUSE_S):
            if self._is_overtaken(first, version):
                return {}
            chosen = self._fitting(version, written)
            if not chosen and not must:
                return {}
            old = [one for group in chosen for one in group.old]
            new = [one for group in chosen for one in group.new]
            failure = version.compact(old, new, {_RUN: self._run})
            version = self.look()
            for snapshot in version.metadata.snapshots:
                summary = snapshot.summary
                if summary is not None and summary.get(_RUN) == self._run:
                    return summary.additional_properties
        raise self._busy(failure)

    def _is_overtaken(self, first: TableVersion, version: TableVersion) -> bool:
        """Returns whether another run has begun, or the table is not the one that was written
        for."""
        known, now = first.metadata, version.metadata
        is_mine = now.properties.get(self.announced) == self._run
        is_same = first.id == version.id and known.default_spec_id == now.default_spec_id
        return not is_mine or not is_same or version.unmergeable() is not None

    def _fitting(self, version: TableVersion, written: Sequence[_Group]) -> list[_Group]:
        """Returns the groups whose old files the version has, as they are named there, and whose
        new files are there."""
        live = {one.file.file_path: one for one in version.live_files()}
        new = [one for group in written for one in group.new]
        sizes = folder_at(version.data, self.storage_options).sizes([one.target for one in new])
        there = {a.target for a, size in zip(new, sizes, strict=True) if size == a.bytes}
        return [
            _Group([live[one.file.file_path] for one in group.old], group.new)
            for group in written
            if all(one.file.file_path in live for one in group.old)
            and all(one.target in there for one in group.new)
        ]

    def _busy(self, failure: Exception | None) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"the table {self.table!r} is not compacted: each time another commit came first: "
            f"{first_line(failure) if failure else ''}.",
            job=self.owner.job,
            stage=self.owner.sink,
            cure=BUSY,
        )


def groups_of(version: TableVersion, target_bytes: int) -> list[list[LiveFile]]:
    """Returns small files that are written together: of one partition, and together not above the
    target. Those of partition fields that the table has no more are left alone."""
    below, by = below_which_small(target_bytes), dict[Any, list[list[LiveFile]]]()
    for one in version.live_files():
        size, old = one.file.file_size_in_bytes, OldFile.of(one.file, version.metadata)
        if size >= below or old is None or old.partition is None:
            continue
        groups = by.setdefault(old.partition, [[]])
        if sum(it.file.file_size_in_bytes for it in groups[-1]) + size > target_bytes:
            groups.append([])
        groups[-1].append(one)
    return [group for groups in by.values() for group in groups if len(group) > 1]


def _counts(summary: Mapping[str, str]) -> dict[str, int]:
    return {
        "files_added": int(summary.get("added-data-files", 0)),
        "files_replaced": int(summary.get("deleted-data-files", 0)),
    }

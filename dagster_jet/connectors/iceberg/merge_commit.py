"""Phase 2 of an upsert or a mirror: copy on write, under the same marker.

    look -> which files have a key of the changes? -> write these anew, beside them -> one snapshot
    that removes them and adds the new ones, on condition that the branch has none since the look

The job's process reads metadata, and the keys of the changes. Data files are read and written in
Spark's tasks; in the process if they are small. If another writer's commit comes first, all of it
is done again. Files of a try that was not committed stay: a late commit may still name them, until
the marker has passed. Maintenance removes them then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from dagster_jet.connectors.iceberg.data_file import LiveFile
from dagster_jet.connectors.iceberg.iceberg_committer import IcebergCommitter
from dagster_jet.connectors.iceberg.key_search import KeySearch
from dagster_jet.connectors.iceberg.merge_pieces import FindKeys, Merge, WriteMerged
from dagster_jet.connectors.iceberg.old_file import OldFile
from dagster_jet.connectors.iceberg.storage import folder_at, place_of
from dagster_jet.connectors.iceberg.table_request import TableRequest
from dagster_jet.connectors.iceberg.table_version import TableVersion
from dagster_jet.connectors.lake.data_folder import DataFolder
from dagster_jet.connectors.lake.folding import IS_GONE
from dagster_jet.connectors.lake.lake_committer import Change, newest_of
from dagster_jet.connectors.lake.staged_changes import StagedChanges, staged_at
from dagster_jet.connectors.lake.staged_file import kept_in
from dagster_jet.connectors.lake.staged_names import StagedName
from dagster_jet.contract import CommitContext, Piece, TransactionId, carry_out_here
from dagster_jet.snapshot.manifest import Artifact

F = TypeVar("F", bound=LiveFile)
_IN_PROCESS_BYTES_MAX = 32 << 20
"""Bytes of data files up to which a Spark job costs more than it saves."""
_PIECE_BYTES = 64 << 20
_PIECE_ROWS = 500_000
"""New rows that one task writes."""


@dataclass(frozen=True)
class _Plan:
    """Files that a snapshot removes, and those that it adds."""

    of: tuple[str, tuple[str, ...]] | None = None
    """The table's metadata, and the tokens of the changes. None: there is no plan."""
    removed: Sequence[LiveFile] = ()
    added: Sequence[Artifact] = ()


@dataclass
class IcebergMergeCommitter(IcebergCommitter):
    """Committer of one execution of an upsert or a mirror."""

    lost_by: ClassVar[str] = "a program that removes unknown files"

    key: tuple[str, ...]
    are_changes: bool
    target_bytes: int
    """Size at which a data file ends."""
    _planned: _Plan = field(default=_Plan(), init=False)

    def folder(self, version: TableVersion | None, staged: Sequence[Artifact]) -> DataFolder | None:
        if staged:
            return folder_at(staged_at(kept_in(staged[0])["data"]), self.storage_options)
        return None if version is None else folder_at(staged_at(version.data), self.storage_options)

    def misfit(
        self, version: TableVersion, staged: Sequence[Artifact], context: CommitContext
    ) -> str | None:
        return super().misfit(version, staged, context) or version.unmergeable(staged)

    def plan(
        self, version: TableVersion, staged: Sequence[Artifact], context: CommitContext
    ) -> None:
        """Writes the new files, unless the table is as the last plan has found it. Rows do not
        pass this process if they are many."""
        of = (version.table.metadata_location, tuple(one.token for one in staged))
        if self._planned.of == of:
            return
        self._planned = _Plan()
        if staged:
            total = sum(one.bytes for one in staged)
            planning = _Planning(self._merge(version, staged), version, context, total)
            self._planned = planning.plan(of, newest_of(staged))

    def request(self, change: Change[TableVersion]) -> TableRequest:
        removed, added = self._planned.removed, self._planned.added
        facts = change.facts
        return change.version.replace(removed, added, change.application, change.marker, facts)

    def finished(self, version: TableVersion, artifacts: Collection[Artifact]) -> None:
        super().finished(version, artifacts)
        folder = self.folder(None, list(artifacts))
        if folder is not None:
            folder.remove([artifact.target for artifact in artifacts])

    def is_orphan(self, named: StagedName, markers: Sequence[int]) -> bool:
        """Returns True: the table has the rows of committed changes, whose files are not needed."""
        return True

    def _merge(self, version: TableVersion, staged: Sequence[Artifact]) -> Merge:
        ordered = sorted(staged, key=lambda one: one.epoch_id)
        url = staged_at(kept_in(staged[0])["data"])
        changes = StagedChanges(
            place_of(url) or url,
            self.storage_options,
            tuple(one.target for one in ordered),
            self.key,
            self.are_changes,
        )
        layout, storage = version.layout(), self.storage_options
        of = (self.table, self.owner, layout, storage, version.mapped())
        return Merge(*of, changes, self.target_bytes)


@dataclass(frozen=True)
class _Touched(LiveFile):
    """A data file with keys of changes."""

    puts: Any
    """Numbers of the changes whose rows are written in its place."""

    @classmethod
    def of(cls, one: LiveFile, puts: Any) -> _Touched:
        return cls(one.file, one.manifest, puts)


@dataclass(frozen=True)
class _Planning:
    merge: Merge
    version: TableVersion
    context: CommitContext
    bytes: int
    """Total size of the staged changes."""

    def plan(self, of: tuple[str, tuple[str, ...]], newest_epoch: int) -> _Plan:
        folded = self.merge.keys()
        live, is_gone = self.version.live_files(), folded.rows.column(IS_GONE).to_numpy()
        if folded.begins_empty:
            return _Plan(of, live, self._written([], ~is_gone, newest_epoch))
        some = KeySearch(folded.rows, self.merge.key, self.version.metadata).among(live)
        pieces = [FindKeys(self.merge, self._old(group)) for group in _grouped(some)]
        found = [one for numbers in self._run(pieces, some) for one in numbers]
        touched, is_left = [], ~is_gone
        for file, numbers in zip(some, found, strict=True):
            if len(numbers):
                mine = numbers.to_numpy()
                touched.append(_Touched.of(file, mine[is_left[mine]]))
                is_left[mine] = False  # of a key that others have doubled, one row is left
        return _Plan(of, touched, self._written(touched, is_left, newest_epoch))

    def _written(self, touched: Sequence[_Touched], is_new: Any, epoch: int) -> list[Artifact]:
        """Writes touched files and new rows."""
        shares: list[tuple[tuple[OldFile, ...], Any]] = [
            (self._old(group), np.concatenate([one.puts for one in group]))
            for group in _grouped(touched)
        ]
        new = np.flatnonzero(is_new)
        shares += [((), new[n : n + _PIECE_ROWS]) for n in range(0, len(new), _PIECE_ROWS)]
        pieces = [
            WriteMerged(
                self.merge, files, pa.array(numbers, pa.int64()), self._writer(epoch, shard)
            )
            for shard, (files, numbers) in enumerate(shares)
        ]
        written = self._run(pieces, touched)
        return [artifact for artifacts in written for artifact in artifacts]

    def _writer(self, epoch: int, shard: int) -> TransactionId:
        context = self.context
        return TransactionId(
            context.job,
            context.sink,
            context.timeline,
            context.execution_id,
            epoch,
            shard,
            "merge",
        )

    def _old(self, group: Sequence[LiveFile]) -> tuple[OldFile, ...]:
        found = []
        for one in group:
            old = OldFile.of(one.file, self.version.metadata)
            if old is None:
                raise self.merge.refusal(one.file.file_path, "it is not read")
            found.append(old)
        return tuple(found)

    def _run(self, pieces: Sequence[Piece], files: Iterable[LiveFile]) -> list[Any]:
        total = self.bytes + sum(one.file.file_size_in_bytes for one in files)
        is_here = total <= _IN_PROCESS_BYTES_MAX or not pieces
        return (carry_out_here if is_here else self.context.in_tasks)(pieces)


def _grouped(files: Sequence[F]) -> Iterable[list[F]]:
    """Yields files that one task reads: small ones are written together."""
    group: list[F] = []
    for one in files:
        group.append(one)
        if sum(it.file.file_size_in_bytes for it in group) >= _PIECE_BYTES:
            yield group
            group = []
    if group:
        yield group

"""Phase 2 of an upsert or a mirror: one MERGE of the staged changes, with the marker.

The MERGE runs in this process, in the package `deltalake`: the changes of a snapshot pass through
its memory, and every file with one of their keys is written anew.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dagster_jet.connectors.delta.delta_committer import DeltaCommitter
from dagster_jet.connectors.delta.fitness import unfit
from dagster_jet.connectors.delta.table_log import TableLog
from dagster_jet.connectors.lake.data_folder import DataFolder, data_folder
from dagster_jet.connectors.lake.lake_committer import Change
from dagster_jet.connectors.lake.staged_changes import StagedChanges, staged_at
from dagster_jet.connectors.lake.staged_names import StagedName
from dagster_jet.contract import CommitContext
from dagster_jet.snapshot.manifest import Artifact


@dataclass
class MergeCommitter(DeltaCommitter):
    """Committer of one execution of an upsert or a mirror."""

    lost_by: ClassVar[str] = "a program that removes unknown files"

    key: Sequence[str]
    are_changes: bool

    def folder(
        self, version: TableLog | None = None, staged: Sequence[Artifact] = ()
    ) -> DataFolder:
        return data_folder(staged_at(self.table), self.storage_options)

    def misfit(
        self, version: TableLog, staged: Sequence[Artifact], context: CommitContext
    ) -> str | None:
        return unfit(version, merges=True)

    def append(self, change: Change[TableLog]) -> None:
        version, staged = change.version, change.staged
        of = change.application, change.marker, change.facts
        if not staged:
            version.append([], *of)
            return
        url, storage = staged_at(self.table), self.storage_options
        paths = tuple(one.target for one in staged)
        changes = StagedChanges(url, storage, paths, tuple(self.key), self.are_changes)
        version.merge(changes.folded(), self.key, *of)

    def finished(self, version: TableLog, artifacts: Collection[Artifact]) -> None:
        self.folder().remove([artifact.target for artifact in artifacts])

    def is_orphan(self, named: StagedName, markers: Sequence[int]) -> bool:
        """Returns True: what is committed is in the table, and its changes are not needed."""
        return True

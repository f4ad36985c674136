"""Phase 2 of an upsert or a mirror: one MERGE of the staged changes, with the marker.

    <url>/_dagster_jet/part-....parquet   changes that a task has staged; neither readers nor VACUUM
                                          look into a folder with an underscore

The MERGE runs in this process, in the package `deltalake`: the changes of a snapshot pass through
its memory, and every file with one of their keys is written anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_jet.connectors.change_columns import unknown_key, unknown_value
from dagster_jet.connectors.delta.delta_committer import DeltaCommitter
from dagster_jet.connectors.delta.fitness import unfit
from dagster_jet.connectors.delta.folding import folded_changes, folded_rows
from dagster_jet.connectors.delta.table_log import TableLog
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.lake.data_folder import DataFolder, data_folder
from dagster_jet.connectors.lake.staged_names import StagedName
from dagster_jet.connectors.lake.statistics import Statistics
from dagster_jet.contract import CommitContext
from dagster_jet.errors import SinkMismatchError
from dagster_jet.snapshot.manifest import Artifact

_STAGED = "_dagster_jet"


def staged_at(url: str) -> str:
    """Returns the URL of the folder of staged changes."""
    return f"{url}/{_STAGED}"


@dataclass(frozen=True)
class ChangesLayout:
    """A file has all changes of a task."""

    key: Sequence[str]
    are_changes: bool
    """Whether the rows are changes (`change_columns`), and not rows of the table."""
    job: str
    sink: str

    def divided(self, batch: pa.RecordBatch) -> Iterator[tuple[None, pa.RecordBatch]]:
        """Raises `SinkMismatchError` if a change does not have its key or all its values."""
        why = None
        if self.are_changes:
            why = unknown_key(batch, self.key) or unknown_value(batch)
        if why is not None:
            raise SinkMismatchError(
                f"{why}.",
                job=self.job,
                stage=self.sink,
                cure="Let the source's table have `replica identity full`. Changes of before that "
                "can only be filtered out.",
            )
        yield None, batch

    def folder_of(self, values: None) -> str:
        return ""

    def with_statistics(self, schema: pa.Schema) -> Sequence[str]:
        return ()

    def kept(self, values: None, statistics: Statistics) -> Mapping[str, Any]:
        return {}


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

    def append(
        self,
        version: TableLog,
        staged: Sequence[Artifact],
        application: str,
        marker: int,
        facts: Mapping[str, str],
    ) -> None:
        if not staged:
            version.append([], application, marker, facts)
            return
        fold = folded_changes if self.are_changes else folded_rows
        version.merge(fold(map(self._read, staged), self.key), self.key, application, marker, facts)

    def _read(self, artifact: Artifact) -> pa.Table:
        url = staged_at(self.table)
        place, whole = open_input(url, self.storage_options), f"{url}/{artifact.target}"
        found = place.find(whole)
        if found is None:
            raise FileNotFoundError(whole)
        with place.open(found) as file:
            return pq.read_table(file)

    def finished(self, artifacts: Collection[Artifact]) -> None:
        self.folder().remove([artifact.target for artifact in artifacts])

    def is_orphan(self, named: StagedName, markers: Sequence[int]) -> bool:
        """Returns True: what is committed is in the table, and its changes are not needed."""
        return True

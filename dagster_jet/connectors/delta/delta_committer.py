"""Phase 2 of a Delta Lake table: its log gets a version. The library refuses one whose application
has committed since the version that it was made for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import ClassVar

from dagster_jet.connectors.delta.columns import Columns, columns_of_rows
from dagster_jet.connectors.delta.data_file import (
    DeltaLayout,
    DeltaTableFacts,
    columns_in,
    data_file_of,
)
from dagster_jet.connectors.delta.fitness import unfit
from dagster_jet.connectors.delta.log_folder import LOG, options_of, sync_log
from dagster_jet.connectors.delta.table_changes import actions_of
from dagster_jet.connectors.delta.table_log import NextLog, TableLog, errors_named
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.lake.data_folder import DataFolder, data_folder
from dagster_jet.connectors.lake.gathering import GatherFiles
from dagster_jet.connectors.lake.lake_committer import Change, TableCommitter, time_travel
from dagster_jet.connectors.owned_rows import OwnedRows
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.snapshot.manifest import Artifact


@dataclass
class DeltaCommitter(TableCommitter[TableLog]):
    """Committer of one execution; `table` is the URL."""

    lost_by: ClassVar[str] = "VACUUM"

    storage_options: StorageOptions
    columns: Columns | None
    """The table's columns as of the start, which the rows fit; None: not known."""
    _synced: int = field(default=-1, init=False)

    def errors_named(self, context: CommitContext) -> AbstractContextManager[None]:
        return errors_named(self.table, context.job, context.sink)

    def open(self) -> TableLog | None:
        return TableLog.open(self.table, options_of(self.folder()))

    def go_on(self, version: TableLog) -> TableLog | None:
        return version if version.look() else None

    def folder(
        self, version: TableLog | None = None, staged: Sequence[Artifact] = ()
    ) -> DataFolder:
        return data_folder(self.table, self.storage_options)

    def misfit(
        self, version: TableLog, staged: Sequence[Artifact], context: CommitContext
    ) -> str | None:
        why, columns = unfit(version), version.columns()
        for one in staged[:1]:  # one execution has staged all of them
            by = data_file_of(one).partition.keys()
            if why is None and by != set(version.partition_by):
                why = f"it is partitioned by {', '.join(version.partition_by) or 'nothing'}"
            if why is None and (context.recovering or columns != self.columns):
                why = self._misfit_of_columns(columns, one)
        return why

    def _misfit_of_columns(self, columns: Columns, staged: Artifact) -> str | None:
        """Returns why a staged file does not fit the table; its columns are in its footer. A column
        that the table has got since is null."""
        found = columns_in(self.table, self.storage_options, staged.target)
        if columns.not_null - set(found.names) - data_file_of(staged).partition.keys():
            return "it has a column more that is never null"
        known = {name: columns.types[name] for name in found.names if name in columns.types}
        return Columns(known).misfit(columns_of_rows(found))

    def gather(
        self, version: TableLog, staged: Sequence[Artifact], transaction: TransactionId
    ) -> GatherFiles:
        facts = DeltaTableFacts.of(version)
        layout = DeltaLayout(facts.partition_by, facts.with_statistics)
        where = (self.table, self.table, self.storage_options, self.owner)
        return GatherFiles(*where, layout, transaction, tuple(staged))

    def append(self, change: Change[TableLog]) -> None:
        files = [data_file_of(one) for one in change.staged]
        change.version.append(files, change.application, change.marker, change.facts)

    def taken(self, change: Change[TableLog]) -> TableLog | None:
        """A look at the whole log lists all its files: with 10,000 versions that takes as long as
        the commit."""
        log = change.version
        if log.marker(change.application) >= change.marker:  # a MERGE goes on to its version
            return log
        actions = actions_of(self.table, self.storage_options, log.version + 1)
        ours = {"appId": change.application, "version": change.marker}
        is_taken = any(ours.items() <= one.get("txn", {}).items() for one in actions or ())
        return NextLog(log.table) if is_taken else None

    def made_durable(self, version: TableLog) -> None:
        sync_log(self.table, self._synced, version.version)
        self._synced = version.version

    def facts(self, version: TableLog) -> Mapping[str, int | str]:
        number = version.version
        return {
            "table_version": number,
            "table_history": f"{self.table}/{LOG}",
            "time_travel": time_travel("delta_scan", self.table, f"version = {number}"),
        }


@dataclass
class OwningDeltaCommitter(DeltaCommitter):
    """Committer of a job whose rows are told from others' by values of columns."""

    owns: OwnedRows = ()

    def remove_output(self, context: CommitContext) -> bool:
        with self.errors_named(context):
            version = self.open()
            if version is not None:
                version.delete(self.owns)
                sync_log(self.table, self._synced, version.version)
        return True

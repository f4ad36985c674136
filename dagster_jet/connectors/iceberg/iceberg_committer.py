"""Phase 2 of an Iceberg table: its catalog gets metadata with one more snapshot, on condition that
the branch has none since the look at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.iceberg.catalog import CatalogPlace, errors_named
from dagster_jet.connectors.iceberg.storage import folder_at
from dagster_jet.connectors.iceberg.table_version import TableVersion
from dagster_jet.connectors.lake.data_folder import DataFolder
from dagster_jet.connectors.lake.lake_committer import TableCommitter
from dagster_jet.connectors.lake.staged_file import kept_in
from dagster_jet.contract import CommitContext
from dagster_jet.snapshot.manifest import Artifact

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@dataclass
class IcebergCommitter(TableCommitter[TableVersion]):
    """Committer of one execution; `table` is the name in the catalog."""

    lost_by: ClassVar[str] = "remove_orphan_files"

    catalog: CatalogPlace
    storage_options: StorageOptions
    branch: str
    _opened: Catalog | None = field(default=None, init=False)

    def errors_named(self, context: CommitContext) -> AbstractContextManager[None]:
        return errors_named(self.table, context.job, context.sink)

    def open(self) -> TableVersion | None:
        """Opens the catalog, too, with the credentials of this moment."""
        self.close()
        self._opened = self.catalog.open(self.storage_options)
        return TableVersion.open(self._opened, self.table, self.branch)

    def go_on(self, version: TableVersion) -> TableVersion | None:
        try:
            return TableVersion.open(version.table.catalog, self.table, self.branch)
        except Exception:  # noqa: BLE001 - opening the catalog says what is wrong
            return None

    def folder(self, version: TableVersion | None, staged: Sequence[Artifact]) -> DataFolder | None:
        if staged:  # one execution has staged all of them
            return folder_at(kept_in(staged[0])["data"], self.storage_options)
        return None if version is None else folder_at(version.data, self.storage_options)

    def misfit(
        self, version: TableVersion, staged: Sequence[Artifact], context: CommitContext
    ) -> str | None:
        if any(kept_in(one)["table"] != version.id for one in staged):
            return "it is another one now"
        return version.unfit() or version.lacks(staged)

    def append(
        self,
        version: TableVersion,
        staged: Sequence[Artifact],
        application: str,
        marker: int,
        facts: Mapping[str, str],
    ) -> None:
        version.append(staged, application, marker, facts)

    def facts(self, version: TableVersion) -> Mapping[str, int | str]:
        return {"snapshot_id": str(version.snapshot_id)}

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = None

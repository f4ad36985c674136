"""A snapshot that removes data files and adds others. The module imports the library's own
producers of snapshots, so it is imported only when a snapshot is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT

from dagster_jet.connectors.iceberg.data_file import LiveFile


class Replacing(_OverwriteFiles, _MergeAppendFiles):
    """As the library's overwrite, which keeps manifests without live files for ever and merges
    none. It opens the manifests that it has to write anew, and no others."""

    _touched: frozenset[str] = frozenset()
    _same_rows = False

    @classmethod
    def of(
        cls,
        transaction: Transaction,
        io: FileIO,
        branch: str,
        removed: Sequence[LiveFile],
        facts: Mapping[str, str],
        *,
        same_rows: bool = False,
    ) -> Replacing:
        """
        Args:
            facts: kept in the snapshot's summary.
            same_rows: whether the added files have the rows of the removed ones.
        """
        operation = Operation.OVERWRITE if removed else Operation.APPEND
        made = cls(operation, transaction, io, branch, snapshot_properties=dict(facts))
        made._same_rows = same_rows
        made._touched = frozenset(one.manifest for one in removed)
        for one in removed:
            made.delete_data_file(one.file)
        return made

    def _build_delete_files_partition_predicate(self) -> None:
        """Does nothing: the manifests are known."""

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        return lambda manifest: manifest.manifest_path in self._touched

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        """Builds the summary; the library has none for the operation `replace`."""
        found = super()._summary(snapshot_properties)
        if not self._same_rows:
            return found
        return Summary(operation=Operation.REPLACE, **found.additional_properties)

    def _existing_manifests(self) -> list[ManifestFile]:
        found = super()._existing_manifests()
        return [one for one in found if one.has_added_files() or one.has_existing_files()]

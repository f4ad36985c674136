"""A snapshot that removes data files and adds others. The module imports the library's own
producers of snapshots, so it is imported only when a snapshot is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles

from dagster_jet.connectors.iceberg.data_file import LiveFile


class Replacing(_OverwriteFiles, _MergeAppendFiles):
    """As the library's overwrite, which keeps manifests without live files for ever and merges
    none. It opens the manifests that it has to write anew, and no others."""

    _touched: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        transaction: Transaction,
        io: FileIO,
        branch: str,
        removed: Sequence[LiveFile],
        facts: Mapping[str, str],
    ) -> Replacing:
        """
        Args:
            facts: kept in the snapshot's summary.
        """
        operation = Operation.OVERWRITE if removed else Operation.APPEND
        made = cls(operation, transaction, io, branch, snapshot_properties=dict(facts))
        made._touched = frozenset(one.manifest for one in removed)
        for one in removed:
            made.delete_data_file(one.file)
        return made

    def _build_delete_files_partition_predicate(self) -> None:
        """Does nothing: the manifests are known."""

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        return lambda manifest: manifest.manifest_path in self._touched

    def _existing_manifests(self) -> list[ManifestFile]:
        found = super()._existing_manifests()
        return [one for one in found if one.has_added_files() or one.has_existing_files()]

"""A table's metadata as of a look at its catalog: columns, partitions, and the markers of sinks.

A marker is a property of the table. It is written in the commit that adds the files, and survives
the expiry of snapshots and a rollback.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.iceberg.data_file import IcebergLayout, LiveFile, data_file_of
from dagster_jet.connectors.iceberg.fields import extended, inner_not_null, of_table
from dagster_jet.connectors.iceberg.partition_fields import PartitionField
from dagster_jet.connectors.iceberg.table_request import TableRequest
from dagster_jet.connectors.lake.field_ids import Path
from dagster_jet.connectors.lake.lake_committer import first_line, time_travel
from dagster_jet.connectors.lake.staged_file import kept_in
from dagster_jet.connectors.type_ddl import type_ddl
from dagster_jet.core.ddl import quoted_name
from dagster_jet.errors import ConfigurationError
from dagster_jet.snapshot.manifest import Artifact

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.name_mapping import MappedField

_FORMAT = 2
"""The library does not write version 3. Snapshots of version 1 have no sequence numbers, by which a
catalog refuses a late request after a rollback to the snapshot that it was made for."""
SNAPSHOTS_KEPT = "dagster-jet.snapshots-kept"
"""Property of a table: so many of its newest snapshots stay at least when a sink has committed, and
a quarter more at most. Without it sinks let none expire."""
_NEW_TABLES = {
    "commit.manifest-merge.enabled": "true",
    SNAPSHOTS_KEPT: "100",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Properties of a table that a sink creates: without them each commit takes longer than the one
before."""
_AS_BYTES = ("binary", "fixed", "uuid")


@dataclass
class TableVersion:
    """The metadata that a catalog names at this moment."""

    table: Table
    branch: str

    @classmethod
    def open(cls, catalog: Catalog, name: str, branch: str) -> TableVersion | None:
        """Returns the newest version; None if there is no table."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return cls(catalog.load_table(name), branch)
        except NoSuchTableError:
            return None

    @classmethod
    def create(
        cls, catalog: Catalog, name: str, columns: pa.Schema, by: Sequence[PartitionField]
    ) -> None:
        """Creates the table, and its namespace if that is missing, unless there is one."""
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.transforms import parse_transform

        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        with suppress(TableAlreadyExistsError):
            made = catalog.create_table_transaction(name, columns, properties=_NEW_TABLES)
            with made.update_spec() as spec:
                for field in by:
                    try:
                        spec.add_field(field.column, parse_transform(field.transform))
                    except ValueError as error:
                        raise ConfigurationError(
                            f"a table cannot be partitioned by {field}: {first_line(error)}."
                        ) from error
            made.commit_transaction()

    def extend(self, rows: pa.Schema) -> None:
        """Adds the columns that the table lacks for rows, and widens types (`extended`), if nobody
        has changed the columns since the look at them.

        Raises:
            Exception: of the catalog.
        """
        from pyiceberg.table.update import AssertTableUUID

        columns, table = extended(self.columns, rows), self.table
        if columns.equals(self.columns):
            return
        transaction = table.transaction()
        with transaction.update_schema() as update:
            update.union_by_name(pa.schema(columns.remove_metadata()))
        same = AssertTableUUID(uuid=self.metadata.table_uuid)
        table.catalog.commit_table(table, (*transaction._requirements, same), transaction._updates)

    @property
    def metadata(self) -> TableMetadata:
        return self.table.metadata

    @property
    def id(self) -> str:
        return str(self.metadata.table_uuid)

    @property
    def data(self) -> str:
        """URL of the folder of data files."""
        chosen = self.metadata.properties.get("write.data.path")
        return chosen.rstrip("/") if chosen else f"{self.metadata.location.rstrip('/')}/data"

    @property
    def snapshot_id(self) -> int | None:
        """The branch's newest snapshot."""
        found = self.metadata.snapshot_by_name(self.branch)
        return None if found is None else found.snapshot_id

    def facts(self) -> Mapping[str, int | str]:
        """Returns what readers name the branch's newest snapshot by."""
        at, head = self.table.metadata_location, self.metadata.snapshot_by_name(self.branch)
        place = {"metadata_location": at, "table_history": at}
        if head is None:
            return place
        return {
            "snapshot_id": str(head.snapshot_id),  # too long for JavaScript's numbers
            "sequence_number": head.sequence_number or 0,
            **place,
            "time_travel": time_travel(
                "iceberg_scan", at, f"snapshot_from_id = {head.snapshot_id}"
            ),
        }

    def marker(self, application: str) -> int:
        return int(self.metadata.properties.get(application, -1))

    def paths(self) -> set[str]:
        """Returns the paths of all snapshots."""
        io, found = self.table.io, {}
        for snapshot in self.metadata.snapshots:
            found.update({one.manifest_path: one for one in snapshot.manifests(io)})
        entries = [entry for one in found.values() for entry in one.fetch_manifest_entry(io)]
        return {entry.data_file.file_path.removeprefix(f"{self.data}/") for entry in entries}

    def live_files(self) -> list[LiveFile]:
        """Returns the data files of the branch's newest snapshot."""
        io, head = self.table.io, self.metadata.snapshot_by_name(self.branch)
        return [
            LiveFile(entry.data_file, manifest.manifest_path)
            for manifest in ([] if head is None else head.manifests(io))
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
        ]

    def mapped(self) -> dict[Path, int]:
        """Returns the ids of columns and their parts by their names in files that have no ids."""
        mapping = self.metadata.name_mapping()
        return {} if mapping is None else dict(_mapped(mapping.root, ()))

    # --- columns and partitions ---

    @property
    def columns(self) -> pa.Schema:
        """The columns with their ids."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return schema_to_pyarrow(self.metadata.schema())

    @property
    def partition_by(self) -> tuple[PartitionField, ...]:
        schema = self.metadata.schema()
        return tuple(
            PartitionField(
                schema.find_column_name(field.source_id) or "",
                str(field.transform),
                str(schema.find_type(field.source_id)),
            )
            for field in self.metadata.spec().fields
        )

    def names_by_id(self) -> dict[int, str]:
        """Returns the names of columns and of the parts of nested ones."""
        from pyiceberg.schema import index_by_id

        known = index_by_id(self.metadata.schema())
        return {id: field.name for id, field in known.items()}

    def layout(self) -> IcebergLayout:
        """Returns what tasks write by."""
        schema = self.metadata.schema()
        return IcebergLayout(
            self.id,
            self.data,
            schema.schema_id,
            self.metadata.default_spec_id,
            self.columns,
            {field.name: field.field_id for field in schema.fields},
            self.partition_by,
        )

    def unfit(self) -> str | None:
        """Returns why a sink must not write to the table; None if it may."""
        metadata = self.metadata
        if metadata.format_version != _FORMAT:
            return f"it has the format version {metadata.format_version}, not {_FORMAT}"
        refs = metadata.refs
        if self.branch != "main" and self.branch not in refs:
            return f"it has no branch {self.branch!r}"
        if self.branch in refs and refs[self.branch].snapshot_ref_type.value != "branch":
            return f"{self.branch!r} is a tag of it"
        if (column := inner_not_null(self.columns)) is not None:
            return f"a part of the column {column!r} is never null"
        for field in self.partition_by:
            is_plain = not field.transform.startswith("bucket")
            if "." in field.column or (is_plain and field.type.startswith(_AS_BYTES)):
                return f"it is partitioned by {field}, which is {field.type}"
        return None

    def lacks(self, staged: Sequence[Artifact]) -> str | None:
        """Returns what staged files have that the table has lost; None if it has all. Columns are
        compared by their ids: they may have other names and wider types now."""
        metadata, known = self.metadata, self.metadata.schema()
        for schema_id, spec_id in {(k["schema"], k["spec"]) for k in map(kept_in, staged)}:
            schema = metadata.schema_by_id(schema_id)
            if schema is None or spec_id not in metadata.specs():
                return "the columns or partitions of the staged files are gone from its metadata"
            for field in schema.fields:
                if field.field_id not in {one.field_id for one in known.fields}:
                    return f"it has no column {field.name!r} any more"
            new = {one.field_id: one for one in known.fields if one.required}
            for field in schema.fields:
                new.pop(field.field_id, None)
            if new:
                return f"it has the new column {next(iter(new.values())).name!r}, never null"
        return None

    def unmergeable(self, staged: Sequence[Artifact] = ()) -> str | None:
        """Returns why changes cannot be merged into the table; None if they can."""
        head = self.metadata.snapshot_by_name(self.branch)
        for manifest in [] if head is None else head.manifests(self.table.io):
            if manifest.content.value != 0 and (
                manifest.has_added_files() or manifest.has_existing_files()
            ):
                return "it has files that delete rows, which the library does not write anew"
        names = {field.field_id: field.name for field in self.metadata.schema().fields}
        for schema_id in {kept_in(one)["schema"] for one in staged}:
            schema = self.metadata.schema_by_id(schema_id)
            for field in [] if schema is None else schema.fields:
                if names.get(field.field_id, field.name) != field.name:
                    return f"its column {field.name!r} is {names[field.field_id]!r} now"
        return None

    # --- reading ---

    def unreadable(self) -> str | None:
        """Returns why a source cannot read the table; None if it can."""
        if self.metadata.format_version != _FORMAT:
            return f"it has the format version {self.metadata.format_version}, not {_FORMAT}"
        if self.branch != "main" and self.branch not in self.metadata.refs:
            return f"it has no branch {self.branch!r}"
        return None

    def ddl(self) -> str:
        """Returns the columns as DDL.

        Raises:
            ConfigurationError: Spark has no type for one of them.
        """
        from pyspark.errors import PySparkException
        from pyspark.sql.pandas.types import from_arrow_type

        found = []
        for field in of_table(self.columns):
            try:
                type = type_ddl(from_arrow_type(field.type, prefer_timestamp_ntz=True))
            except PySparkException as error:
                raise ConfigurationError(
                    f"the column {field.name!r} is {field.type}, for which Spark has no type."
                ) from error
            found.append(f"{quoted_name(field.name)} {type}")
        return ", ".join(found)

    def set_tag(self, name: str, snapshot: int) -> None:
        """Sets a tag, if it is where it was looked at; a conflict leaves it there.

        Raises:
            Exception: of the catalog.
        """
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table.update import (
            AssertRefSnapshotId,
            AssertTableUUID,
            SetSnapshotRefUpdate,
        )

        known = self.metadata.refs.get(name)
        at = None if known is None else known.snapshot_id
        if at == snapshot:
            return
        update = SetSnapshotRefUpdate.model_validate(
            {"ref-name": name, "type": "tag", "snapshot-id": snapshot}
        )
        condition = AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": at})
        same = AssertTableUUID(uuid=self.metadata.table_uuid)
        with suppress(CommitFailedException):
            self.table.catalog.commit_table(self.table, (same, condition), (update,))

    # --- commit ---

    def append(
        self,
        staged: Sequence[Artifact],
        application: str,
        marker: int,
        facts: Mapping[str, str],
    ) -> TableRequest:
        """Returns the commit of files and marker in one snapshot. The manifests are written.

        Args:
            facts: kept in the snapshot's summary.
        """
        metadata = self.metadata
        transaction = self._transaction(kept_in(staged[0])["spec"] if staged else None)
        transaction.set_properties({application: str(marker)})
        if staged:
            update = transaction.update_snapshot(dict(facts), branch=self.branch)
            with update.merge_append() as files:
                for one in staged:
                    files.append_data_file(data_file_of(one, metadata))
        return self._request(transaction)

    def replace(
        self,
        removed: Sequence[LiveFile],
        added: Sequence[Artifact],
        application: str,
        marker: int,
        facts: Mapping[str, str],
    ) -> TableRequest:
        """As `append`, and removes files. The snapshot is there even if nothing changes: a late
        commit of a dead process is refused because of it."""
        from dagster_jet.connectors.iceberg.replacing import Replacing

        transaction, io = self._transaction(), self.table.io
        transaction.set_properties({application: str(marker)})
        with Replacing.of(transaction, io, self.branch, removed, facts) as files:
            for one in added:
                files.append_data_file(data_file_of(one, self.metadata))
        return self._request(transaction)

    def compact(
        self, removed: Sequence[LiveFile], added: Sequence[Artifact], facts: Mapping[str, str]
    ) -> Exception | None:
        """As `replace`, by a snapshot that leaves the rows and the properties as they are.

        Returns:
            An error, which does not say that it has not committed.
        """
        from dagster_jet.connectors.iceberg.replacing import Replacing

        transaction, io = self._transaction(), self.table.io
        try:
            with Replacing.of(
                transaction, io, self.branch, removed, facts, same_rows=True
            ) as files:
                for one in added:
                    files.append_data_file(data_file_of(one, self.metadata))
            self._request(transaction).send()
        except Exception as error:  # noqa: BLE001 - the caller looks
            return error
        return None

    def announce(self, name: str, value: str) -> Exception | None:
        """Sets a property, if the branch is where it was looked at. Returns as `compact`."""
        transaction = self._transaction()
        transaction.set_properties({name: value})
        try:
            self._request(transaction).send()
        except Exception as error:  # noqa: BLE001 - the caller looks
            return error
        return None

    def _transaction(self, spec_id: int | None = None) -> Transaction:
        """Returns a transaction that sees the branch's newest snapshot only. The library copies
        all that it sees a dozen times per snapshot.

        Args:
            spec_id: of the added files' partitions, by default the table's.
        """
        from pyiceberg.table import Table

        table, metadata = self.table, self.metadata
        head = metadata.snapshot_by_name(self.branch)
        seen: dict[str, Any] = {
            "default_spec_id": metadata.default_spec_id if spec_id is None else spec_id,
            "snapshots": [] if head is None else [head],
            "snapshot_log": [],
            "metadata_log": [],
        }
        view: Any = metadata.model_copy(update=seen)
        return Table(
            table.name(), view, table.metadata_location, table.io, table.catalog
        ).transaction()

    def _request(self, transaction: Transaction) -> TableRequest:
        from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID

        conditions = (
            AssertTableUUID(uuid=self.metadata.table_uuid),
            AssertRefSnapshotId.model_validate(
                {"ref": self.branch, "snapshot-id": self.snapshot_id}
            ),
        )
        return TableRequest(self.table, conditions, transaction._updates)

    def expire(self, snapshots: Sequence[int]) -> Exception | None:
        """Removes snapshots from the metadata, if all branches and tags are where they were looked
        at. The table says whether they are gone; an error does not say that they are not."""
        from pyiceberg.table.update import (
            AssertRefSnapshotId,
            AssertTableUUID,
            RemoveSnapshotsUpdate,
        )

        metadata = self.metadata
        conditions = (
            AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref.snapshot_id})
            for name, ref in metadata.refs.items()
        )
        same = AssertTableUUID(uuid=metadata.table_uuid)
        update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(snapshots)})
        try:
            TableRequest(self.table, (same, *conditions), (update,)).send()
        except Exception as error:  # noqa: BLE001 - the caller looks
            return error
        return None


def _mapped(fields: Iterable[MappedField], parent: Path) -> Iterator[tuple[Path, int]]:
    for one in fields:
        for name in one.names:
            path = (*parent, name)
            if one.field_id is not None:
                yield path, one.field_id
            yield from _mapped(one.fields, path)

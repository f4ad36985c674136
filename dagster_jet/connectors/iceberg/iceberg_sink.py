"""Iceberg table as a transactional sink: files in phase 1, one snapshot of the table in phase 2.

    <location>/metadata/...           metadata, manifest lists and manifests; the catalog names the
                                      newest metadata, which have the marker
    <location>/data/part-....parquet  a task's file, at its final place from phase 1 on; no reader
                                      sees it before a snapshot names it

Upserts and mirrors stage changes instead, and write the touched files anew (`merge_commit`). Other
writers and other sinks may write to the same table. At-least-once: rows written since the
last snapshot appear again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.earlier_epochs import refuse_earlier_epochs
from dagster_jet.connectors.files.cluster import check_reachable
from dagster_jet.connectors.files.places.location import (
    StorageOptions,
    reopened_options,
    saved_options,
    storage_options,
)
from dagster_jet.connectors.guarantees import shown_guarantee
from dagster_jet.connectors.iceberg.catalog import CatalogPlace, errors_named, iceberg_library
from dagster_jet.connectors.iceberg.data_file import IcebergLayout
from dagster_jet.connectors.iceberg.fields import check_types, extended, misfit, of_table
from dagster_jet.connectors.iceberg.glue import ignores_versions, is_glue
from dagster_jet.connectors.iceberg.iceberg_committer import IcebergCommitter
from dagster_jet.connectors.iceberg.maintenance import IcebergMaintenance
from dagster_jet.connectors.iceberg.merge_commit import IcebergMergeCommitter
from dagster_jet.connectors.iceberg.partition_fields import PartitionField
from dagster_jet.connectors.iceberg.storage import folder_at, place_of
from dagster_jet.connectors.iceberg.table_version import TableVersion
from dagster_jet.connectors.lake.data_writer import DataWriter
from dagster_jet.connectors.lake.merging_sink import MergingSink, far_if, named
from dagster_jet.connectors.lake.refused_rows import far_in, nulls_in, refused_by
from dagster_jet.connectors.lake.staged_changes import ChangesLayout, staged_at
from dagster_jet.contract import Refused, TransactionId
from dagster_jet.core.collations import refuse_collations
from dagster_jet.errors import ConfigurationError, PipelineError
from dagster_jet.snapshot.protocol import Guarantee

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class IcebergSink(MergingSink):
    """Writes a stream to an Iceberg table: appends rows, or merges changes by their key."""

    catalog: CatalogPlace
    table: str
    """Namespace and name: "lake.flights"."""
    mode: str = "append"
    partition_by: tuple[str, ...] = ()
    branch: str = "main"
    max_guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    storage_options: StorageOptions = ()
    key: tuple[str, ...] = ()
    order_by: str | None = None
    has_dead_letters: bool = field(default=False, compare=False, repr=False)
    shared: bool = field(default=False, compare=False, repr=False)
    """Whether a local folder is shared by all machines of a cluster."""
    found: IcebergLayout | None = field(default=None, compare=False, repr=False)
    """The table at this start; None before the start, and if there is no table."""
    _of_rows: list[pa.Schema] = field(default_factory=list, init=False, compare=False, repr=False)
    """Columns of the stream, as `check_columns` has seen them last."""
    _changed: list[IcebergLayout] = field(
        default_factory=list, init=False, compare=False, repr=False
    )
    """The table that this start has created or extended."""

    def __post_init__(self) -> None:
        super().__post_init__()
        iceberg_library()
        object.__setattr__(self, "storage_options", checked_storage(self.storage_options))
        checked_table(self.table)
        if len(set(self.partition_by)) < len(self.partition_by):
            raise ConfigurationError(f"partition_by: {self.partition_by!r} has a name twice.")
        object.__setattr__(self, "partition_by", tuple(map(str, self._asked)))

    @property
    def _asked(self) -> Sequence[PartitionField]:
        return [PartitionField.of(text) for text in self.partition_by]

    def describe(self) -> dict[str, str]:
        url = self.catalog.url_of(self.table, self.branch)
        described = {"kind": "iceberg", "path": url, "mode": self.mode}
        if self.key:
            described["key"] = ", ".join(self.key)
        if self.partition_by:
            described["partition_by"] = ", ".join(self.partition_by)
        if self.branch != "main":
            described["branch"] = self.branch
        return {**described, **shown_guarantee(self.max_guarantee)}

    @property
    def _name(self) -> str:
        return f"{self.catalog.name}.{self.table}"

    def destination(self) -> dict[str, Any]:
        kept = {
            "catalog": saved_options(self.catalog.options),
            "storage": saved_options(self.storage_options),
        }
        place = {"catalog": self.catalog.name, "table": self.table, "branch": self.branch}
        keyed = {"key": list(self.key)} if self.key else {}
        return {**place, "mode": self.mode, **keyed, "options": kept}

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> IcebergSink:
        kept = destination["options"]
        return cls(
            CatalogPlace(destination["catalog"], reopened_options(kept["catalog"])),
            destination["table"],
            destination["mode"],
            branch=destination["branch"],
            storage_options=reopened_options(kept["storage"]),
            key=tuple(destination.get("key", ())),
        )

    # --- checks of a start ---

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> IcebergSink:
        """Reads the table's columns, so that a misfit fails the start with a clear error."""
        with self._opened(job, stage) as version:
            if version is None:
                self._check_may_create(self._name, job, stage)
                return self
            self._check_place(version, job, stage, is_reachable=on_one_host or self.shared)
            if why := version.unfit() or (version.unmergeable() if self.merges else None):
                raise ConfigurationError(
                    f"the table {self._name!r} cannot be written to exactly once: {why}.",
                    job=job,
                    stage=stage,
                    cure="Change what is named here, or write to another table.",
                )
            by = tuple(map(str, version.partition_by))
            if self.partition_by and self.partition_by != by:
                raise ConfigurationError(
                    f"the table {self._name!r} is partitioned by {', '.join(by) or 'nothing'}.",
                    job=job,
                    stage=stage,
                    cure="Leave partition_by out, or name the table's own partition fields.",
                )
            return replace(self, found=version.layout())

    def _check_place(
        self, version: TableVersion, job: str, stage: str, *, is_reachable: bool
    ) -> None:
        place = place_of(version.data)
        if place is None:
            raise ConfigurationError(
                f"the table {self._name!r} has its files at {version.data!r}, where they cannot be "
                "written.",
                job=job,
                stage=stage,
                cure="Use a table in a local folder, or in a bucket: s3://bucket/folder. Why "
                "Azure's and Google's storage are refused is said in docs/connectors/delta.md.",
            )
        check_reachable(place, job, stage, is_reachable=is_reachable)
        folder_at(version.data, self.storage_options).sizes(["any"])  # tells errors apart

    def check(self, job: str, stage: str, *, is_new_job: bool) -> None:
        with self._opened(job, stage) as version:
            owner = self._owner(job, stage)
            ids = [owner.application(repeatable=is_so) for is_so in (False, True)]
            if is_new_job and version is not None and any(version.marker(id) >= 0 for id in ids):
                refuse_earlier_epochs(
                    f"the table {self._name!r}",
                    job,
                    stage,
                    cure="Use another name for the job or the sink, or another table.",
                )
            catalog = None if version is None else version.table.catalog
            if catalog and is_glue(catalog) and ignores_versions(catalog, self.table):
                raise ConfigurationError(
                    f"the catalog {self.catalog.name!r} ignores VersionId, the condition of an "
                    "update: two writers would lose rows.",
                    job=job,
                    stage=stage,
                    cure="Use AWS Glue itself, or another catalog.",
                )

    def claim_place(self, job: str, stage: str) -> None:
        """Creates the table if it is missing, with the columns of the stream, or extends it if that
        is asked for."""
        if not self._of_rows:
            return
        with self._opened(job, stage) as version:
            if version is not None and self._fits(version.columns):
                return
            if version is not None and self._extends:
                version.extend(self._of_rows[-1])
        if version is None:
            with (
                errors_named(self._name, job, stage, is_start=True),
                closing(self._catalog()) as found,
            ):
                TableVersion.create(found, self.table, self._of_rows[-1], self._asked)
        with self._opened(job, stage) as version:
            assert version is not None, "the table was just created"
            self._check_place(version, job, stage, is_reachable=True)
            self._changed.append(version.layout())

    def _fits(self, columns: pa.Schema) -> bool:
        """Returns whether rows can be written to a table with these columns as it is."""
        return not self._of_rows or misfit(columns, self._of_rows[-1]) is None

    def check_columns(self, rows: DataFrame, job: str, stage: str) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(rows.schema, timezone="UTC")
        with named(job, stage):
            refuse_collations(rows.schema, self.key)
            schema = self.columns_in(schema, self._name)
            check_types(schema)
        columns = of_table(schema)
        known = None if self.found is None else self.found.columns
        if known is not None and self._extends:
            known = extended(known, columns)
        wrong = None if known is None else misfit(known, columns)
        for one in self._asked if self.found is None else ():
            if one.column not in columns.names:
                wrong = f"they have no column {one.column!r}, which partition_by names"
            elif pa.types.is_nested(type := columns.field(one.column).type) or type == pa.binary():
                wrong = f"they cannot be partitioned by {one}, which is {type}"
        if wrong is not None:
            raise PipelineError(
                f"the rows do not fit the table {self._name!r}: {wrong}.",
                job=job,
                stage=stage,
                cure="Change the rows with select(), or the table. "
                'schema_evolution="extend" adds columns to it and widens types.',
            )
        self._of_rows.append(columns)

    # --- phase 1 ---

    @property
    def never_null(self) -> frozenset[str]:
        columns = () if self.found is None else self.found.columns
        return frozenset(one.name for one in columns if not one.nullable) | frozenset(self.key)

    def is_refused_if(self, frame: DataFrame) -> list[Column]:
        return [*super().is_refused_if(frame), *far_if(frame, self._by_value)]

    def refused(self, rows: pa.RecordBatch) -> dict[int, Refused]:
        """Returns rows with a null, or of a partition, that the table cannot have."""
        if self.is_mirror:
            return {}  # such a change stops the job: `ChangesLayout`
        found = nulls_in(rows, self.never_null) | far_in(rows, self._by_value)
        return refused_by(self._name, rows, found)

    @property
    def _by_value(self) -> set[str]:
        """Columns of partitions whose names are made of a value."""
        known = next(iter(self._changed), self.found)
        fields = self._asked if known is None else known.partition_by
        return {one.column for one in fields if not one.transform.startswith("bucket")}

    def open_writer(self, transaction: TransactionId) -> DataWriter:
        owner = self._owner(transaction.job, transaction.sink)
        layout = self._layout(transaction)
        if self.merges:
            changes = ChangesLayout(
                self.key,
                self.is_mirror,
                transaction.job,
                transaction.sink,
                self.never_null,
                layout.known(),
                self._by_value,
            )
            staged = folder_at(staged_at(layout.data), self.storage_options)
            return DataWriter(self._name, staged, owner, changes, transaction)
        folder = folder_at(layout.data, self.storage_options)
        target = self.target_file_bytes
        return DataWriter(self._name, folder, owner, layout, transaction, target_bytes=target)

    def _layout(self, transaction: TransactionId) -> IcebergLayout:
        """Returns the table as of the start. A task whose driver created or extended the table may
        have to look itself."""
        known = next(iter(self._changed), self.found)
        if known is not None and self._fits(known.columns):
            return known
        with self._opened(transaction.job, transaction.sink) as version:
            if version is None:
                raise ConfigurationError(
                    f"the table {self._name!r} is gone.",
                    job=transaction.job,
                    stage=transaction.sink,
                    cure="Bring it back, or start the job again, which creates it.",
                )
            return version.layout()

    # --- phase 2 ---

    def open_committer(self, job: str, stage: str) -> IcebergCommitter:
        owner, storage = self._owner(job, stage), self.storage_options
        given = (self.table, owner, self.catalog, storage, self.branch)
        if self.merges:
            return IcebergMergeCommitter(*given, self.key, self.is_mirror, self.target_file_bytes)
        found = IcebergCommitter(*given)
        found.gathering = self._gathering
        return found

    def maintenance(self, job: str, stage: str) -> IcebergMaintenance:
        owner, storage = self._owner(job, stage), self.storage_options
        return IcebergMaintenance(self.table, owner, job, stage, self.catalog, storage, self.branch)

    def _catalog(self) -> Any:
        return self.catalog.open(self.storage_options)

    @contextmanager
    def _opened(self, job: str, stage: str) -> Iterator[TableVersion | None]:
        with errors_named(self._name, job, stage, is_start=True), closing(self._catalog()) as found:
            yield TableVersion.open(found, self.table, self.branch)


def checked_storage(options: StorageOptions) -> StorageOptions:
    """Returns the options of a bucket. Raises `ConfigurationError`."""
    return storage_options("s3://any" if options else "/any", dict(options))


def checked_table(name: str) -> None:
    """Raises `ConfigurationError` if a table's name has no namespace."""
    if not name.strip(".") or "." not in name.strip("."):
        raise ConfigurationError(
            f"table: {name!r} has no namespace.", cure='Write it as "namespace.table".'
        )

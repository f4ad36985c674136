"""Delta Lake table as a transactional sink: files in phase 1, one version of its log in phase 2.

    <url>/_delta_log/<version>.json          names the files of each version, with the marker
    <url>/[<column>=<value>/]part-....parquet   a task's file, at its final place from phase 1 on;
                                             no reader sees it before a version names it

Upserts and mirrors stage changes instead, and MERGE them (`merging`). Other writers and other sinks
may write to the same table. At-least-once: rows written since the last snapshot appear again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.delta.columns import Columns, check_partition_by, columns_of_rows
from dagster_jet.connectors.delta.data_file import DeltaLayout, DeltaTableFacts
from dagster_jet.connectors.delta.delta_committer import DeltaCommitter, OwningDeltaCommitter
from dagster_jet.connectors.delta.fitness import unfit
from dagster_jet.connectors.delta.log_folder import LOG, check_place, options_of
from dagster_jet.connectors.delta.maintenance import DELETED_KEPT, DeltaMaintenance, kept_of
from dagster_jet.connectors.delta.merging import MergeCommitter
from dagster_jet.connectors.delta.partitions import refused_texts
from dagster_jet.connectors.delta.table_log import TableLog, delta_library, errors_named
from dagster_jet.connectors.earlier_epochs import refuse_earlier_epochs
from dagster_jet.connectors.files.cluster import check_reachable
from dagster_jet.connectors.files.places.location import (
    StorageOptions,
    absolute,
    reopened_options,
    saved_options,
    storage_options,
)
from dagster_jet.connectors.guarantees import shown_guarantee
from dagster_jet.connectors.lake import TARGET_FILE_BYTES
from dagster_jet.connectors.lake.data_folder import data_folder
from dagster_jet.connectors.lake.data_writer import DataWriter
from dagster_jet.connectors.lake.merging_sink import MergingSink, far_if, named
from dagster_jet.connectors.lake.refused_rows import far_in, nulls_in, refused_by
from dagster_jet.connectors.lake.staged_changes import ChangesLayout, staged_at
from dagster_jet.connectors.owned_rows import OwnedRows, OwnedRowsWriter, misfit, owned_rows
from dagster_jet.contract import Refused, SinkWriter, TransactionId
from dagster_jet.core.collations import refuse_collations
from dagster_jet.core.ddl import quoted_name
from dagster_jet.core.durations import in_words
from dagster_jet.errors import ConfigurationError, PipelineError
from dagster_jet.snapshot.protocol import Guarantee

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class DeltaSink(MergingSink):
    """Writes a stream to a Delta Lake table: appends rows, or merges changes by their key."""

    url: str
    mode: str = "append"
    key: tuple[str, ...] = ()
    order_by: str | None = None
    partition_by: tuple[str, ...] = ()
    max_guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    storage_options: StorageOptions = ()
    owns: OwnedRows = ()
    shared: bool = field(default=False, compare=False, repr=False)
    """Whether a local folder is shared by all machines of a cluster."""
    has_dead_letters: bool = field(default=False, compare=False, repr=False)
    table: DeltaTableFacts | None = field(default=None, compare=False, repr=False)
    """The table at this start; None before the start, and if there is no table."""
    _of_rows: list[Columns] = field(default_factory=list, init=False, compare=False, repr=False)
    """Columns of the stream, as `check_columns` has seen them last."""

    def __post_init__(self) -> None:
        super().__post_init__()
        delta_library()
        object.__setattr__(self, "url", absolute(self.url))
        storage = storage_options(self.url, dict(self.storage_options))
        object.__setattr__(self, "storage_options", storage)
        check_place(self.url)
        if self.merges and self.target_file_bytes != TARGET_FILE_BYTES:
            raise ConfigurationError(
                f"target_file_bytes: mode {self.mode!r} writes files by a MERGE of the package "
                "deltalake, whose files are as large as the table says.",
                cure="Leave it out, and set the table's property delta.targetFileSize.",
            )
        owned_rows(dict(self.owns), self.mode)
        if len(set(self.partition_by)) < len(self.partition_by):
            raise ConfigurationError(f"partition_by: {self.partition_by!r} has a name twice.")

    def describe(self) -> dict[str, str]:
        described = {"kind": "delta", "path": self.url, "mode": self.mode}
        if self.key:
            described["key"] = ", ".join(self.key)
        if self.partition_by:
            described["partition_by"] = ", ".join(self.partition_by)
        return {**described, **shown_guarantee(self.max_guarantee)}

    def destination(self) -> dict[str, Any]:
        options = saved_options(self.storage_options)
        place = {"path": self.url, "mode": self.mode, "key": list(self.key)}
        return {**place, "owns": dict(self.owns), **({"options": options} if options else {})}

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> DeltaSink:
        return cls(
            destination["path"],
            destination["mode"],
            tuple(destination["key"]),
            storage_options=reopened_options(destination.get("options", {})),
            owns=tuple(destination["owns"].items()),
        )

    # --- checks of a start ---

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> DeltaSink:
        """Reads the table's columns, so that a misfit fails the start with a clear error."""
        check_reachable(self.url, job, stage, is_reachable=on_one_host or self.shared)
        with errors_named(self.url, job, stage, is_start=True):
            data_folder(self.url, self.storage_options).sizes([LOG])  # tells errors apart
            log = self._opened()
        if log is None:
            self._check_may_create(self.url, job, stage)
            return self
        if why := unfit(log, merges=self.merges):
            raise ConfigurationError(
                f"the table {self.url!r} cannot be written to exactly once: {why}.",
                job=job,
                stage=stage,
                cure="Remove what is named here from the table, or write to another one.",
            )
        if self.partition_by and self.partition_by != log.partition_by:
            raise ConfigurationError(
                f"the table {self.url!r} is partitioned by "
                f"{', '.join(log.partition_by) or 'nothing'}.",
                job=job,
                stage=stage,
                cure="Leave partition_by out, or name the table's own partition columns.",
            )
        self._check_delay(log, job, stage)
        return replace(self, table=DeltaTableFacts.of(log))

    def _check_delay(self, log: TableLog, job: str, stage: str) -> None:
        """Refuses a table whose VACUUM may remove staged files while their rows wait."""
        rule, kept_ms = self.hold_back(), kept_of(log.properties, DELETED_KEPT)
        if rule is None or (kept_ms is not None and kept_ms >= 2 * rule.max_delay_ms):
            return
        kept = "a time that is not known" if kept_ms is None else in_words(kept_ms)
        raise ConfigurationError(
            f"max_delay: rows may wait for {in_words(rule.max_delay_ms)}, and VACUUM of the table "
            f"{self.url!r} removes staged files that are older than {kept}.",
            job=job,
            stage=stage,
            cure=f"Set max_delay, or the table's property {DELETED_KEPT}, so that rows wait for "
            "at most half of that time.",
        )

    def check(self, job: str, stage: str, *, is_new_job: bool) -> None:
        with errors_named(self.url, job, stage, is_start=True):
            data_folder(self.url, self.storage_options).check(job, stage)
            log, owner = self._opened(), self._owner(job, stage)
            ids = [owner.application(repeatable=is_so) for is_so in (False, True)]
            if is_new_job and log is not None and any(log.marker(id) >= 0 for id in ids):
                refuse_earlier_epochs(
                    f"the table {self.url!r}",
                    job,
                    stage,
                    cure="Use another name for the job or the sink, or another table.",
                )

    def claim_place(self, job: str, stage: str) -> None:
        """Creates the table if it is missing, with the columns of the stream, or adds those that it
        lacks, if that is asked for."""
        if not self._of_rows:
            return
        rows = self._of_rows[-1]
        with errors_named(self.url, job, stage, is_start=True):
            log = self._opened()
            if log is None:
                options = options_of(data_folder(self.url, self.storage_options))
                TableLog.create(self.url, options, rows, self.partition_by)
            elif self._extends and (lacking := log.columns().lacking(rows)).types:
                log.add_columns(lacking)

    def check_columns(self, rows: DataFrame, job: str, stage: str) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(rows.schema, timezone="UTC")
        with named(job, stage):
            refuse_collations(rows.schema, self.key)
            schema = self.columns_in(schema, self.url)
            columns = columns_of_rows(schema)
            check_partition_by(columns, self._partition_by)
            self._of_rows.append(columns)
            known = self._columns_after_start
            wrong = misfit(self.owns, schema)
            wrong = wrong or (None if known is None else known.misfit(columns))
            if wrong is not None:
                raise PipelineError(
                    f"the rows do not fit the table {self.url!r}: {wrong}.",
                    cure="Change the rows with select(), or the table. "
                    'schema_evolution="extend" adds columns to it.',
                )

    # --- phase 1 ---

    def is_refused_if(self, frame: DataFrame) -> list[Column]:
        from pyspark.sql import functions as F

        texts = [name for name, type in frame.dtypes if type == "string"]
        empty = [F.col(quoted_name(name)) == "" for name in self._partition_by if name in texts]
        return [*super().is_refused_if(frame), *empty, *far_if(frame, self._partition_by)]

    def refused(self, rows: pa.RecordBatch) -> dict[int, Refused]:
        """Returns rows with a null that the table refuses, or with a text or date that cannot be
        the value of a partition."""
        if self.is_mirror:
            return {}  # such a change stops the job: `ChangesLayout`
        found = nulls_in(rows, self.never_null) | far_in(rows, self._partition_by)
        for name in self._partition_by:
            values = rows.column(name)
            if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
                found |= refused_texts(name, values)
        return refused_by(self.url, rows, found)

    def open_writer(self, transaction: TransactionId) -> SinkWriter:
        owner = self._owner(transaction.job, transaction.sink)
        if self.merges:
            changes = ChangesLayout(
                self.key,
                self.is_mirror,
                transaction.job,
                transaction.sink,
                partition_by=self._partition_by,
            )
            staged = data_folder(staged_at(self.url), self.storage_options)
            return DataWriter(self.url, staged, owner, changes, transaction)
        folder = data_folder(self.url, self.storage_options)
        expected = None if self.table is None else self.table.with_statistics
        layout = DeltaLayout(self._partition_by, expected)
        target = self.target_file_bytes
        rows = DataWriter(self.url, folder, owner, layout, transaction, target_bytes=target)
        return OwnedRowsWriter(rows, self.owns) if self.owns else rows

    # --- phase 2 ---

    def open_committer(self, job: str, stage: str) -> DeltaCommitter:
        columns = self._columns_after_start
        given = (self.url, self._owner(job, stage), self.storage_options, columns)
        if self.merges:
            return MergeCommitter(*given, self.key, self.is_mirror)
        found = OwningDeltaCommitter(*given, self.owns) if self.owns else DeltaCommitter(*given)
        found.gathering = self._gathering
        return found

    def maintenance(self, job: str, stage: str) -> DeltaMaintenance:
        owner = self._owner(job, stage)
        return DeltaMaintenance(self.url, owner, job, stage, self.storage_options)

    @property
    def _columns_after_start(self) -> Columns | None:
        """The table's columns when this start has created or extended it; None: not known."""
        rows = self._of_rows[-1] if self._of_rows else None
        if self.table is None or rows is None or not self._extends:
            return rows if self.table is None else self.table.columns
        return self.table.columns.with_columns(self.table.columns.lacking(rows))

    @property
    def _partition_by(self) -> tuple[str, ...]:
        return self.partition_by if self.table is None else self.table.partition_by

    @property
    def never_null(self) -> frozenset[str]:
        known = frozenset() if self.table is None else self.table.columns.not_null
        return known | frozenset(self.key)

    def _opened(self) -> TableLog | None:
        options = options_of(data_folder(self.url, self.storage_options))
        return TableLog.open(self.url, options)

"""A small Delta Lake table that names, per job, one version of each of its lake tables: one cut.

    job  sink  format  catalog  table  location  version  snapshot_id  epoch  snapshot  timeline
    committed_at  namespace  store

Readers that know nothing else of a job join it. It has the newest cut of each job; older ones are
in the table's history. A cut is one version of it, with the cut's marker (`Cut.marker`): a writer
that is late, such as a dead driver's, is refused by the marker, or by the log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

import pyarrow as pa

from dagster_jet.connectors.delta.columns import columns_of_rows
from dagster_jet.connectors.delta.log_folder import check_place, options_of, sync_files, sync_log
from dagster_jet.connectors.delta.table_log import TableLog, delta_library, errors_named
from dagster_jet.connectors.files.places.location import StorageOptions, absolute, storage_options
from dagster_jet.connectors.lake.cut import Cut
from dagster_jet.connectors.lake.data_folder import data_folder
from dagster_jet.connectors.lake.lake_committer import ATTEMPTS_MAX, first_line
from dagster_jet.connectors.lake.staged_names import APPLICATIONS
from dagster_jet.connectors.owned_rows import OwnedRows
from dagster_jet.core.secret import Secret
from dagster_jet.errors import ConfigurationError, SinkError, SinkUnavailableError
from dagster_jet.system.backoff import attempts
from dagster_jet.system.failpoint import fail_point

SCHEMA = pa.schema(
    [
        ("job", pa.string()),
        ("sink", pa.string()),
        ("format", pa.string()),
        ("catalog", pa.string()),
        ("table", pa.string()),
        ("location", pa.string()),
        ("version", pa.int64()),
        ("snapshot_id", pa.int64()),
        ("epoch", pa.int64()),
        ("snapshot", pa.int64()),
        ("timeline", pa.int64()),
        ("committed_at", pa.timestamp("us", "UTC")),
        ("namespace", pa.string()),
        ("store", pa.string()),
    ]
)
_PROPERTIES = {
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.logRetentionDuration": "interval 1 days",
}
_TIDIED_AFTER = 100
"""Writes between two removals of files that no version needs."""
_STAGE = "epochs_table"
_NEXT_CUT = "The newest cut is written then."


@dataclass
class EpochsTable:
    """The table, as one job of one namespace writes it. One thread calls it."""

    url: str
    storage_options: StorageOptions
    store: str
    namespace: str
    job: str
    _log: TableLog | None = field(default=None, init=False)
    _synced: int = field(default=-1, init=False)
    _writes: int = field(default=0, init=False)

    @classmethod
    def at(
        cls, uri: str, options: Mapping[str, str | Secret], store: str, namespace: str, job: str
    ) -> EpochsTable:
        """Connects to nothing.

        Raises:
            ConfigurationError: the place or an option is not valid.
            MissingEnvironmentError: the package is missing; names the extra.
        """
        delta_library()
        try:
            url = absolute(uri)
            check_place(url)
            return cls(url, storage_options(url, options), store, namespace, job)
        except ConfigurationError as error:
            raise ConfigurationError(
                error.message, job=job, stage=_STAGE, cure=error.cure
            ) from error

    def write(self, cut: Cut) -> None:
        """Makes a cut the job's newest one, unless the table has it, or a later one.

        A crash inside leaves the table with the cut, or as it was.

        Raises:
            JetError: the place is unavailable, or the table is another one.
        """
        failure: Exception | None = None
        for _ in attempts(ATTEMPTS_MAX, budget_s=math.inf):
            with errors_named(self.url, self.job, _STAGE, what_then=_NEXT_CUT):
                log = self._looked_at()
            if log.marker(self._application) >= cut.marker:
                sync_log(self.url, self._synced, log.version)
                self._synced = log.version
                return
            fail_point("epochs.write.before")
            try:
                self._replace(log, cut)
            except Exception as error:  # noqa: BLE001 - the table says what has happened
                failure, self._log = error, None
            fail_point("epochs.write.after")
        raise SinkUnavailableError(
            f"the epochs table {self.url!r} does not take the cut of epoch {cut.epoch_id}: "
            f"{first_line(failure) if failure else 'its marker does not appear'}.",
            job=self.job,
            stage=_STAGE,
            cure=f"Bring the place back. {_NEXT_CUT}",
        ) from failure

    @property
    def _application(self) -> str:
        return APPLICATIONS + "/".join(
            quote(part, safe="") for part in (self.store, self.namespace, self.job)
        )

    @property
    def _own(self) -> OwnedRows:
        return (("job", self.job), ("namespace", self.namespace), ("store", self.store))

    def _looked_at(self) -> TableLog:
        """Returns the newest version. The table is created if it is missing."""
        if self._log is not None and self._log.look():
            return self._log
        folder = data_folder(self.url, self.storage_options)
        folder.check(self.job, _STAGE)
        options = options_of(folder)
        log = TableLog.open(self.url, options)
        if log is None:
            TableLog.create(self.url, options, columns_of_rows(SCHEMA), (), _PROPERTIES)
            log = TableLog.open(self.url, options)
        if log is None:
            raise SinkError(f"the table {self.url!r} is gone.", job=self.job, stage=_STAGE)
        if why := log.columns().misfit(columns_of_rows(SCHEMA)):
            raise ConfigurationError(
                f"epochs_table: {self.url!r} is another table: {why}.",
                job=self.job,
                stage=_STAGE,
                cure="Name a place without a table, or an epochs table.",
            )
        self._log = log
        return log

    def _replace(self, log: TableLog, cut: Cut) -> None:
        facts = {"dagster_jet.job": self.job, "dagster_jet.epochs": f"{cut.epoch_id}"}
        log.replace(self._rows(cut), self._own, self._application, cut.marker, facts)
        sync_files(self.url, log.paths())
        if self._writes % _TIDIED_AFTER == 0:
            log.table.vacuum(dry_run=False, full=True)  # checkpoints forget what it would look for
        self._writes += 1

    def _rows(self, cut: Cut) -> pa.Table:
        of_cut = {
            "job": self.job,
            "epoch": cut.epoch_id,
            "snapshot": cut.snapshot_id,
            "timeline": cut.timeline,
            "committed_at": cut.committed_ms * 1000,
            "namespace": self.namespace,
            "store": self.store,
        }
        return pa.Table.from_pylist([{**vars(at), **of_cut} for at in cut.tables], SCHEMA)

"""A job as the store knows it: record, snapshots, state, ledger. The process that runs it may be
any, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dagster_jet.core.arrow_types import ArrowTable
from dagster_jet.core.html_table import html_table
from dagster_jet.errors import StoreError
from dagster_jet.jobs.deletion import JobDeletion, delete_job, reset_job
from dagster_jet.jobs.stored_snapshot import StoredSnapshot, compare, find_snapshot, read_snapshot
from dagster_jet.observe.reading.explanation import Explanation, explain
from dagster_jet.observe.reading.ledger import Ledger, read_ledger
from dagster_jet.observe.reading.profile import JobProfile, read_profile
from dagster_jet.ownership.liveness import observed
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef
from dagster_jet.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_jet.operators.state_difference import StateDifference


class StoredJob:
    """The part of a job's handle that reads the store, and deletes the job there.

    `snapshot` is the id of a retained snapshot, or the name of an export of the job; None is the
    newest one.

    Args:
        store: the open store.
        name: the job's name.
        open_session: returns the Spark session; called for `read_state_frame` only.
    """

    def __init__(self, store: Store, name: str, open_session: Callable[[], SparkSession]) -> None:
        self._store, self._name, self._open_session = store, name, open_session

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _repr_html_(self) -> str:
        """Returns HTML for a notebook: status and newest snapshot, if the store answers."""
        try:
            record = self.record()
        except StoreError as error:
            return html_table(f"Job {self.name}", (), [("store", error)])
        if record is None:
            return html_table(f"Job {self.name}", (), [("status", "never ran")])
        newest = record.snapshot
        facts = {
            "status": record.status.value,
            "execution": record.execution_id,
            "restarts": record.restarts,
            "newest snapshot": "none" if newest is None else newest.snapshot_id,
            "cause of the end": None if record.cause is None else record.cause.value,
            "failure": record.failure,
        }
        rows = [(name, fact) for name, fact in facts.items() if fact is not None]
        return html_table(f"Job {self.name}", (), rows)

    @property
    def status(self) -> JobStatus:
        """The status in `record`; NOT_RUNNING for a job that never ran.

        Raises:
            StoreUnavailableError: too few members of the store answer.
        """
        record = self.record()
        return record.status if record is not None else JobStatus.NOT_RUNNING

    def record(self) -> ExecutionRecord | None:
        """Returns the execution record; None if the job never ran.

        A job whose process has died is NOT_RUNNING, with the cause `StopCause.LOST`, although the
        stored record does not say so yet. Detecting this may take the time to live of the job's
        lease (`StoreConfig.lease_ttl`). `ExecutionRecord.lease.activity` says what a living
        execution is doing, and since when.

        Raises:
            StoreUnavailableError: too few members of the store answer.

        Example:
            >>> jet.job("never_ran").record() is None
            True
        """
        return observed(self._store, self.name)

    def snapshots(self) -> tuple[SnapshotRef, ...]:
        """Returns the retained snapshots, newest first; none for a job that never ran.

        Raises:
            StoreUnavailableError: too few members of the store answer.

        Example:
            >>> jet.job("never_ran").snapshots()
            ()
        """
        record = read_record(self._store, self.name)
        return record.snapshots if record is not None else ()

    def manifest(self, snapshot: int | str | None = None) -> Manifest:
        """Returns the manifest of a snapshot: positions, watermarks, chunk sets, artifacts.

        Args:
            snapshot: a retained one, or the name of an export of the job; None: the newest.

        Raises:
            JobStateError: there is no such snapshot, or the running job drops it meanwhile.
            SnapshotInvalidError: its manifest is missing or damaged.
            StoreUnavailableError: too few members of the store answer.
        """
        return find_snapshot(self._store, self.name, snapshot).manifest

    def read_state(
        self, stage: str, *, snapshot: int | str | None = None, as_saved: bool = False
    ) -> ArrowTable | None:
        """Returns the state of a stage as of a snapshot; None if it is empty.

        One row per key, and per window if there are any: the keys, the end of the window or frame,
        the partials. Parts of `aggregates.custom` can only be merged by their code: such a stage
        has several rows per key. The state of a source is the journal of what it has read.

        Args:
            stage: its name in the pipeline.
            snapshot: a retained one, or the name of an export of the job; None: the newest.
            as_saved: the rows as the snapshot has them: also expired ones, and several per key that
                add up, or of which the newest version counts.

        Raises:
            JobStateError: there is no such snapshot, or the running job drops it meanwhile.
            SnapshotInvalidError: the snapshot has no such stage, or cannot be read whole.

        Example:
            >>> jet.job("airport_delays").read_state("hourly_delays", snapshot=41)  # doctest: +SKIP
        """
        return read_snapshot(
            self._store, self.name, snapshot, lambda found: found.state(stage, as_saved=as_saved)
        )

    def read_state_frame(
        self, stage: str, *, snapshot: int | str | None = None, as_saved: bool = False
    ) -> DataFrame:
        """Returns the state of a stage as a Spark DataFrame: partitions are read in the tasks.

        The frame is lazy. A job that runs drops retained snapshots: export the one that you want to
        go on reading.

        Args:
            stage: its name in the pipeline.
            snapshot: as for `read_state`.
            as_saved: as for `read_state`.

        Raises:
            JobStateError: there is no such snapshot, or the running job drops it meanwhile.
            SnapshotInvalidError: the snapshot has no such stage, or its state is empty.
            MissingEnvironmentError: Java is missing.
        """
        from dagster_jet.spark.state_frame import state_frame

        def frame(found: StoredSnapshot) -> DataFrame:
            return state_frame(
                self._open_session(),
                self._store.handle(),
                found.data.map_name,
                found.manifest,
                stage,
                None if as_saved else dict(found.plan(stage)),
                found.expired_until_ms(stage),
            )

        return read_snapshot(self._store, self.name, snapshot, frame)

    def diff(
        self, before: int | str, after: int | str, stage: str | None = None
    ) -> tuple[StateDifference, ...]:
        """Returns the changes of the state from one snapshot to another, by stage.

        All keys of a stage are read on this machine.

        Args:
            before: a retained snapshot, or the name of an export of the job.
            after: another one.
            stage: None: every stage that has rows in either; also sources with a journal.

        Raises:
            JobStateError: there is no such snapshot, or the running job drops it meanwhile.
            SnapshotInvalidError: there is no such stage, its columns have changed, or a snapshot
                cannot be read whole.

        Example:
            >>> for one in jet.job("airport_delays").diff(41, 42):       # doctest: +SKIP
            ...     print(one.stage, one.added.num_rows, one.changed.num_rows)
        """

        def compare_with(first: StoredSnapshot) -> tuple[StateDifference, ...]:
            return read_snapshot(
                self._store, self.name, after, lambda second: compare(first, second, stage)
            )

        return read_snapshot(self._store, self.name, before, compare_with)

    def consumed_files(self, source: str) -> tuple[str, ...]:
        """Returns the files that a source does not need any more: they may be deleted.

        The newest snapshot that is certainly committed contains them. Keep them if you may want to
        go back to an older snapshot.

        Args:
            source: the name of a `sources.files` in the pipeline.

        Returns:
            Absolute paths, sorted, also of files that are already gone. It is empty before the
            first commit, and for sources that read no files.

        Raises:
            JobStateError: the running job drops the snapshot meanwhile.
            SnapshotInvalidError: the snapshot has no such source, or cannot be read whole.

        Example:
            >>> for path in jet.job("airport_delays").consumed_files("flights"):
            ...     Path(path).unlink(missing_ok=True)
        """
        committed = next((ref for ref in self.snapshots() if ref.committed), None)
        if committed is None:
            return ()
        journal = self.read_state(source, snapshot=committed.snapshot_id, as_saved=True)
        if journal is None or "path" not in journal.column_names:
            return ()
        if "read_to" in journal.column_names:
            # A file that is read in parts is needed until its end.
            journal = journal.filter(journal["read_to"].is_null())
        return tuple(sorted(set(journal["path"].to_pylist())))

    def ledger(self) -> Ledger:
        """Returns the last epoch that is certainly committed, by sink; empty before the first.

        Each sink's own place is asked (the folder, the table's database, the cluster): a sink may
        be behind the others while a commit is being retried, or after its database was put back to
        an old copy. A place that keeps no markers, or does not answer, is replaced by the job's
        record. Of tables of a lake, `output` has the version and the query that reads it.

        Raises:
            SnapshotInvalidError: the newest snapshot's manifest is missing or damaged.
            StoreUnavailableError: too few members of the store answer.

        Example:
            >>> jet.job("airport_delays").ledger().entries["out"].epoch_id   # doctest: +SKIP
            412
        """
        record = read_record(self._store, self.name)
        return Ledger() if record is None else read_ledger(self._store, record)

    def profile(self) -> JobProfile:
        """Returns how the time of the job's last epochs was spent, phase by phase.

        The job may run in any process, or have ended: its newest execution leaves the profile of
        its last epochs in the store, a few seconds after they have ended.

        Raises:
            JobStateError: no epoch of the job was measured yet.
            StoreUnavailableError: too few members of the store answer.

        Example:
            >>> print(jet.job("airport_delays").profile().summary)    # doctest: +SKIP
            The largest part of an epoch is building frames on the driver: 41% of the time, ...
        """
        return read_profile(self._store, self.name)

    def explain(self) -> Explanation:
        """Returns why the job has no output, or that it has some: most likely cause first.

        The store names the source that holds a watermark back and since when, waiting input,
        failing sinks, and how the job is started. A running job reports itself every few seconds.

        Raises:
            JobStateError: the job never ran.
            StoreUnavailableError: too few members of the store answer.

        Example:
            >>> for finding in jet.job("airport_delays").explain().findings:  # doctest: +SKIP
            ...     print(finding.kind.value, finding.text, finding.cure)
        """
        return explain(self._store, self.record(), self.name)

    def delete(self, *, release_sinks: bool = True, remove_output: bool = False) -> JobDeletion:
        """Deletes the data of a job that does not run: snapshots, notes, staged rows, its record.

        Its exported snapshots stay, and by default its output. A crash inside leaves a job that
        cannot be started; the same call completes the deletion. Afterwards a job of this name is a
        new one.

        Args:
            release_sinks: also remove what is staged in the places of its sinks, and the marks that
                say whose these are: the owner of a folder, the last epoch in a database. False:
                leave them, for example because a place is gone.
            remove_output: also remove the files that its files sinks have committed, and the rows
                of tables that `owns=` of a sink names, and release all sinks. Other rows of tables,
                and those of topics and maps, stay.

        Raises:
            JobStateError: there is no such job, or its last decided snapshot is not committed yet.
            LeaseHeldError: it runs.
            StoreUnavailableError: a member of the store does not answer.

        Example:
            >>> jet.job("airport_delays").delete().entries               # doctest: +SKIP
            412
        """
        return delete_job(
            self._store, self.name, release_sinks=release_sinks, remove_output=remove_output
        )

    def reset(self, *, remove_output: bool = False) -> JobDeletion:
        """Deletes the data of a job that does not run, so that its next start is its first.

        As `delete`, but a supervisor or schedule may start it again at once. The start reads all
        input from its beginning and writes all rows again: remove its output before, or write to
        other places.

        Args:
            remove_output: as for `delete`.

        Raises:
            JobStateError, LeaseHeldError, StoreUnavailableError: as `delete`.

        Example:
            >>> jet.job("airport_delays").reset().released               # doctest: +SKIP
            ('out',)
        """
        return reset_job(self._store, self.name, remove_output=remove_output)

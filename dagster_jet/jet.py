"""The face: a store, a Spark session, and the jobs that run on them."""

from __future__ import annotations

import getpass
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dagster_jet.connectors.contract import at_start, effective_guarantees, on_store
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.errors import ConfigurationError, JobStateError
from dagster_jet.execution.events import JobEvent
from dagster_jet.execution.stopping import UntilSpec, parse_until
from dagster_jet.job_config import JobConfig
from dagster_jet.jobs.deletion import JobDeletion, delete_job
from dagster_jet.jobs.job import Job, JobResult
from dagster_jet.jobs.pipeline_job import PipelineJob
from dagster_jet.jobs.remote_job import RemoteJob
from dagster_jet.jobs.stored_snapshot import compare, find_snapshot
from dagster_jet.maps import JetMap, JournalConfig
from dagster_jet.observe.reading.explanation import Explanation, explain
from dagster_jet.observe.reading.ledger import LedgerEntry, least_epoch, read_ledger
from dagster_jet.observe.reading.profile import JobProfile, read_profile
from dagster_jet.ownership.exports import delete_export, read_exports
from dagster_jet.ownership.liveness import observed
from dagster_jet.ownership.record_keeper import JOB_DIRECTORY, read_record
from dagster_jet.pipeline.pipeline import Pipeline
from dagster_jet.snapshot.export import Export
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.plan import COLUMNS, StageChange, compare_plans
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import ExecutionRecord, SnapshotRef
from dagster_jet.store import Secret, Store, StoreConfig

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from dagster_jet.operators.state_difference import StateDifference

_LOOKS_AT_ONCE = 16


class Jet:
    """Runs pipelines on a store and on Spark. Use it as a context manager, or call `close`.

    Args:
        store: the URLs of the members, for example three ``file://`` folders. Write a URL that
            holds a password as ``Secret(env="NAME")``.
        backup_count: how many replicas each partition has besides the primary, 0 to 6.
        spark: settings of Spark, which all jobs of the process share, and of the session in which
            the jobs of this object run.
        namespace: separates deployments that share a store.
        work_dir: a folder on each executor for the state between snapshots; by default below the
            temporary folder.
        partition_count: how many partitions the keys have; fixed when the store is created.
        encryption_keys: the environment variable with the keys for values at rest, on the driver
            and on every executor; None: nothing is encrypted.
        accept_older_seals: with keys, also read values that are not encrypted, or were encrypted by
            an earlier version. Only while ``dagster-jet store rotate-keys`` is under way.
        show_progress: whoever waits for a job at a terminal sees a line on standard error that says
            how far it is. ``DAGSTER_JET_PROGRESS=off`` in the environment turns it off, too.

    Raises:
        ConfigurationError: a setting is wrong; names it.
        StoreError: the store cannot be opened: too few members answer, or it has other settings.

    Example:
        >>> with Jet(store=["file:///var/jet/a"], backup_count=0) as jet:  # doctest: +SKIP
        ...     jet.run(pipeline, until="drained")
    """

    def __init__(
        self,
        store: Sequence[str | Secret],
        *,
        backup_count: int = 1,
        spark: Mapping[str, str] | None = None,
        namespace: str = "default",
        work_dir: str | Path | None = None,
        partition_count: int = 271,
        encryption_keys: str | None = None,
        accept_older_seals: bool = False,
        show_progress: bool = True,
    ) -> None:
        if isinstance(store, str):
            raise ConfigurationError("store: expected a list of URLs, not a single string.")
        self.store = Store.open(
            StoreConfig(
                urls=tuple(store),
                backup_count=backup_count,
                partition_count=partition_count,
                namespace=namespace,
                encryption_keys=encryption_keys,
                accept_older_seals=accept_older_seals,
            )
        )
        self._spark = dict(spark or {})
        self._namespace = namespace
        # By store: execution ids of two stores say nothing about each other. One folder below a
        # place that others may write to is ours, with all that is in it (`system/scratch.py`).
        own = f"{quote(namespace, safe='')}-{self.store.store_id[:12]}"
        self._work_dir = (
            Path(work_dir).absolute() / own
            if work_dir
            else Path(tempfile.gettempdir()) / f"dagster-jet-{getpass.getuser()}-{own}"
        )
        self._shows_progress = show_progress
        self._jobs: dict[str, PipelineJob] = {}
        self._maps: dict[str, JetMap] = {}

    # --- running --------------------------------------------------------------------------------

    def run(
        self,
        pipeline: Pipeline,
        config: JobConfig | None = None,
        *,
        until: UntilSpec = "drained",
        on_event: Callable[[JobEvent], None] | None = None,
        run_id: str | None = None,
    ) -> JobResult:
        """Runs a pipeline in this process and waits for the end.

        Args:
            pipeline: its name is the job's name.
            config: by default `JobConfig()`.
            until: when the run ends. "drained": all input that was there at the start has been
                read; a terminal snapshot follows, open windows stay in state, and the next run goes
                on from there. "completed": as "drained", then the inputs end: every window is
                closed, and the job is COMPLETED. "stopped": somebody stops it. A duration, such as
                "10 minutes": so much time has passed.
            on_event: called with each event of the job, on its driver thread: it must be fast.
            run_id: written into the record, for example Dagster's run id.

        Raises:
            JetError: what the job ended with. Nothing is half-committed; run again to go on. Also
                as `submit`.

        Example:
            >>> result = jet.run(pipeline, JobConfig(), until="10 minutes")  # doctest: +SKIP
        """
        return self.submit(pipeline, config, until=until, on_event=on_event, run_id=run_id).result()

    def submit(
        self,
        pipeline: Pipeline,
        config: JobConfig | None = None,
        *,
        until: UntilSpec = "stopped",
        on_event: Callable[[JobEvent], None] | None = None,
        run_id: str | None = None,
    ) -> PipelineJob:
        """Starts a pipeline on a driver thread of its own and returns at once.

        Arguments are those of `run`.

        A job that was suspended, failed or died goes on from its last snapshot. A COMPLETED job
        stays completed: the run ends at once and reads nothing, unless it goes back to an
        `initial_snapshot`. If input waits, the event `InputIgnored` and `JobResult.ignored_input`
        say so.

        Raises:
            JobStateError: the job is already running in this process.
            ConfigurationError: a URL of the store has a password in it; `until` cannot be read.
            PipelineError: the pipeline reads or writes nothing.

        Example:
            >>> job = jet.submit(pipeline)  # doctest: +SKIP
            >>> job.suspend()  # doctest: +SKIP
        """
        running = self._jobs.get(pipeline.name)
        if running is not None and not running.done.is_set():
            raise JobStateError(
                "the job is already running in this process.",
                job=pipeline.name,
                cure="Stop it first, or use the job that submit() returned.",
            )
        self.store.config.check_shareable()
        job = PipelineJob(
            name=pipeline.name,
            graph=pipeline.graph,
            config=config or JobConfig(),
            until=parse_until(until),
            store=self.store,
            open_session=self.session,
            work_dir=self._work_dir,
            on_event=on_event,
            run_id=run_id,
            show_progress=self._shows_progress,
        )
        self._jobs[pipeline.name] = job
        job.start()
        return job

    def session(self) -> SparkSession:
        """Returns the Spark session of this object's jobs; starts Spark if it is not running.

        Raises:
            MissingEnvironmentError: Java is missing.
            ConfigurationError: Spark already runs, with settings that do not fit.
        """
        from dagster_jet.spark.cluster.session import open_session

        return open_session(self._spark)

    # --- asking ---------------------------------------------------------------------------------

    def record(self, name: str) -> ExecutionRecord | None:
        """Returns the execution record of a job as it was last written; None if it never ran.

        If the job's process may have died, use `observed`.

        Raises:
            StoreUnavailableError: no majority of the store's members answers.

        Example:
            >>> jet.record("never_ran") is None
            True
        """
        return read_record(self.store, name)

    def snapshots(self, name: str) -> tuple[SnapshotRef, ...]:
        """Returns the retained snapshots of a job, newest first; none for a job that never ran.

        Raises:
            StoreUnavailableError: no majority of the store's members answers.

        Example:
            >>> jet.snapshots("never_ran")
            ()
        """
        record = self.record(name)
        return record.snapshots if record is not None else ()

    def manifest(self, name: str, snapshot_id: int | str | None = None) -> Manifest:
        """Returns the manifest of a retained or exported snapshot: all that it consists of.

        Args:
            name: of the job.
            snapshot_id: by default the newest one; a text is the name of an export of the job.

        Raises:
            JobStateError: there is no such snapshot.
            SnapshotInvalidError: its manifest is missing or damaged.
            StoreUnavailableError: no majority of the store's members answers.
        """
        return find_snapshot(self.store, name, snapshot_id).manifest

    def exports(self) -> tuple[Export, ...]:
        """Returns the exported snapshots of all jobs, by name, also those that are not made yet.

        `Job.export_snapshot` makes them. They stay until `delete_export`.

        Raises:
            StoreUnavailableError: no majority of the store's members answers.

        Example:
            >>> jet.exports()
            ()
        """
        return read_exports(self.store)

    def delete_export(self, name: str) -> None:
        """Deletes an exported snapshot, or one that is being made; jobs that began with it keep
        what they have.

        Raises:
            JobStateError: there is none of this name.
            StoreError: its data could not be removed now; it is garbage, which
                ``dagster-jet store gc`` removes.
        """
        delete_export(self.store, name)

    def plan(
        self, pipeline: Pipeline, *, snapshot: int | str | None = None
    ) -> tuple[StageChange, ...]:
        """Compares a changed pipeline with the state of one of the job's snapshots, or of any
        exported one.

        It changes nothing and starts no job. Before the first snapshot every stage is new. If
        everything else is as before, Spark analyses the pipeline, to compare the columns of states.

        Args:
            pipeline: with the name of the job.
            snapshot: a retained one, or the name of an export of any job, as for
                `JobConfig(initial_snapshot=...)`; None: the newest.

        Returns:
            One change per stage.

        Raises:
            JobStateError: there is no such snapshot.
            SnapshotInvalidError: its manifest is missing or damaged.
            PipelineError: Spark cannot plan the pipeline.

        Example:
            >>> refused = [c for c in jet.plan(pipeline) if c.is_refused]  # doctest: +SKIP
        """
        begun = snapshot is not None or bool(self.snapshots(pipeline.name))
        of_job = None if isinstance(snapshot, str) and not snapshot.isdigit() else pipeline.name
        found = find_snapshot(self.store, of_job, snapshot) if begun else None
        saved = found.manifest.plan if found is not None else {}
        changes = compare_plans(saved, pipeline.graph.plan())
        if any(change.is_refused for change in changes):
            return changes
        if not any(COLUMNS in plan for plan in saved.values()):
            return changes
        return compare_plans(saved, self._analysed(pipeline))

    def guarantees(
        self, pipeline: Pipeline, config: JobConfig | None = None
    ) -> dict[str, Guarantee]:
        """Returns the guarantee that each source and sink would have, by name.

        It is the weaker one of the job's guarantee and the connector's.

        Raises:
            PipelineError: the pipeline reads or writes nothing.

        Example:
            >>> jet.guarantees(pipeline)["out"].value
            'exactly-once'
        """
        return effective_guarantees(pipeline.graph, (config or JobConfig()).guarantee)

    def _analysed(self, pipeline: Pipeline) -> dict[str, Any]:
        """The plan of a pipeline as its start would make it."""
        from dagster_jet.spark.planning.analysis import analyse
        from dagster_jet.spark.runtime import SparkRuntime

        graph, count = on_store(pipeline.graph, self.store), self.store.partition_count
        with closing(SparkRuntime(self.session(), pipeline.name, {}, 1)) as runtime:
            graph = at_start(graph, pipeline.name, on_one_host=runtime.is_local)
            return analyse(runtime, graph, count).stage_plans()

    def read_state(
        self,
        name: str,
        stage: str,
        *,
        snapshot: int | str | None = None,
        as_saved: bool = False,
    ) -> pa.Table | None:
        """Returns the state of a stage as of a snapshot; None if it is empty.

        One row per key, and per window if there are any: the keys, the end of the window or frame,
        the partials. Parts of `aggregates.custom` can only be merged by their code: such a stage
        has several rows per key. Of a source it is the journal of what it has read.

        Args:
            name: of the job.
            stage: its name in the pipeline.
            snapshot: a retained one, or the name of an export of the job; None: the newest.
            as_saved: the rows as the snapshot has them: also expired ones, and several per key that
                add up, or of which the newest version counts.

        Raises:
            JobStateError: there is no such snapshot.
            SnapshotInvalidError: the snapshot has no such stage, or cannot be read whole.

        Example:
            >>> jet.read_state("airport_delays", "hourly_delays", snapshot=41)  # doctest: +SKIP
        """
        return find_snapshot(self.store, name, snapshot).state(stage, as_saved=as_saved)

    def read_state_frame(
        self,
        name: str,
        stage: str,
        *,
        snapshot: int | str | None = None,
        as_saved: bool = False,
    ) -> DataFrame:
        """Returns what `read_state` does as a Spark DataFrame: partitions are read in the tasks.

        The frame is lazy. A job that runs drops retained snapshots: export the one that you want to
        go on reading.

        Args:
            name: of the job.
            stage: its name in the pipeline.
            snapshot: as for `read_state`.
            as_saved: as for `read_state`.

        Raises:
            JobStateError: there is no such snapshot.
            SnapshotInvalidError: the snapshot has no such stage, or its state is empty.
            MissingEnvironmentError: Java is missing.
        """
        from dagster_jet.spark.state_frame import state_frame

        found = find_snapshot(self.store, name, snapshot)
        return state_frame(
            self.session(),
            self.store.handle(),
            found.data.map_name,
            found.manifest,
            stage,
            None if as_saved else dict(found.plan(stage)),
            found.expired_until_ms(stage),
        )

    def diff(
        self, name: str, before: int | str, after: int | str, stage: str | None = None
    ) -> tuple[StateDifference, ...]:
        """Returns what has changed in a job's state from one snapshot to another, by stage.

        All keys of a stage are read on this machine.

        Args:
            name: of the job.
            before: a retained snapshot, or the name of an export of the job.
            after: another one.
            stage: None: every stage that has rows in either; also sources with a journal.

        Raises:
            JobStateError: there is no such snapshot.
            SnapshotInvalidError: there is no such stage, its columns have changed, or a snapshot
                cannot be read whole.

        Example:
            >>> for one in jet.diff("airport_delays", 41, 42):           # doctest: +SKIP
            ...     print(one.stage, one.added.num_rows, one.changed.num_rows)
        """
        first = find_snapshot(self.store, name, before)
        return compare(first, find_snapshot(self.store, name, after), stage)

    def consumed_files(self, name: str, source: str) -> tuple[str, ...]:
        """Returns the files that a source of a job does not need any more: they may be deleted.

        The newest snapshot that is certainly committed contains them. If you may want to go back to
        an older snapshot (`JobConfig(initial_snapshot=...)`), keep them.

        Args:
            name: of the job.
            source: the name of a `sources.files` in the pipeline.

        Returns:
            Absolute paths, sorted, also of files that are already gone. It is empty before the
            first commit, and for sources that read no files.

        Raises:
            SnapshotInvalidError: the snapshot has no such source, or cannot be read whole.

        Example:
            >>> for path in jet.consumed_files("airport_delays", "flights"):
            ...     Path(path).unlink(missing_ok=True)
        """
        committed = next((ref for ref in self.snapshots(name) if ref.committed), None)
        if committed is None:
            return ()
        journal = self.read_state(name, source, snapshot=committed.snapshot_id, as_saved=True)
        if journal is None or "path" not in journal.column_names:
            return ()
        if (
            "read_to" in journal.column_names
        ):  # a file that is read in parts is needed until its end
            journal = journal.filter(journal["read_to"].is_null())
        return tuple(sorted(set(journal["path"].to_pylist())))

    def ledger(self, name: str) -> dict[str, int | None]:
        """Returns the last epoch that is certainly committed, by sink; empty before the first.

        Each sink's own place is asked (the folder, the table's database, the cluster): a sink may
        be behind the others while a commit is being retried, or after its database was put back to
        an old copy. Of a place that cannot say it, or does not answer, it is what the job's record
        knows. None: of no retained snapshot.

        Raises:
            SnapshotInvalidError: a snapshot's manifest is missing or damaged.
            StoreUnavailableError: no majority of the store's members answers.

        Example:
            >>> jet.ledger("never_ran")
            {}
        """
        return {entry.sink: entry.epoch_id for entry in self.ledger_entries(name)}

    def ledger_entries(self, name: str) -> tuple[LedgerEntry, ...]:
        """Returns what `ledger` is made of: also who says so, and what is decided.

        Raises:
            SnapshotInvalidError: a snapshot's manifest is missing or damaged.
            StoreUnavailableError: no majority of the store's members answers.

        Example:
            >>> jet.ledger_entries("never_ran")
            ()
        """
        record = self.record(name)
        return () if record is None else read_ledger(self.store, record)

    def consistent_epoch(self, name: str) -> int | None:
        """Returns the epoch up to which all sinks of a job are committed: their least.

        What readers join over several sinks is one cut up to there. None: nothing is.

        Raises:
            SnapshotInvalidError: a snapshot's manifest is missing or damaged.
            StoreUnavailableError: no majority of the store's members answers.

        Example:
            >>> jet.consistent_epoch("never_ran") is None
            True
        """
        return least_epoch(self.ledger(name).values())

    def profile(self, name: str) -> JobProfile:
        """Returns where the time of a job's last epochs went, phase by phase.

        The job may run in any process, or have ended: its newest execution leaves the profile of
        its last epochs in the store, a few seconds after they have ended.

        Raises:
            JobStateError: no epoch of the job was measured yet.
            StoreUnavailableError: too few members of the store answer.

        Example:
            >>> print(jet.profile("airport_delays").summary)    # doctest: +SKIP
            The largest part of an epoch is building frames on the driver: 41% of the time, ...
        """
        return read_profile(self.store, name)

    def explain(self, name: str) -> Explanation:
        """Returns why nothing comes out of a job, or that something does: most likely cause first.

        The job may run in any process, or not at all: the store says who holds a watermark back and
        since when, what waits, what fails, and how the job is started. A running job reports itself
        every few seconds.

        Raises:
            JobStateError: the job never ran.
            StoreUnavailableError: too few members of the store answer.

        Example:
            >>> for finding in jet.explain("airport_delays").findings:  # doctest: +SKIP
            ...     print(finding.kind.value, finding.text, finding.cure)
        """
        return explain(self.store, self.observed(name), name)

    def jobs(self) -> list[ExecutionRecord]:
        """Returns the records of all jobs that ever ran in this namespace, sorted by name.

        A job whose process has died is NOT_RUNNING here, with the cause `StopCause.LOST`, although
        the record does not say so yet. To find that out may take the time to live of its lease
        (`JobConfig.lease_ttl`). `ExecutionRecord.lease.activity` says what a living execution is
        doing, and since when.

        Raises:
            StoreUnavailableError: too few members of the store answer.

        Example:
            >>> [record.job for record in jet.jobs()]
            []
        """
        names = sorted(key.name for key in self.store.map(JOB_DIRECTORY).keys(""))
        with ThreadPoolExecutor(_LOOKS_AT_ONCE) as looks:  # several may take their time
            records = list(looks.map(self.observed, names))
        return [record for record in records if record is not None]

    def observed(self, name: str) -> ExecutionRecord | None:
        """Returns the record of a job as `jobs` shows it; None if it never ran.

        Raises:
            StoreUnavailableError: no majority of the store's members answers.
        """
        record = self.record(name)
        return None if record is None else observed(self.store, record)

    def job(self, name: str) -> Job:
        """Returns a job of this process, or a handle of a job that another process runs.

        Example:
            >>> jet.job("airport_delays").request_stop(StopKind.SUSPEND)  # doctest: +SKIP
        """
        own = self._jobs.get(name)
        if own is not None and (not own.done.is_set() or own.is_newest):
            return own
        return RemoteJob(self.store, name, show_progress=self._shows_progress)

    def delete_job(self, name: str, *, release_sinks: bool = False) -> JobDeletion:
        """Deletes what a job that does not run keeps in the store: snapshots, notes, staged rows,
        its record. Its output and its exported snapshots stay.

        A crash inside leaves a job that cannot be started; the same call completes it. Afterwards
        a job of this name is a new one.

        Args:
            name: of the job.
            release_sinks: also remove what is staged in the places of its sinks, and the marks that
                say whose these are: the owner of a folder, the last epoch in a database.

        Raises:
            JobStateError: there is no such job, or what it has decided is not committed yet.
            LeaseHeldError: it runs.
            StoreUnavailableError: a member of the store does not answer.

        Example:
            >>> jet.delete_job("airport_delays").entries                 # doctest: +SKIP
            412
        """
        return delete_job(self.store, name, release_sinks=release_sinks)

    def request(self, name: str, kind: StopKind) -> None:
        """Asks the running execution of a job, in any process, to stop; returns at once.

        Args:
            name: of the job.
            kind: how to stop.

        Raises:
            JobStateError: no execution is running, or its process has died.
        """
        RemoteJob(self.store, name).request_stop(kind)

    def map(
        self, name: str, *, format: str | None = None, journal: JournalConfig | None = None
    ) -> JetMap:
        """Opens a map of typed keys and values, shared by all processes that use this store.

        Format and journal are chosen when the map is created, and kept in the store. To open an
        existing map as it is, leave both out. A map that does not exist is created at once if one
        of them is given, and otherwise by its first write, with JSON values and no journal.

        Args:
            name: of the map, in this namespace.
            format: of the values: "json", "arrow", "bytes" or "pickle".
            journal: keep the last changes, for `sources.map_journal`.

        Raises:
            ConfigurationError: the map exists with another format or journal.
            StoreUnavailableError: too few members of the store answer.

        Example:
            >>> prices = jet.map("prices", journal=JournalConfig(capacity=1_000))
            >>> prices.put("AAPL", 1.0)
        """
        opened = self._maps.get(name)
        if opened is None:
            opened = self._maps.setdefault(name, JetMap(self.store, name, None))
        opened.require(format=format, journal=journal)
        return opened

    # --- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stops this process's jobs with a terminal snapshot and closes the store.

        It waits for each job for up to one minute. An execution that has not ended by then is
        later taken over as if it had died.
        """
        for job in self._jobs.values():
            with suppress(JobStateError):  # it has ended
                job.request_stop(StopKind.SHUTDOWN)
        for job in self._jobs.values():
            job.done.wait(60)
        self.store.close()

    def __enter__(self) -> Jet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Jet({json.dumps(self._namespace)}, {self.store.config!r})"

"""The face: a store, a Spark session, and the jobs that run on them."""

from __future__ import annotations

import getpass
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload
from urllib.parse import quote

from dagster_jet.core import DAG
from dagster_jet.engine.config import JobConfig, milliseconds
from dagster_jet.engine.connector import on_store
from dagster_jet.engine.events import JobEvent
from dagster_jet.engine.garbage import dag_snapshots
from dagster_jet.engine.liveness import observed
from dagster_jet.engine.local import LocalJob, LocalResult
from dagster_jet.engine.record_keeper import JOB_DIRECTORY, read_record
from dagster_jet.engine.snapshot_store import SnapshotStore
from dagster_jet.engine.stopping import Until
from dagster_jet.errors import ConfigurationError, JobStateError
from dagster_jet.job import Job, JobResult
from dagster_jet.maps import JetMap, JournalConfig
from dagster_jet.pipeline.durations import to_ms
from dagster_jet.pipeline.pipeline import Pipeline
from dagster_jet.remote_job import RemoteJob
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.plan import COLUMNS, StageChange, compare_plans
from dagster_jet.snapshot.protocol import Guarantee, StopKind
from dagster_jet.snapshot.record import ExecutionRecord, SnapshotRef
from dagster_jet.store import Secret, Store, StoreConfig

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_LOOKS_AT_ONCE = 16

UntilSpec = str | timedelta
"""When a run ends by itself: "drained", "completed", "stopped", or a duration."""

_OF_DAGS = {"guarantee", "snapshot_interval", "parallelism", "max_watermark_retention"}
"""What a DAG's run takes from its configuration."""


class Jet:
    """Runs pipelines. Use it as a context manager, or call `close`.

    Args:
        store: member URLs, for example three ``file://`` folders. One with a password in it is
            named: ``Secret(env="NAME")``.
        backup_count: replicas of every partition besides the primary.
        spark: settings of Spark, which all jobs of the process share, and of the session of our own
            in which they run.
        namespace: separates deployments that share a store.
        work_dir: executor-local scratch for operator state between snapshots.
        partition_count: logical partitions, fixed when the store is created.
        encryption_keys: the environment variable with the keys for values at rest, on the driver
            and on every executor; None: nothing is encrypted.
        accept_older_seals: with keys, read also what is not encrypted, or was encrypted by an
            earlier version: only while ``dagster-jet store rotate-keys`` is under way.

    Example:
        >>> with Jet(store=["file:///var/jet/a"], backup_count=0) as jet:
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
    ) -> None:
        if isinstance(store, str):
            raise ConfigurationError("store: expected a list of URLs, not one text.")
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
        # place that others may write to is ours, with all that is in it (`engine/scratch.py`).
        own = f"{quote(namespace, safe='')}-{self.store.store_id[:12]}"
        self._work_dir = (
            Path(work_dir).absolute() / own
            if work_dir
            else Path(tempfile.gettempdir()) / f"dagster-jet-{getpass.getuser()}-{own}"
        )
        self._jobs: dict[str, Job] = {}
        self._local_jobs: dict[str, LocalJob] = {}
        self._maps: dict[str, JetMap] = {}

    # --- running --------------------------------------------------------------------------------

    @overload
    def run(
        self,
        pipeline: Pipeline,
        config: JobConfig | None = None,
        *,
        until: UntilSpec = "drained",
        on_event: Callable[[JobEvent], None] | None = None,
        run_id: str | None = None,
    ) -> JobResult: ...

    @overload
    def run(self, pipeline: DAG, config: JobConfig | None = None) -> LocalResult: ...

    def run(
        self,
        pipeline: Pipeline | DAG,
        config: JobConfig | None = None,
        *,
        until: UntilSpec = "drained",
        on_event: Callable[[JobEvent], None] | None = None,
        run_id: str | None = None,
    ) -> JobResult | LocalResult:
        """Runs a pipeline in this process and waits for the end.

        A DAG runs without Spark and in memory, for tests and development, until all its processors
        are through; see `submit`.

        Args:
            until: "drained" (all that was there at the start, then a terminal snapshot; open
                windows stay in state and the next run goes on from there), "completed" (the same,
                then the inputs are over: every window is closed and the job is COMPLETED),
                "stopped", or a duration.

        Raises:
            JetError: what the job ended with. Nothing is half-committed; run again to go on.
        """
        if isinstance(pipeline, DAG):
            _refuse_for_dags(pipeline, until=until != "drained", on_event=on_event, run_id=run_id)
            return self.submit(pipeline, config).result()
        return self.submit(pipeline, config, until=until, on_event=on_event, run_id=run_id).result()

    @overload
    def submit(
        self,
        pipeline: Pipeline,
        config: JobConfig | None = None,
        *,
        until: UntilSpec = "stopped",
        on_event: Callable[[JobEvent], None] | None = None,
        run_id: str | None = None,
    ) -> Job: ...

    @overload
    def submit(self, pipeline: DAG, config: JobConfig | None = None) -> LocalJob: ...

    def submit(
        self,
        pipeline: Pipeline | DAG,
        config: JobConfig | None = None,
        *,
        until: UntilSpec = "stopped",
        on_event: Callable[[JobEvent], None] | None = None,
        run_id: str | None = None,
    ) -> Job | LocalJob:
        """Starts a pipeline on a driver thread of its own and returns at once.

        A DAG runs without Spark, for tests and development: it begins at the start, its snapshots
        are in this process's memory, and it has no record, no lease and no Dagster. To go on from a
        snapshot inside this process, make a `LocalJob` with ``restore=``.

        A job that was suspended, failed or died goes on from its last snapshot. A COMPLETED job
        stays completed: the run ends at once and reads nothing, unless it is to go back to an
        `initial_snapshot`. Where input waits it says so (`InputIgnored`,
        `JobResult.ignored_input`).
        """
        if isinstance(pipeline, DAG):
            _refuse_for_dags(pipeline, until=until != "stopped", on_event=on_event, run_id=run_id)
            return self._submit_dag(pipeline, config or JobConfig())
        running = self._jobs.get(pipeline.name)
        if running is not None and not running.done.is_set():
            raise JobStateError(
                "the job is running in this process already.",
                job=pipeline.name,
                cure="Stop it first, or use the job that submit() returned.",
            )
        self.store.config.check_shareable()
        job = Job(
            name=pipeline.name,
            graph=pipeline.graph,
            config=config or JobConfig(),
            until=_until(until),
            store=self.store,
            open_session=self.session,
            work_dir=self._work_dir,
            on_event=on_event,
            run_id=run_id,
        )
        self._jobs[pipeline.name] = job
        return job.start()

    def _submit_dag(self, dag: DAG, config: JobConfig) -> LocalJob:
        running = self._local_jobs.get(dag.name)
        if running is not None and running.is_running:
            raise JobStateError(
                "the job is running in this process already.",
                job=dag.name,
                cure="Cancel it first, or use the job that submit() returned.",
            )
        fields = JobConfig.model_fields.items()
        changed = {name for name, field in fields if getattr(config, name) != field.default}
        _refuse_for_dags(dag, **dict.fromkeys(sorted(changed - _OF_DAGS), True))
        self._refuse_stored(dag)
        has_snapshots = config.guarantee is not Guarantee.NONE
        job = LocalJob(
            dag,
            guarantee=config.guarantee,
            snapshot_interval_ms=milliseconds(config.snapshot_interval) if has_snapshots else None,
            parallelism=config.parallelism or 1,
            max_retention_ms=config.max_watermark_retention_ms,
        )
        self._local_jobs[dag.name] = job
        return job.start()

    def _refuse_stored(self, dag: DAG) -> None:
        """Who runs a DAG under the name of durable work may think that it goes on from there."""
        if self.record(dag.name) is not None:
            raise JobStateError(
                "a pipeline of this name has its record in the store, and a DAG runs in memory.",
                job=dag.name,
                cure="Give the DAG a name of its own.",
            )
        older = dag_snapshots(self.store, dag.name)
        if older.get(older.key("latest")) is not None:
            raise JobStateError(
                "an older version has kept a snapshot of this DAG in the store; this one would not"
                " go on from it, but begin at the start.",
                job=dag.name,
                cure="Let the older version end it, or drop it with 'dagster-jet store gc'.",
            )

    def session(self) -> SparkSession:
        """The Spark session that this object's jobs run in, beside any other of the process.

        Raises:
            MissingEnvironmentError: no Java.
            ConfigurationError: Spark runs already, with settings that do not fit.
        """
        from dagster_jet.engine.spark.session import open_session

        return open_session(self._spark)

    # --- asking ---------------------------------------------------------------------------------

    def record(self, name: str) -> ExecutionRecord | None:
        """The execution record of a job, whoever runs it, as it was written last; None if it never
        ran. See `observed` for a job whose process may have died."""
        return read_record(self.store, name)

    def snapshots(self, name: str) -> tuple[SnapshotRef, ...]:
        """The retained snapshots, newest first."""
        record = self.record(name)
        return record.snapshots if record is not None else ()

    def manifest(self, name: str, snapshot_id: int | None = None) -> Manifest:
        """What a retained snapshot consists of; the newest one by default."""
        for ref in self.snapshots(name):
            if snapshot_id in (None, ref.snapshot_id):
                return SnapshotStore(self.store, name).load(ref)
        known = ", ".join(str(ref.snapshot_id) for ref in self.snapshots(name)) or "none"
        raise JobStateError(
            f"snapshot {snapshot_id} is not retained; there are: {known}."
            if snapshot_id is not None
            else "there is no snapshot yet.",
            job=name,
        )

    def plan(self, pipeline: Pipeline, *, snapshot: int | None = None) -> tuple[StageChange, ...]:
        """What a changed pipeline would do with the state of one of the job's snapshots.

        Changes nothing, starts no job. Before the first snapshot everything is new. The columns of
        states are known to Spark: it is asked where everything else is as before.

        Args:
            snapshot: a retained one, as for `JobConfig(initial_snapshot=...)`; None: the newest.

        Raises:
            JobStateError: it is not retained.
            SnapshotInvalidError: its manifest is missing or damaged.
            PipelineError: Spark cannot plan the pipeline.
        """
        begun = snapshot is not None or bool(self.snapshots(pipeline.name))
        saved = self.manifest(pipeline.name, snapshot).stage_plans() if begun else {}
        changes = compare_plans(saved, pipeline.graph.plan())
        if any(change.is_refused for change in changes):
            return changes
        if not any(COLUMNS in plan for plan in saved.values()):
            return changes
        return compare_plans(saved, self._analysed(pipeline))

    def _analysed(self, pipeline: Pipeline) -> dict[str, Any]:
        """The plan of a pipeline as its start would make it."""
        from dagster_jet.engine.spark.epoch import EpochRunner

        graph, count = on_store(pipeline.graph, self.store), self.store.partition_count
        with closing(EpochRunner(self.session(), pipeline.name, graph, {}, 1, count)) as runner:
            runner.prepare()
            return runner.plan()

    def read_state(self, name: str, stage: str) -> pa.Table | None:
        """State of a stage as of the newest snapshot: keys, window end, partials; None if empty."""
        from dagster_jet.snapshot.chains import read_state

        return read_state(
            self.store.map(f"jobs/{name}/state"),
            self.manifest(name),
            stage,
        )

    def consumed_files(self, name: str, source: str) -> tuple[str, ...]:
        """Files that a source of a job does not need any more: they may be deleted or moved away.

        They are in the newest snapshot that is certainly committed. Keep them for as long as you
        may want to go back to an older one (`JobConfig(initial_snapshot=...)`).

        Args:
            source: its name in the pipeline, of a `sources.files`.

        Returns:
            Absolute paths, sorted, also of files that are gone already; () before the first commit,
            and of sources that read no files.

        Raises:
            SnapshotInvalidError: the snapshot has no such source, or cannot be read whole.
        """
        from dagster_jet.snapshot.chains import read_state

        committed = next((ref for ref in self.snapshots(name) if ref.committed), None)
        if committed is None:
            return ()
        journal = read_state(
            self.store.map(f"jobs/{name}/state"), self.manifest(name, committed.snapshot_id), source
        )
        if journal is None or "path" not in journal.column_names:
            return ()
        return tuple(sorted(set(journal["path"].to_pylist())))

    def ledger(self, name: str) -> dict[str, int | None]:
        """Per sink, the last epoch that is certainly committed; None before the first."""
        refs = self.snapshots(name)
        committed = next((ref for ref in refs if ref.committed), None)
        if committed is None:
            return {}
        manifest = SnapshotStore(self.store, name).load(committed)
        sinks = [v for v in manifest.counters if v not in manifest.shards]
        return dict.fromkeys(sinks, committed.epoch_id)

    def jobs(self) -> list[ExecutionRecord]:
        """The records of all jobs that ever ran in this namespace, by name.

        A job whose process has died is NOT_RUNNING here, with the cause `StopCause.LOST`, although
        nobody has written that down; to be sure may take the time to live of its lease. What a
        living one is at, and since when, is in `ExecutionRecord.lease`: `Lease.activity`.
        """
        names = sorted(key.name for key in self.store.map(JOB_DIRECTORY).keys(""))
        with ThreadPoolExecutor(_LOOKS_AT_ONCE) as looks:  # several may take their time
            records = list(looks.map(self.observed, names))
        return [record for record in records if record is not None]

    def observed(self, name: str) -> ExecutionRecord | None:
        """The record of a job as `jobs` shows it; None if it never ran."""
        record = self.record(name)
        return None if record is None else observed(self.store, record)

    def job(self, name: str) -> Job | RemoteJob:
        """A job of this process, or the remote control of another process's."""
        local = self._jobs.get(name)
        if local is not None and not local.done.is_set():
            return local
        return RemoteJob(self.store, name)

    def request(self, name: str, kind: StopKind) -> int:
        """Asks the running execution of a job, in whatever process, to stop in a certain way."""
        return RemoteJob(self.store, name).request(kind)

    def map(
        self, name: str, *, format: str | None = None, journal: JournalConfig | None = None
    ) -> JetMap:
        """A map of typed keys and values, shared by all processes that use this store.

        Format and journal are chosen when the map is created, and kept in the store: leave them
        out to open a map as it is. A map without either is created by its first write, with JSON
        values and no journal.

        Args:
            name: the map's name in this namespace.
            format: of the values: "json", "arrow", "bytes" or "pickle".
            journal: keep the last changes, for `sources.map_journal`.

        Raises:
            ConfigurationError: the map exists with another format or journal.

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
        """Stops this process's jobs with a terminal snapshot and closes the store."""
        for job in self._jobs.values():
            if not job.done.is_set():
                job.request_stop(StopKind.SHUTDOWN)
        for local in self._local_jobs.values():
            local.shut_down()
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


def _refuse_for_dags(dag: DAG, **given: object) -> None:
    """Raises `ConfigurationError` if any of the settings given is set."""
    wanted = [name for name, value in given.items() if value]
    if wanted:
        raise ConfigurationError(
            f"{', '.join(wanted)}: a DAG runs in this process's memory, for tests and development,"
            " and has no use for that.",
            job=dag.name,
            cure="Leave it out, or write a pipeline: its snapshots are in the store.",
        )


def _until(value: UntilSpec) -> Until:
    fixed: dict[Any, Until] = {
        "drained": Until(input_ends=True, stop=StopKind.SHUTDOWN),
        "completed": Until(input_ends=True, stop=StopKind.COMPLETE),
        "stopped": Until(input_ends=False, stop=None),
    }
    if isinstance(value, str) and value in fixed:
        return fixed[value]
    return Until(input_ends=False, stop=None, duration_s=to_ms(value, "until") / 1000)

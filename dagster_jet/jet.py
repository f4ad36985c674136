"""The face: a store, a Spark session, and the jobs that run on them."""

from __future__ import annotations

import getpass
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from dagster_jet.core.choices import check_kind
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.errors import ConfigurationError, JobStateError
from dagster_jet.execution.events import JobEvent
from dagster_jet.execution.start_connectors import effective_guarantees
from dagster_jet.execution.stopping import UntilSpec, parse_until
from dagster_jet.exports.export import Export
from dagster_jet.exports.export_list import delete_export, read_exports
from dagster_jet.job_config import JobConfig
from dagster_jet.jobs.job import Job, JobResult
from dagster_jet.jobs.job_order import Order
from dagster_jet.jobs.left_open import LeftOpen
from dagster_jet.jobs.pipeline_change import plan_change
from dagster_jet.jobs.pipeline_job import PipelineJob
from dagster_jet.jobs.remote_job import RemoteJob
from dagster_jet.maps import JetMap, JournalConfig
from dagster_jet.ownership.liveness import observed
from dagster_jet.ownership.record_keeper import JOB_DIRECTORY
from dagster_jet.pipeline.pipeline import Pipeline
from dagster_jet.snapshot.adaptation import Adaptation, Plan
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import ExecutionRecord
from dagster_jet.start_options import StartOptions
from dagster_jet.store import Secret, Store, StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        encryption_keys: the keys for values at rest, as ``Secret(env="NAME")`` of an environment
            variable of the driver and of every executor; None: nothing is encrypted.
        accept_unencrypted: with keys, also read values that are not encrypted. Only while
            ``dagster-jet store rotate-keys`` is under way.
        lease_ttl: time for which the owner of a job on another host counts as alive without a sign
            of life. The lease contains it, so every process waits as long as the owner's own
            setting says. This setting and the three that follow are not kept in the store: each
            process uses its own for the jobs that it runs.
        member_timeout: absence after which a running job repairs the store around a member: other
            members take over its data, and it leaves the store. "off": only manual repair. If
            processes differ, the shortest counts.
        scale_up_delay: time without a change of the members after which a running job restarts
            gracefully with the new partition table. "off": it keeps the old table until its next
            start.
        split_brain_protection: start a job only if more than half of the largest number of members
            that it has ever seen are reachable.
        epochs_table: folder of a small Delta Lake table, local or ``s3://``. It names, for each
            sink of Delta Lake and Iceberg that is exactly once, the version with the rows of the
            newest snapshot that all sinks of the job have. None: no such table.
        epochs_storage_options: options of its bucket, as for `sinks.files`.
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
        encryption_keys: Secret | None = None,
        accept_unencrypted: bool = False,
        lease_ttl: timedelta | str = "10 seconds",
        member_timeout: timedelta | str = "1 minute",
        scale_up_delay: timedelta | str = "10 seconds",
        split_brain_protection: bool = False,
        epochs_table: str | None = None,
        epochs_storage_options: Mapping[str, str | Secret] | None = None,
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
                accept_unencrypted=accept_unencrypted,
                lease_ttl=lease_ttl,
                member_timeout=member_timeout,
                scale_up_delay=scale_up_delay,
                split_brain_protection=split_brain_protection,
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
        self._epochs_table = epochs_table
        self._epochs_storage_options = dict(epochs_storage_options or {})
        self._shows_progress = show_progress
        self._jobs: dict[str, PipelineJob] = {}
        self._is_closed = False
        self._left_open = LeftOpen(self._jobs, self.close)
        self._maps: dict[str, JetMap] = {}

    # --- running --------------------------------------------------------------------------------

    def run(
        self,
        pipeline: Pipeline,
        config: JobConfig | None = None,
        *,
        until: UntilSpec = "drained",
        initial_snapshot: int | str | None = None,
        repeat_output: bool = False,
        accept_loss: bool = False,
        refused_to_dead_letters: bool = False,
        dropped_state: Sequence[str] = (),
        renamed: Mapping[str, str] | None = None,
        on_event: Callable[[JobEvent], None] | None = None,
        run_id: str | None = None,
        standby: bool = False,
    ) -> JobResult:
        """Runs a pipeline in this process and waits for the end.

        Args:
            pipeline: its name is the job's name.
            config: by default `JobConfig()`.
            until: when the job ends. "drained": all input that was there at the start has been
                read; a terminal snapshot follows, open windows stay in state, and the next run goes
                on from there. "completed": as "drained", then the inputs end: every window is
                closed, and the job is COMPLETED. "stopped": somebody stops it. A duration, such as
                "10 minutes": so much time has passed since the first epoch could begin. A restart
                inside the run does not begin it anew.
            initial_snapshot: go back to this retained snapshot: later snapshots are dropped and a
                new timeline begins. A text is the name of an exported snapshot, of this job or
                another one: its state, positions and counters are copied and a new timeline begins.
                This happens once: a restart, or another start with the same value, continues from
                the newest snapshot (`InitialSnapshotSkipped` says so). A start without a value in
                between allows the same snapshot again. It is refused if a sink's place has output
                of later epochs: their rows would be written again.
            repeat_output: go back all the same. Files, topics and tables that are appended to then
                have these rows twice.
            accept_loss: continue although a sink has lost staged rows, or input has disappeared.
                The events `OutputLost` and `InputLost` report the loss.
            refused_to_dead_letters: commit an epoch without the rows that a sink refuses, and send
                these to the sink's dead-letter sink. For decided rows that only the outside system
                can refuse; supported by database tables and Kafka topics. The event `OutputRefused`
                reports it.
            dropped_state: stages and sources whose saved state is dropped where the pipeline cannot
                use it: a stage that is gone, or one that begins empty because its state would have
                another meaning. A dropped source is not read any more.
            renamed: stages, sources and sinks that have another name now, as {"former": "present"}:
                they keep their state, positions and folders. `plan` says what a change needs.
            on_event: called with each event of the job, on its driver thread: it must be fast.
            run_id: written into the record, for example Dagster's run id.
            standby: start Spark, run a small sample job that warms it up, and wait until no other
                process has the job. It takes over when the owner dies, or shuts down for another
                process. It ends if the job is completed, failed, suspended or cancelled. Needs
                `until="stopped"` or a duration, which counts from the takeover. On a cluster it has
                executors only from then on.

        Raises:
            JetError: what the job ended with. Nothing is half-committed; run again to go on. Also
                as `submit`.

        Example:
            >>> result = jet.run(pipeline, JobConfig(), until="10 minutes")  # doctest: +SKIP
        """
        return self.submit(
            pipeline,
            config,
            until=until,
            initial_snapshot=initial_snapshot,
            repeat_output=repeat_output,
            accept_loss=accept_loss,
            refused_to_dead_letters=refused_to_dead_letters,
            dropped_state=dropped_state,
            renamed=renamed,
            on_event=on_event,
            run_id=run_id,
            standby=standby,
        ).result()

    def submit(
        self,
        pipeline: Pipeline,
        config: JobConfig | None = None,
        *,
        until: UntilSpec = "stopped",
        initial_snapshot: int | str | None = None,
        repeat_output: bool = False,
        accept_loss: bool = False,
        refused_to_dead_letters: bool = False,
        dropped_state: Sequence[str] = (),
        renamed: Mapping[str, str] | None = None,
        on_event: Callable[[JobEvent], None] | None = None,
        run_id: str | None = None,
        standby: bool = False,
    ) -> PipelineJob:
        """Starts a pipeline on a driver thread of its own and returns at once.

        Arguments are those of `run`.

        A job that was suspended, failed or died goes on from its last snapshot. A COMPLETED job
        stays completed: the call returns at once and reads nothing, unless it goes back to an
        `initial_snapshot`. If input waits, the event `InputIgnored` and `JobResult.ignored_input`
        say so, but for sources in which a look changes something (RabbitMQ, SQS, and changes of
        PostgreSQL).

        Raises:
            JobStateError: the job is already running in this process, or this object is closed.
            ConfigurationError: an argument is of another kind; a URL of the store has a password in
                it; `until` cannot be read; the job's guarantee does not allow an option.
            PipelineError: the pipeline reads or writes nothing.

        Example:
            >>> job = jet.submit(pipeline)  # doctest: +SKIP
            >>> job.suspend()  # doctest: +SKIP
        """
        check_kind("pipeline", pipeline, Pipeline, "Give what Pipeline(name) returned.")
        config = JobConfig() if config is None else config
        check_kind("config", config, JobConfig, "Write JobConfig(...), and until= by name.")
        if self._is_closed:
            raise JobStateError(
                "this Jet is closed.",
                job=pipeline.name,
                cure="Open another one, or run the pipeline inside its `with` block.",
            )
        running = self._jobs.get(pipeline.name)
        if running is not None and not running.done.is_set():
            raise JobStateError(
                "the job is already running in this process.",
                job=pipeline.name,
                cure="Stop it first, or use the job that submit() returned.",
            )
        self.store.config.check_shareable()
        options = StartOptions(
            initial_snapshot,
            repeat_output,
            accept_loss,
            refused_to_dead_letters,
            tuple(dropped_state) if not isinstance(dropped_state, str) else dropped_state,
            dict(renamed or {}),
        )
        options.check(pipeline.name, config.guarantee)
        ends = parse_until(until)
        if standby and ends.input_ends:
            raise ConfigurationError(
                f"standby: a standby waits for a job that does not end by itself, not {until!r}.",
                job=pipeline.name,
                cure='Use until="stopped" or a duration.',
            )
        job = PipelineJob(
            Order(
                job=pipeline.name,
                graph=pipeline.graph,
                config=config,
                options=options,
                until=ends,
                store=self.store,
                work_dir=self._work_dir / pipeline.name,
                spark=self._spark,
                standby=standby,
                epochs_table=self._epochs_table,
                epochs_storage_options=self._epochs_storage_options,
            ),
            self.session,
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
        self,
        pipeline: Pipeline,
        *,
        snapshot: int | str | None = None,
        dropped_state: Sequence[str] = (),
        renamed: Mapping[str, str] | None = None,
    ) -> Plan:
        """Compares a changed pipeline with the state of one of the job's snapshots, or of any
        exported one.

        It changes nothing and starts no job. Before the first snapshot every stage is new. If
        everything else is as before, Spark analyses the pipeline, to compare the columns of states.

        Args:
            pipeline: with the name of the job.
            snapshot: a retained one, or the name of an export of any job, as for
                `initial_snapshot` of `run`; None: the newest.
            dropped_state: as for `run`.
            renamed: as for `run`.

        Returns:
            One change per stage, and the words with which a refused pipeline can start.

        Raises:
            JobStateError: there is no such snapshot.
            SnapshotInvalidError: its manifest is missing or damaged.
            PipelineError: Spark cannot plan the pipeline.
            ConfigurationError: `renamed` names a stage that the pipeline does not have.

        Example:
            >>> refused = [c for c in jet.plan(pipeline) if c.is_refused]  # doctest: +SKIP
        """
        words = Adaptation(dict(renamed or {}), frozenset(dropped_state))
        return plan_change(self.store, self.session, pipeline, snapshot, words)

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

    def jobs(self) -> list[ExecutionRecord]:
        """Returns the records of all jobs that ever ran in this namespace, sorted by name.

        Each is what `Job.record` returns.

        Raises:
            StoreUnavailableError: too few members of the store answer.

        Example:
            >>> [record.job for record in jet.jobs()]
            []
        """
        names = sorted(key.name for key in self.store.map(JOB_DIRECTORY).keys(""))
        with ThreadPoolExecutor(_LOOKS_AT_ONCE) as looks:  # several may take their time
            records = list(looks.map(partial(observed, self.store), names))
        return [record for record in records if record is not None]

    def job(self, name: str) -> Job:
        """Returns the handle of a job: of this process, of another one, or of one that is down.

        It asks the store nothing: a job that never ran has a handle, too, whose `Job.record` is
        None.

        Example:
            >>> jet.job("airport_delays").request_stop(StopKind.SUSPEND)  # doctest: +SKIP
        """
        own = self._jobs.get(name)
        if own is not None and (not own.done.is_set() or own.is_newest):
            return own
        return RemoteJob(self.store, name, self.session, show_progress=self._shows_progress)

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

        It waits for each job for up to one minute. One that has not ended by then goes on draining
        and keeps the store open. If the process ends first, the job is later taken over as if it
        had died. A process that ends without this call does the same at its end.
        """
        if self._is_closed:
            return
        self._is_closed = True
        for job in self._jobs.values():
            with suppress(JobStateError):  # it has ended
                job.request_stop(StopKind.SHUTDOWN)
        ended = [job.done.wait(60) for job in self._jobs.values()]
        if all(ended):
            self.store.close()

    def __enter__(self) -> Jet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._left_open.is_closed()

    def __repr__(self) -> str:
        return f"Jet({json.dumps(self._namespace)}, {self.store.config!r})"

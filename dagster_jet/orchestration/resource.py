"""`JetResource`: configures the store and Spark, and runs a job inside an asset."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import PrivateAttr

from dagster_jet.errors import ConfigurationError, JetError
from dagster_jet.execution.events import StandingBy
from dagster_jet.job_config import JobConfig
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_reports import AssetReports
from dagster_jet.orchestration.defined_pipeline import DefinedPipeline, defined_in
from dagster_jet.orchestration.event_buffer import EventBuffer
from dagster_jet.orchestration.event_iterator import JetEvent, JetEventIterator
from dagster_jet.orchestration.job_watch import JobWatch, as_failure
from dagster_jet.orchestration.materialization import ReportedAsset
from dagster_jet.orchestration.partition_job import (
    PartitionJob,
    launch_of,
    partition_job,
    partition_keys,
)
from dagster_jet.orchestration.report_schedule import ReportSchedule
from dagster_jet.orchestration.reported_assets import asset_reports
from dagster_jet.orchestration.resource_settings import ResourceSettings
from dagster_jet.orchestration.run_config import (
    RunContext,
    Until,
    accepts_old_rows,
    default_until,
    is_anew,
    is_of_stream,
    is_standby,
    op_context,
    proceeds_if_running,
    start_options,
    until_given,
    warn_if_endless,
)
from dagster_jet.orchestration.run_notes import RunNotes
from dagster_jet.orchestration.run_outputs import outputs, reported_again
from dagster_jet.orchestration.store_watch import StoreWatch
from dagster_jet.orchestration.takeover import Takeover
from dagster_jet.pipeline import Pipeline

if TYPE_CHECKING:
    from dagster_jet.core.secret import Secret
    from dagster_jet.jet import Jet
    from dagster_jet.jobs.pipeline_job import PipelineJob
    from dagster_jet.maps import JetMap, JournalConfig


class JetResource(ResourceSettings):
    """Runs streaming pipelines inside Dagster assets.

    Every string may be an ``EnvVar``, which keeps URLs with secrets out of code and UI. Empty job
    settings have the defaults of `JobConfig`; settings passed to `run` override those given here.

    Example:
        .. code-block:: python

            JetResource(
                store=["file:///var/jet/a", "file:///var/jet/b", dg.EnvVar("JET_STORE_C")],
                spark_config={"spark.master": "local[2]"},
            )
    """

    if TYPE_CHECKING:  # in this body: a base class's is not inherited, as in a dataclass

        def __init__(
            self,
            *,
            store: Sequence[str | Secret],
            backup_count: int = ...,
            namespace: str = ...,
            encryption_keys: str | Secret | None = ...,
            accept_unencrypted: bool = ...,
            lease_ttl: str = ...,
            member_timeout: str = ...,
            scale_up_delay: str = ...,
            split_brain_protection: bool = ...,
            work_dir: str | None = ...,
            epochs_table: str | None = ...,
            epochs_storage_options: Mapping[str, str | Secret] = ...,
            spark_config: Mapping[str, Any] = ...,
            guarantee: str | None = ...,
            snapshot_interval: str | None = ...,
            target_epoch_duration: str | None = ...,
            job_config: Mapping[str, Any] = ...,
            min_report_interval_seconds: float = ...,
            max_report_interval_seconds: float = ...,
            drain_budget_seconds: float = ...,
            pyspark: Any = ...,
        ) -> None: ...

    _jet: Jet | None = PrivateAttr(default=None)
    _watches: list[JobWatch] = PrivateAttr(default_factory=list)
    _store_watches: list[StoreWatch] = PrivateAttr(default_factory=list)

    @property
    def jet(self) -> Jet:
        """Entry point of the library, opened at first use; opening it starts no Spark."""
        if self._jet is None:
            from dagster_jet.jet import Jet  # loads Arrow and the store, so not at module level

            self._jet = Jet(
                store=list(self.store),
                **self._store_settings(),
                spark=self._spark_settings(),
                work_dir=self.work_dir,
                epochs_table=self.epochs_table,
                epochs_storage_options=self.epochs_storage_options,
                show_progress=False,
            )
        return self._jet

    def map(
        self, name: str, *, format: str | None = None, journal: JournalConfig | None = None
    ) -> JetMap:
        """Return a map of the store for use in any asset or op; see `Jet.map`."""
        return self.jet.map(name, format=format, journal=journal)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the jobs that Dagster abandoned, then close what was opened.

        After an interrupt or error in its own code, between two events, Dagster drops the step
        without notifying it. Commits of such a job are then reported outside of the run.

        A job that outlives its drain budget keeps the store open: its thread may be inside a Spark
        call. The process is about to end, and the job's lease is released.
        """
        watches, self._watches = self._watches, []
        for store_watch in self._store_watches:
            store_watch.stop()
        for watch in watches:
            for event in watch.end():
                if context.instance is not None:
                    context.instance.report_runless_asset_event(event)
        jet, self._jet = self._jet, None
        if jet is not None and all(watch.job.done.is_set() for watch in watches):
            jet.close()

    def run(
        self,
        *,
        context: RunContext,
        until: Until | None = None,
        pipeline: Pipeline | None = None,
        config: JobConfig | Mapping[str, Any] | None = None,
        initial_snapshot: int | str | None = None,
        repeat_output: bool = False,
        accept_loss: bool = False,
        refused_to_dead_letters: bool = False,
        standby: bool = False,
        if_running: str | None = None,
    ) -> JetEventIterator:
        """Run a pipeline and report on its assets while it runs; ``yield from`` the result.

        The job runs on a separate driver thread. Materializations follow committed snapshots at a
        limited rate, at once after a recovery, and at the end. When the job has ended, each asset
        of which rows are committed yields an output, so that what follows in the run is executed.

        A cancel, an eviction or Ctrl-C triggers a terminal snapshot within `drain_budget_seconds`
        and is re-raised. A user's cancel also pauses the job for the supervisor sensor. Launching
        the job by hand ends the pause.

        If another run already executes the job, this run logs that and ends without reports or
        error, before Spark is started.

        Args:
            context: the asset's or op's context.
            until: "stopped", "drained", "completed" or a duration. The default is the run config's
                value, else "completed" for a partition, "stopped" for a run of a job made by
                `build_jet_job`, otherwise "drained" ("Materialize all", a job of your own).
            pipeline: required only outside of `jet_assets`.
            config: the job's settings, or the fields that override this resource's.
            initial_snapshot: as for `Jet.run`. The default, as below, is the run config's value.
            repeat_output: as for `Jet.run`.
            accept_loss: as for `Jet.run`.
            refused_to_dead_letters: as for `Jet.run`.
            standby: as for `Jet.run`. Not for partitions.
            if_running: what happens in this run behind the assets if another run executes the job:
                "proceed" computes it from the rows committed so far, "skip" leaves it out. The
                default is the run config's value, else "proceed". Partitions always skip.

        Raises:
            dg.Failure: the job ended with an error, there is no pipeline, or a setting is wrong.
        """
        options = {
            "initial_snapshot": initial_snapshot,
            "repeat_output": repeat_output,
            "accept_loss": accept_loss,
            "refused_to_dead_letters": refused_to_dead_letters,
            "standby": standby,
        }
        return JetEventIterator(self._run(context, until, pipeline, config, options, if_running))

    def _run(
        self,
        context: RunContext,
        until: Until | None,
        pipeline: Pipeline | None,
        config: JobConfig | Mapping[str, Any] | None,
        options: Mapping[str, Any],
        if_running: str | None,
    ) -> Generator[JetEvent, None, None]:
        try:
            assets_def = _assets_def(context)
            defined = None if assets_def is None else defined_in(assets_def.metadata_by_key)
            if pipeline is None and defined is not None and defined.of_partition is not None:
                yield from self._run_partition(context, until, defined, config, options)
            else:
                pipeline = pipeline or _pipeline(defined)
                yield from self._run_stream(context, until, pipeline, config, options, if_running)
        except JetError as error:
            raise as_failure(error) from error

    def _run_stream(
        self,
        context: RunContext,
        until: Until | None,
        pipeline: Pipeline,
        config: JobConfig | Mapping[str, Any] | None,
        options: Mapping[str, Any],
        if_running: str | None,
    ) -> Generator[JetEvent, None, None]:
        """Runs the stream's job, launched by a supervisor, a schedule or a user."""
        stands_by = is_standby(context, options)
        definition = pipeline.graph.definition() if stands_by else None
        said = until_given(context, until)  # refused before the run is noted anywhere
        notes = RunNotes(context, self.jet.store, pipeline.name, definition)
        notes.worker({})
        until = default_until(context, pipeline) if said is None else said
        # "Materialize all" does not express an intent for the time after the run.
        wish = None if said is None and not is_of_stream(context, pipeline) else until
        job_config = self._job_config(config)
        if not notes.is_wanted(wish):
            context.log.warning(
                f"{pipeline.name!r} is paused, and nobody has launched it by hand since. Resume "
                f"the job with 'dagster-jet job {pipeline.name} resume', or launch it by hand."
            )
            return

        def started(execution_id: int) -> None:
            notes.execution(execution_id)
            notes.start(wish)
            takeover.begins()

        proceeds = proceeds_if_running(context, if_running)
        warn_if_endless(context, until, pipeline.name)
        reports = asset_reports(pipeline, _assets_def(context), context.instance)
        takeover = Takeover(notes, reports)
        options = {**options, "standby": stands_by}
        was_ours = yield from self._drive(
            *(context, pipeline, until, job_config, options, reports),
            on_started=started,
            on_standby=takeover.stands_by,
            on_cancel=notes.cancel,
        )
        notes.execution(0)
        if was_ours or proceeds:
            is_committed = yield from reported_again(context, self.jet, pipeline, reports)
            known = [a for a in reports.assets if is_committed or a.stage in reports.last]
            yield from outputs(context, known)

    def _run_partition(
        self,
        context: RunContext,
        until: Until | None,
        defined: DefinedPipeline,
        config: JobConfig | Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> Generator[JetEvent, None, None]:
        """Runs the bounded jobs of the run's partitions, one after another, on one Spark.

        They have no intent: only Dagster decides when they run.
        """
        said = until_given(context, until)
        until = "completed" if said is None else said
        job_config, assets, is_whole = self._job_config(config), _assets_def(context), True
        reported: Sequence[ReportedAsset] = ()
        launch = launch_of(context.instance, context.run)
        for key in partition_keys(op_context(context), defined):
            job = partition_job(launch, self.jet, defined, key, anew=is_anew(context))
            job.replace(self.jet, context.log, accept_old_rows=accepts_old_rows(context))
            reports = asset_reports(job.pipeline, assets, context.instance, key, job.attempt)
            done = yield from self._run_one_partition(
                context, until, job, job_config, options, reports
            )
            is_whole, reported = is_whole and done, reports.assets
        if is_whole:
            yield from outputs(context, reported)

    def _run_one_partition(
        self,
        context: RunContext,
        until: Until,
        job: PartitionJob,
        config: JobConfig,
        options: Mapping[str, Any],
        reports: AssetReports,
    ) -> Generator[JetEvent, None, bool]:
        """Runs the job of one partition; returns whether its rows are committed by this run."""
        RunNotes(context, self.jet.store, job.name).worker({keys.TAG_PIPELINE: job.name})
        pipeline = job.pipeline.renamed(job.name)
        if job.is_completed:
            context.log.info(job.why_nothing_to_do())
        elif not (yield from self._drive(context, pipeline, until, config, options, reports)):
            if keys.DAGSTER_BACKFILL in context.run.tags:
                raise dg.Failure(job.why_not_now())  # it would wait for a report for ever
            return False
        return (yield from reported_again(context, self.jet, pipeline, reports, always=True))

    def _drive(
        self,
        context: RunContext,
        pipeline: Pipeline,
        until: Until,
        config: JobConfig,
        options: Mapping[str, Any],
        reports: AssetReports,
        *,
        on_started: Callable[[int], None] = lambda execution_id: None,
        on_standby: Callable[[StandingBy], None] = lambda event: None,
        on_cancel: Callable[[PipelineJob], None] = lambda job: None,
    ) -> Generator[JetEvent, None, bool]:
        """Runs the job and reports on it; returns whether this run had the job."""
        event_buffer = EventBuffer()
        job = self.jet.submit(
            pipeline,
            config,
            until=until,
            **start_options(context, options),
            on_event=event_buffer.put,
            run_id=context.run.run_id,
        )
        store_watch = StoreWatch(self.jet.store)
        watch = JobWatch(
            job=job,
            event_buffer=event_buffer,
            reports=reports,
            schedule=ReportSchedule(
                self.min_report_interval_seconds, self.max_report_interval_seconds
            ),
            log=context.log,
            drain_budget_seconds=self.drain_budget_seconds,
            on_started=on_started,
            on_standby=on_standby,
            on_interrupt=lambda: on_cancel(job),
            is_idle=lambda: job.is_idle,
            warnings=store_watch.take,
        )
        self._watches.append(watch)
        with store_watch:
            self._store_watches.append(store_watch)
            yield from watch.events()
        return not watch.is_anothers


def _pipeline(defined: DefinedPipeline | None) -> Pipeline:
    if defined is not None:
        return defined.pipeline
    raise ConfigurationError(
        "jet.run() does not know which pipeline to run.",
        cure="Define the asset with @jet_assets, or pass pipeline=.",
    )


def _assets_def(context: RunContext) -> dg.AssetsDefinition | None:
    """Returns the assets as they are defined in the end; None in an op."""
    op = op_context(context)
    return op.assets_def if op.has_assets_def else None

"""Schedule of runs that read the available input and end: micro-batches by the clock.

Each run continues exactly where the last one ended, for whatever reason. Between runs the job is
down, and a supervisor does not start it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.execution.stopping import parse_until
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_job import build_jet_job, stream_of
from dagster_jet.orchestration.dagster_name import dagster_name, given_name
from dagster_jet.orchestration.launches import job_tag, waiting_run
from dagster_jet.orchestration.resource import JetResource
from dagster_jet.orchestration.run_config import UNTIL
from dagster_jet.orchestration.tick import jet_of_tick, required_key
from dagster_jet.ownership.supervision import Intent, read_supervision
from dagster_jet.snapshot.record import JobStatus

if TYPE_CHECKING:
    from dagster_jet.jet import Jet


def build_jet_schedule(
    assets: dg.AssetsDefinition,
    *,
    cron_schedule: str,
    until: str = "drained",
    jet: JetResource | str = "jet",
    name: str | None = None,
    execution_timezone: str | None = None,
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
) -> dg.ScheduleDefinition:
    """Return a schedule of runs that read the available input, commit it and end.

    A tick requests nothing and states the reason while a run has the job or waits for it in
    Dagster's queue, or while the job is paused or suspended. The next run reads all later input;
    nothing is skipped or read twice.

    Args:
        assets: the result of `@jet_assets`.
        cron_schedule: cron expression, as for Dagster.
        until: "drained" (the available input was read), or a duration such as "10 minutes".
            "completed" would close all windows, and the next run would read nothing.
        jet: the `JetResource`, or its key in the definitions.
        name: the schedule's name; by default the pipeline's name plus ``_schedule``. Its job is
            named after the pipeline plus ``_drained_job``.
        execution_timezone: time zone of `cron_schedule`; by default UTC.
        default_status: status of the schedule when it is first loaded.

    Raises:
        ConfigurationError: `assets` is not from `jet_assets` or has partitions; `until` is wrong.
    """
    pipeline = stream_of(assets, "a schedule of drained runs")
    parse_until(until)
    base = dagster_name(pipeline.name)
    run_config = {"ops": {assets.op.name: {"config": {UNTIL: until}}}}
    ends = f"Runs the streaming job `{pipeline.name}` until it is {until}."
    job = build_jet_job(
        assets,
        name=f"{base}_drained_job",
        description=ends,
        tags={keys.TAG_KIND: keys.KIND_DRAINED},
    )

    schedule = given_name(name, f"{base}_schedule")

    def tick(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        with jet_of_tick(jet, context) as opened:
            why = why_not_now(opened, pipeline.name)
            tags = {keys.TAG_JOB: job_tag(opened.store, pipeline.name)}
        if why is not None:
            return dg.SkipReason(why)
        instance = _instance_of(context)
        own = {**tags, keys.DAGSTER_SCHEDULE_NAME: schedule}
        waiting = None if instance is None else waiting_run(instance, own)
        if waiting is not None:
            return dg.SkipReason(f"run {waiting} was requested, and will read this, too")
        return dg.RunRequest(run_config=run_config, tags=tags)

    return dg.ScheduleDefinition(
        name=schedule,
        job=job,
        cron_schedule=cron_schedule,
        execution_fn=tick,
        execution_timezone=execution_timezone,
        description=ends,
        default_status=default_status,
        required_resource_keys=required_key(jet),
    )


def why_not_now(jet: Jet, job: str) -> str | None:
    """Return why a tick requests no run of the job; None if it requests one.

    Raises:
        StoreError: the store could not be read; the tick fails.
    """
    supervision = read_supervision(jet.store, job)
    if supervision is not None and supervision.intent is Intent.PAUSED:
        return (
            f"the job is paused; continue with 'dagster-jet job {job} resume' or a launch by hand"
        )
    record = jet.job(job).record()
    if record is None:
        return None
    if record.status.is_live:
        return f"execution {record.execution_id} still runs the job ({record.status.value})"
    if record.status is JobStatus.COMPLETED:
        return "the job is COMPLETED: its inputs have ended"
    resumed = supervision.resumed_execution if supervision is not None else 0
    if record.status is JobStatus.SUSPENDED and resumed < record.execution_id:
        return (
            f"the job is SUSPENDED ({record.failure or 'on request'}); continue with "
            f"'dagster-jet job {job} resume' or a launch by hand"
        )
    return None


def _instance_of(context: dg.ScheduleEvaluationContext) -> dg.DagsterInstance | None:
    """None: a test evaluates the tick, without an instance or with one in memory."""
    try:
        return context.instance
    except dg.DagsterInvariantViolationError:
        return None

"""Supervisor sensor: reads the store, calls `decide`, reserves a generation, requests a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

import dagster as dg

from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.dagster_name import dagster_name, given_name, pipeline_name
from dagster_jet.orchestration.dead_runs import report_dead_runs, report_fenced_run
from dagster_jet.orchestration.launches import Launches
from dagster_jet.orchestration.observed_job import ObservedJob, observe
from dagster_jet.orchestration.outdated import DefinitionCheck, check_definition
from dagster_jet.orchestration.resource import JetResource
from dagster_jet.orchestration.retirement import Follows, Retirement
from dagster_jet.orchestration.run_queue import warn_of_few_slots
from dagster_jet.orchestration.sightings import BootTime, Clock
from dagster_jet.orchestration.standby_decision import StandbyDecision, decide_standby
from dagster_jet.orchestration.supervisor import (
    Decision,
    RestartPolicy,
    Situation,
    Verdict,
    check_settings,
    decide,
)
from dagster_jet.orchestration.tick import JetTickError, jet_of_tick, required_key
from dagster_jet.ownership.lease import wall_clock_ms
from dagster_jet.ownership.supervision import Supervision, reserve_generation
from dagster_jet.pipeline import Pipeline

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )

    from dagster_jet.jet import Jet


_NOBODY_RETIRES = Retirement()


def build_jet_supervisor_sensor(
    *,
    job: dg.JobDefinition | UnresolvedAssetJobDefinition | str,
    pipeline: Pipeline | str,
    jet: JetResource | str = "jet",
    name: str | None = None,
    minimum_interval_seconds: int = 10,
    start_timeout_seconds: float = 180,
    backoff_initial_seconds: float = 10,
    backoff_max_seconds: float = 300,
    give_up_after: int = 8,
    stuck_after_seconds: float = 300,
    max_run_age_seconds: float | None = None,
    follow_definition: Follows = "stages",
    standby: bool = False,
    tags: Mapping[str, str] | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Return a sensor that starts a streaming job and restarts it after a crash.

    The sensor reads the job's lease in the store, not run statuses. On the lease's host a dead
    process is noticed at the next tick; elsewhere when the lease has expired. A run is requested
    under the key ``<job>:<generation>``, after the generation was reserved in the store, so any
    number of sensors, ticks and code locations start only one run.

    After a run with progress (a new snapshot, or a minute of healthy running, with or without
    input) the next run is requested immediately. After runs without progress the pause grows, and
    finally the sensor gives up. A user's cancel of the run that has the job pauses it. A launch by
    hand ends the pause and resets the failure count; meanwhile no other run is requested.

    A run whose process is gone and would never be reported (its code server died too, or the
    machine's Dagster was killed) is reported as failed, so that alerts fire. So is a run on another
    host, or from before a reboot, that has lost the job to another run and has not ended within
    `start_timeout_seconds` since.

    If an execution is alive but has been in one activity for `stuck_after_seconds` (an epoch, a
    commit that is retried, failing snapshots), or if the sensor has given up, its ticks fail, so
    that the sensor is red and alerts on failed ticks go off.

    Args:
        job: the Dagster job to launch (`build_jet_job`), or its name.
        pipeline: the pipeline that it runs, or its name.
        jet: the `JetResource`, or its key in the definitions.
        name: the sensor's name; by default the pipeline's name plus ``_supervisor``.
        minimum_interval_seconds: minimum time between ticks; Dagster's lower limit is about 5.
        start_timeout_seconds: time-out from the request of a run until it holds the lease.
        backoff_initial_seconds: first pause after a run without progress; it doubles.
        backoff_max_seconds: maximum pause.
        give_up_after: number of runs in a row without progress before the sensor gives up.
        stuck_after_seconds: maximum time in one activity; waiting for input does not count.
        max_run_age_seconds: an older run is replaced, after a terminal snapshot. Default: no limit.
        follow_definition: retire the run in the same way when `pipeline` differs from what runs,
            and can continue from the state. "stages": its stages differ in name, kind, edges or
            what their state depends on. "whole": also expressions, connectors, settings or the code
            of functions differ. "off": never. Without retirement, every tick says that an older
            definition runs. No effect if `pipeline` is only a name.
        standby: keep one more run, which stands by with a warm Spark beside the run that has the
            job and takes over when that dies or retires; see `Jet.run`. It holds a slot of the run
            queue. It is requested once the execution has decided a snapshot, again when it was used
            or has died, and anew when `pipeline` differs from its definition. It ends with the job,
            and after this was set to false.
        tags: additional tags of the runs. Without ``dagster/priority`` they leave Dagster's run
            queue before runs of other jobs.
        default_status: status of the sensor when it is first loaded.

    Raises:
        ConfigurationError: the job runs another pipeline, or a setting is wrong.
    """
    streaming_job = pipeline_name(pipeline)
    _check_that_it_runs(job, streaming_job)
    check_settings(
        streaming_job,
        minimum_interval_seconds=minimum_interval_seconds,
        start_timeout_seconds=start_timeout_seconds,
        backoff_initial_seconds=backoff_initial_seconds,
        backoff_max_seconds=backoff_max_seconds,
        give_up_after=give_up_after,
        stuck_after_seconds=stuck_after_seconds,
        max_run_age_seconds=max_run_age_seconds,
    )
    if follow_definition not in get_args(Follows):
        raise ConfigurationError(
            f"follow_definition: expected one of {', '.join(get_args(Follows))}, not "
            f"{follow_definition!r}.",
            job=streaming_job,
        )
    policy = RestartPolicy(
        start_timeout_ms=int(start_timeout_seconds * 1000),
        backoff_initial_ms=int(backoff_initial_seconds * 1000),
        backoff_max_ms=int(backoff_max_seconds * 1000),
        give_up_after=give_up_after,
        stuck_after_ms=int(stuck_after_seconds * 1000),
    )
    retirement = Retirement(
        max_run_age_seconds,
        pipeline if isinstance(pipeline, Pipeline) else None,
        follow_definition,
    )
    launches = Launches(streaming_job, job if isinstance(job, str) else job.name)

    def tick(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        if context.cursor is None:
            warn_of_few_slots(context)
        with jet_of_tick(jet, context) as opened:
            return supervise(
                context,
                opened,
                launches,
                policy,
                tags or {},
                retirement=retirement,
                standby=standby,
            )

    return dg.SensorDefinition(
        name=given_name(name, f"{dagster_name(streaming_job)}_supervisor"),
        evaluation_fn=tick,
        minimum_interval_seconds=minimum_interval_seconds,
        description=f"Keeps the streaming job `{streaming_job}` running.",
        metadata={keys.META_PIPELINE: streaming_job, keys.META_STANDBY: standby},
        default_status=default_status,
        required_resource_keys=required_key(jet),
        **({"job_name": job} if isinstance(job, str) else {"job": job}),
    )


def _check_that_it_runs(
    job: dg.JobDefinition | UnresolvedAssetJobDefinition | str, pipeline: str
) -> None:
    runs = None if isinstance(job, str) else (job.tags or {}).get(keys.TAG_PIPELINE)
    if not isinstance(job, str) and runs not in (None, pipeline):
        raise ConfigurationError(
            f"the Dagster job {job.name!r} runs {runs!r} and not this pipeline, so the sensor "
            "would launch it again and again.",
            job=pipeline,
            cure="Pass the job that build_jet_job made of this pipeline's assets.",
        )


def supervise(
    context: dg.SensorEvaluationContext,
    jet: Jet,
    launches: Launches,
    policy: RestartPolicy,
    tags: Mapping[str, str],
    clock: Clock = BootTime.now,
    retirement: Retirement = _NOBODY_RETIRES,
    standby: bool = False,
) -> dg.SensorResult:
    """Evaluates one tick: report dead runs, observe, decide, reserve, request.

    Raises:
        StoreError: the store could not be read; the tick fails and the next one tries again.
        JetTickError: the job is stuck or was given up, and nothing new was seen. The tick that sees
            it first succeeds, because a failed tick remembers nothing.
    """
    pipeline, launches = launches.pipeline, launches.of(jet.store)
    unended = launches.unended(context.instance)
    deaths = report_dead_runs(context.instance, pipeline, unended)
    for death in deaths.values():
        context.log.warning(f"{pipeline}: {death}")
    alive = unended.without(deaths)
    seen = observe(context, jet, launches, alive, retirement.definition, clock())
    _report_fenced_runs(context, seen, policy)
    decision = decide(seen.situation, policy)
    look, beside = _look_at_execution(
        context, jet, seen, decision, policy, retirement, wants_standby=standby
    )
    text = f"{decision.verdict.value}: {decision.reason}{look.text}{beside.text}"
    sightings = seen.sightings(look.marks)
    if decision.verdict in (Verdict.GIVE_UP, Verdict.STUCK):
        context.log.error(f"{pipeline}: {text}")
        if sightings.may_be_lost(seen.before, seen.now):
            raise JetTickError(f"{pipeline}: {text}")
    cursor = sightings.to_cursor()
    asked = seen.standbys.request(context.instance, jet, beside, retirement.definition, tags)
    if asked is not None:
        context.log.info(f"{pipeline}: {text}")
        return dg.SensorResult(run_requests=[asked], cursor=cursor, asset_events=look.events)
    if not decision.verdict.requests_a_run:
        return dg.SensorResult(skip_reason=text, cursor=cursor, asset_events=look.events)
    reserved = _reserve(context.instance, jet, launches, seen.situation, decision)
    if reserved is None:
        lost = f"wait: another tick or a user was faster ({decision.reason})"
        return dg.SensorResult(skip_reason=lost, cursor=cursor)
    context.log.info(f"{pipeline}: {text}; requesting run {reserved.run_key}")
    return dg.SensorResult(
        run_requests=[_run_request(reserved, launches, tags)],
        cursor=seen.sightings(seen.marks, reserved).to_cursor(),
    )


def _report_fenced_runs(
    context: dg.SensorEvaluationContext, seen: ObservedJob, policy: RestartPolicy
) -> None:
    record = seen.situation.record
    for run, age_ms in seen.fenced.items():
        if record is not None and age_ms >= policy.start_timeout_ms:
            said = report_fenced_run(context.instance, run, record)
            if said is not None:
                context.log.warning(f"{record.job}: {said}")


def _look_at_execution(
    context: dg.SensorEvaluationContext,
    jet: Jet,
    seen: ObservedJob,
    decision: Decision,
    policy: RestartPolicy,
    retirement: Retirement,
    *,
    wants_standby: bool,
) -> tuple[DefinitionCheck, StandbyDecision]:
    """Check the definition of the execution that has the job, and whether it needs a standby."""
    record, beside = seen.situation.record, StandbyDecision("")
    if record is None or decision.verdict not in (Verdict.ADOPT, Verdict.STUCK):
        return DefinitionCheck(marks=tuple(seen.marks)), beside
    is_well = decision.verdict is Verdict.ADOPT
    reason = retirement.reason(jet, context.instance, record)
    if not wants_standby:
        beside = seen.standbys.end(jet)  # before it could take over from a run that retires
    elif is_well and reason[1] is None:
        found = seen.standby_situation(context.instance, record, retirement.definition)
        beside = decide_standby(found, policy)
    look = check_definition(
        context,
        jet,
        retirement,
        record,
        seen.marks,
        is_well=is_well,
        reason=reason,
        standby_comes=beside.is_coming,
    )
    return look, beside


def _reserve(
    instance: dg.DagsterInstance,
    jet: Jet,
    launches: Launches,
    situation: Situation,
    decision: Decision,
) -> Supervision | None:
    record, supervision = situation.record, situation.supervision
    expected = supervision.generation if supervision else 0
    return reserve_generation(
        jet.store,
        launches.pipeline,
        expected,
        requested_at_ms=wall_clock_ms(),
        attempts=decision.attempts,
        execution_id_seen=record.execution_id if record else 0,
        snapshot_id_seen=record.snapshot.snapshot_id if record and record.snapshot else 0,
        healthy_ms_seen=record.healthy_ms if record else 0,
        at_least=launches.unused_number(instance, keys.TAG_GENERATION),
    )


def _run_request(
    reserved: Supervision, launches: Launches, tags: Mapping[str, str]
) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=reserved.run_key,
        tags={
            keys.TAG_PRIORITY: "1",
            keys.TAG_KIND: keys.KIND_STREAM,
            **tags,
            keys.TAG_PIPELINE: reserved.job,
            keys.TAG_JOB: launches.owner,
            keys.TAG_GENERATION: str(reserved.generation),
            keys.TAG_MAX_RUNTIME: "0",
        },
    )

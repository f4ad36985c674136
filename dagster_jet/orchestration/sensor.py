"""The supervisor sensor: reads the store, asks `decide`, reserves a generation, requests a run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import dagster as dg

from dagster_jet.engine.lease import is_owner_alive
from dagster_jet.jet import Jet
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.resource import JetResource
from dagster_jet.orchestration.supervision import (
    Supervision,
    read_supervision,
    reserve_generation,
)
from dagster_jet.orchestration.supervisor import (
    Decision,
    RestartPolicy,
    RunHint,
    Situation,
    Verdict,
    decide,
)
from dagster_jet.pipeline import Pipeline
from dagster_jet.snapshot.record import ExecutionRecord, Lease

Clock: TypeAlias = Callable[[], int]

_RUNS_LOOKED_AT = 500

_PENDING = (
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.MANAGED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
)


@dataclass(frozen=True)
class LeaseSighting:
    """The sensor's cursor: the lease as it was, and since when, on our own clock.

    A lease counts as dead when it has stood still for its time to live while we watched: the
    owner's clock, which may be wrong, is never compared with ours.
    """

    execution_id: int = 0
    renewed_at_ms: int = 0
    seen_at_ms: int = 0

    def after(self, record: ExecutionRecord | None, now_ms: int) -> LeaseSighting:
        """Return the sighting as of now: the same as before if the lease stands still."""
        lease = None if record is None else record.lease
        if record is None or lease is None:
            return LeaseSighting()
        same = (self.execution_id, self.renewed_at_ms) == (record.execution_id, lease.renewed_at_ms)
        if same and self.seen_at_ms <= now_ms:
            return self
        return LeaseSighting(record.execution_id, lease.renewed_at_ms, now_ms)

    def to_cursor(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_cursor(cls, cursor: str | None) -> LeaseSighting:
        """Read a cursor; one that cannot be read means: we have seen nothing yet."""
        try:
            fields = json.loads(cursor or "{}")
            return cls(**{name: int(value) for name, value in fields.items()})
        except (ValueError, TypeError, AttributeError):
            return cls()


def build_jet_supervisor_sensor(
    *,
    job: Any,
    pipeline: Pipeline | str,
    jet: JetResource | str = "jet",
    name: str | None = None,
    minimum_interval_seconds: int = 10,
    start_timeout_seconds: float = 180,
    backoff_initial_seconds: float = 10,
    backoff_max_seconds: float = 300,
    give_up_after: int = 8,
    tags: Mapping[str, str] | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Return a sensor that keeps a streaming job running: starts it, and restarts it when it died.

    It looks at the job's lease in the store, not at run statuses. On the lease's own host a dead
    process is noticed at the next tick; elsewhere when the lease has run out. A run is requested
    under the key ``<job>:<generation>``, and the generation is reserved in the store before:
    any number of sensors, ticks and code locations start one.

    Restarts that brought a new snapshot are followed by another at once; those that did not wait
    longer and longer, and at last the sensor gives up. A user's cancel pauses the job. Launching it
    by hand lifts a pause and forgets the failures.

    Args:
        job: the Dagster job to launch (`build_jet_job`), or its name.
        pipeline: the pipeline it runs, or its name.
        jet: the `JetResource`, or the key it has in the definitions.
        name: the sensor's name; the pipeline's name plus ``_supervisor`` by default.
        minimum_interval_seconds: between ticks; Dagster goes down to about 5.
        start_timeout_seconds: how long a requested run may take to take the lease.
        backoff_initial_seconds: the first pause after a run without progress; doubles.
        backoff_max_seconds: the longest pause.
        give_up_after: runs in a row without a new snapshot.
        tags: further tags of the runs.
        default_status: whether it is on when first loaded.
    """
    pipeline_name = pipeline if isinstance(pipeline, str) else pipeline.name
    policy = RestartPolicy(
        start_timeout_ms=int(start_timeout_seconds * 1000),
        backoff_initial_ms=int(backoff_initial_seconds * 1000),
        backoff_max_ms=int(backoff_max_seconds * 1000),
        give_up_after=give_up_after,
    )

    def tick(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        if isinstance(jet, JetResource):
            with jet.process_config_and_initialize_cm() as resource:
                return supervise(context, resource.jet, pipeline_name, policy, tags or {})
        resource = getattr(context.resources, jet)
        return supervise(context, resource.jet, pipeline_name, policy, tags or {})

    return dg.SensorDefinition(
        name=name or f"{pipeline_name}_supervisor",
        evaluation_fn=tick,
        minimum_interval_seconds=minimum_interval_seconds,
        description=f"Keeps the streaming job `{pipeline_name}` running.",
        default_status=default_status,
        required_resource_keys={jet} if isinstance(jet, str) else None,
        **({"job_name": job} if isinstance(job, str) else {"job": job}),
    )


def supervise(
    context: dg.SensorEvaluationContext,
    jet: Jet,
    pipeline: str,
    policy: RestartPolicy,
    tags: Mapping[str, str],
    clock: Clock = lambda: int(time.time() * 1000),
) -> dg.SensorResult:
    """Do one tick: look, decide, reserve, request.

    Raises:
        StoreError: the store could not be asked; the tick fails and the next one tries again.
    """
    now_ms = clock()
    record = jet.record(pipeline)
    supervision = read_supervision(jet.store, pipeline)
    sighting = LeaseSighting.from_cursor(context.cursor).after(record, now_ms)
    situation = Situation(
        record=record,
        supervision=supervision,
        now_ms=now_ms,
        lease_unchanged_ms=now_ms - sighting.seen_at_ms,
        owner_alive=_owner_alive(record),
        requested_run=_requested_run(context.instance, pipeline, supervision),
    )
    decision = decide(situation, policy)
    cursor = sighting.to_cursor()
    text = f"{decision.verdict.value}: {decision.reason}"
    if decision.verdict is Verdict.GIVE_UP:
        context.log.error(f"{pipeline}: {text}")
    if not decision.verdict.requests_a_run:
        return dg.SensorResult(skip_reason=text, cursor=cursor)
    reserved = _reserve(context.instance, jet, pipeline, situation, decision)
    if reserved is None:
        lost = f"wait: another tick or a user was faster ({decision.reason})"
        return dg.SensorResult(skip_reason=lost, cursor=cursor)
    context.log.info(f"{pipeline}: {text}; requesting run {reserved.run_key}")
    return dg.SensorResult(run_requests=[_run_request(reserved, tags)], cursor=cursor)


def _owner_alive(record: ExecutionRecord | None) -> bool | None:
    lease: Lease | None = None if record is None else record.lease
    return None if lease is None else is_owner_alive(lease)


def _requested_run(
    instance: dg.DagsterInstance, pipeline: str, supervision: Supervision | None
) -> RunHint:
    if supervision is None or supervision.generation == 0:
        return RunHint.ABSENT
    generation = str(supervision.generation)
    found = instance.get_runs(
        dg.RunsFilter(tags={keys.TAG_PIPELINE: pipeline, keys.TAG_GENERATION: generation}), limit=1
    )
    if not found:
        return RunHint.ABSENT
    if found[0].status in _PENDING:
        return RunHint.PENDING
    return RunHint.ENDED if found[0].is_finished else RunHint.STARTED


def _reserve(
    instance: dg.DagsterInstance,
    jet: Jet,
    pipeline: str,
    situation: Situation,
    decision: Decision,
) -> Supervision | None:
    record, supervision = situation.record, situation.supervision
    expected = supervision.generation if supervision else 0
    return reserve_generation(
        jet.store,
        pipeline,
        expected,
        requested_at_ms=situation.now_ms,
        attempts=decision.attempts,
        execution_id_seen=record.execution_id if record else 0,
        snapshot_id_seen=record.snapshot.snapshot_id if record and record.snapshot else 0,
        at_least=_unused_generation(instance, pipeline) if expected == 0 else 1,
    )


def _unused_generation(instance: dg.DagsterInstance, pipeline: str) -> int:
    """Return the first generation Dagster has not seen: a run key is skipped for ever.

    Asked only when the store knows of no generation, which after a new store does not mean that
    there was none.
    """
    newest = instance.get_runs(
        dg.RunsFilter(tags={keys.TAG_PIPELINE: pipeline}), limit=_RUNS_LOOKED_AT
    )
    used = [int(run.tags[keys.TAG_GENERATION]) for run in newest if keys.TAG_GENERATION in run.tags]
    return max(used, default=0) + 1


def _run_request(reserved: Supervision, tags: Mapping[str, str]) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=reserved.run_key,
        tags={
            **tags,
            keys.TAG_PIPELINE: reserved.job,
            keys.TAG_GENERATION: str(reserved.generation),
            keys.TAG_MAX_RUNTIME: "0",
        },
    )

"""The supervisor sensor on a real store and a real Dagster instance; no Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterInstance

from dagster_jet import (
    Jet,
    JetResource,
    Pipeline,
    build_jet_job,
    build_jet_supervisor_sensor,
    jet_assets,
)
from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.launches import Launches
from dagster_jet.orchestration.sensor import supervise
from dagster_jet.orchestration.sightings import BootTime
from dagster_jet.orchestration.supervisor import RestartPolicy
from dagster_jet.orchestration.tick import JetTickError
from dagster_jet.ownership.lease import new_lease
from dagster_jet.ownership.record_keeper import record_register
from dagster_jet.ownership.supervision import (
    Intent,
    read_supervision,
    reserve_generation,
    set_intent,
)
from dagster_jet.snapshot.record import Activity, Doing, ExecutionRecord, JobStatus

from .recorded_job import queued_run

POLICY = RestartPolicy()
LAUNCHES = Launches("shop", "shop_job")
DEAD_PID = 2**22 + 1
"""Process id above the kernel's largest one."""


@pytest.fixture
def resource(tmp_path: Path) -> JetResource:
    return JetResource(store=[f"file://{tmp_path}/store"], backup_count=0)


@pytest.fixture
def jet(tmp_path: Path) -> Iterator[Jet]:
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        yield jet


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def write_record(jet: Jet, record: ExecutionRecord) -> None:
    register = jet.store.register(record_register(record.job))
    register.claim(record.execution_id, "test").write(record.to_bytes())


def tick(
    instance: DagsterInstance, jet: Jet, now_ms: int, cursor: str | None = None
) -> dg.SensorResult:
    with dg.build_sensor_context(instance=instance, cursor=cursor) as context:
        clock = lambda: BootTime("this boot", now_ms)  # noqa: E731
        return supervise(context, jet, LAUNCHES, POLICY, {}, clock=clock)


def requested(result: dg.SensorResult) -> list[str | None]:
    return [request.run_key for request in result.run_requests or []]


def skip_reason(result: dg.SensorResult) -> str:
    assert result.skip_reason is not None
    message = result.skip_reason.skip_message
    assert message is not None
    return message


def test_the_first_tick_starts_the_job_and_the_second_waits_for_it(
    instance: DagsterInstance, jet: Jet
) -> None:
    first = tick(instance, jet, now_ms=1_000)
    assert requested(first) == ["shop:1"]
    (request,) = first.run_requests or []
    assert request.tags["dagster_jet/generation"] == "1"
    assert request.tags["dagster/max_runtime"] == "0"
    assert request.tags["dagster_jet/kind"] == "stream", "for tag_concurrency_limits"
    assert request.tags["dagster/priority"] == "1", "before backfills in the queue"
    second = tick(instance, jet, now_ms=6_000, cursor=first.cursor)
    assert requested(second) == []
    assert "shop:1 was requested 5 s ago" in skip_reason(second)


def test_ticks_at_one_moment_start_one(instance: DagsterInstance, jet: Jet, tmp_path: Path) -> None:
    start, results = threading.Barrier(4), []

    def evaluate() -> None:
        with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as own:
            start.wait()
            results.append(tick(instance, own, now_ms=1_000))

    threads = [threading.Thread(target=evaluate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(key for result in results for key in requested(result)) == ["shop:1"]


def test_a_tick_that_died_after_reserving_costs_a_generation_not_the_job(
    instance: DagsterInstance, jet: Jet
) -> None:
    tick(instance, jet, now_ms=1_000)  # its RunRequest never reaches Dagster
    early = tick(instance, jet, now_ms=5_000)  # nor does its cursor
    assert "not known to Dagster" in skip_reason(early)
    late = 5_000 + POLICY.lost_request_ms
    early = tick(instance, jet, late - 1, early.cursor)
    assert requested(early) == []
    assert requested(tick(instance, jet, late, early.cursor)) == ["shop:2"]


def test_a_dead_process_of_this_host_is_replaced_at_the_next_tick(
    instance: DagsterInstance, jet: Jet
) -> None:
    lease = replace(new_lease("o", 10_000, "run-1"), pid=DEAD_PID)
    write_record(jet, ExecutionRecord("shop", 4, JobStatus.RUNNING, lease=lease))
    assert requested(tick(instance, jet, now_ms=1_000)) == ["shop:1"]
    supervision = read_supervision(jet.store, "shop")
    assert supervision is not None and supervision.execution_id_seen == 4


def test_a_tick_asks_for_runs_four_times(
    instance: DagsterInstance, jet: Jet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query opens a connection on PostgreSQL. It asked 11 times before."""
    first = tick(instance, jet, now_ms=1_000)
    lease = new_lease("o", 10_000, "run-1")
    write_record(jet, ExecutionRecord("shop", 4, JobStatus.RUNNING, lease=lease))
    asked, get_runs = [], instance.get_runs
    monkeypatch.setattr(
        instance, "get_runs", lambda *some, **more: asked.append(some) or get_runs(*some, **more)
    )
    assert skip_reason(tick(instance, jet, 2_000, first.cursor)).startswith("adopt")
    assert len(asked) == 4


def test_a_living_lease_is_adopted_and_named(instance: DagsterInstance, jet: Jet) -> None:
    lease = new_lease("o", 10_000, "run-1")
    write_record(jet, ExecutionRecord("shop", 4, JobStatus.RUNNING, lease=lease))
    reason = skip_reason(tick(instance, jet, now_ms=1_000))
    assert reason.startswith("adopt")
    assert lease.host in reason and str(lease.pid) in reason and "run-1" in reason


def test_a_lease_of_another_host_dies_of_standing_still_while_we_watch(
    instance: DagsterInstance, jet: Jet
) -> None:
    lease = replace(new_lease("o", 10_000, "run-1"), host="elsewhere")
    write_record(jet, ExecutionRecord("shop", 4, JobStatus.RUNNING, lease=lease))
    first = tick(instance, jet, now_ms=100_000)
    assert requested(first) == []
    second = tick(instance, jet, now_ms=109_999, cursor=first.cursor)
    assert requested(second) == []
    third = tick(instance, jet, now_ms=110_000, cursor=second.cursor)
    assert requested(third) == ["shop:1"]


def test_a_lost_cursor_only_costs_time(instance: DagsterInstance, jet: Jet) -> None:
    lease = replace(new_lease("o", 10_000, "run-1"), host="elsewhere")
    write_record(jet, ExecutionRecord("shop", 4, JobStatus.RUNNING, lease=lease))
    assert requested(tick(instance, jet, now_ms=500_000, cursor="garbage")) == []


def test_a_request_of_a_clock_that_was_ahead_a_year_silences_nobody(
    instance: DagsterInstance, jet: Jet
) -> None:
    in_a_year = time.time_ns() // 1_000_000 + 365 * 86_400_000
    reserve_generation(
        jet.store,
        "shop",
        0,
        requested_at_ms=in_a_year,
        attempts=1,
        execution_id_seen=0,
        snapshot_id_seen=0,
    )
    first = tick(instance, jet, now_ms=1_000)
    assert "not known to Dagster" in skip_reason(first)
    second = tick(instance, jet, 1_000 + POLICY.lost_request_ms, first.cursor)
    assert requested(second) == ["shop:2"]


def test_no_second_run_is_requested_beside_a_persons_launch(
    instance: DagsterInstance, jet: Jet
) -> None:
    """The launched run is seconds old and has no lease yet, in whichever way it was launched."""
    launched = instance.create_run_for_job(_job(), tags={})
    first = tick(instance, jet, now_ms=1_000)
    assert f"run {launched.run_id} was launched" in skip_reason(first)
    late = 1_000 + POLICY.start_timeout_ms
    assert requested(tick(instance, jet, late - 1, first.cursor)) == []
    assert requested(tick(instance, jet, late, first.cursor)) == ["shop:1"], "it never came"


def test_the_time_of_a_start_begins_when_the_run_leaves_the_queue(
    instance: DagsterInstance, jet: Jet
) -> None:
    """Failed before: a full queue got one more request every three minutes, then a give up."""
    first = tick(instance, jet, now_ms=1_000)
    (request,) = first.run_requests or []
    tags = {**request.tags, keys.TAG_JOB: f"{jet.store.store_id}/default/shop"}
    run = queued_run(instance, "shop_job", tags)
    queued = tick(instance, jet, 2_000, first.cursor)
    late = 1_000 + 10 * POLICY.start_timeout_ms
    queued = tick(instance, jet, late, queued.cursor)
    assert "is waiting in Dagster's run queue" in skip_reason(queued)
    instance.report_dagster_event(
        dg.DagsterEvent(dg.DagsterEventType.PIPELINE_STARTING.value, run.job_name),
        run_id=run.run_id,
    )
    starting = tick(instance, jet, late + 1_000, queued.cursor)
    assert "was requested 0 s ago and is starting" in skip_reason(starting)
    too_late = late + 1_000 + POLICY.start_timeout_ms
    assert requested(tick(instance, jet, too_late, starting.cursor)) == ["shop:2"]


def test_whatever_runs_the_job_is_seen_and_nothing_of_other_deployments(
    instance: DagsterInstance,
) -> None:
    """Failed before beyond 500 unfinished runs of others, and for another store's pipeline."""
    ours, theirs = "ours/default/shop", "staging/default/shop"
    begun = instance.create_run_for_job(_other_job(), tags={keys.TAG_JOB: ours})
    pending = instance.create_run_for_job(_other_job(), tags={keys.TAG_PIPELINE: "shop"})
    for job in (_job(), _other_job()):
        instance.create_run_for_job(job, tags={keys.TAG_PIPELINE: "shop", keys.TAG_JOB: theirs})
    for _ in range(501):
        instance.create_run_for_job(_other_job(), tags={})
    found = Launches("shop", "shop_job", ours).unended(instance).unfinished
    assert set(found) == {begun.run_id, pending.run_id}


def test_a_run_that_had_the_job_and_died_is_not_waited_for(
    instance: DagsterInstance, jet: Jet
) -> None:
    """After a hard kill Dagster calls it started for days."""
    run = instance.create_run_for_job(_job(), tags={})
    lease = replace(new_lease("o", 10_000, run.run_id), pid=DEAD_PID)
    write_record(jet, ExecutionRecord("shop", 4, JobStatus.RUNNING, lease=lease))
    assert requested(tick(instance, jet, now_ms=1_000)) == ["shop:1"]


def test_a_copy_of_the_requested_run_is_another_run(instance: DagsterInstance, jet: Jet) -> None:
    """'Re-execute' copies the generation: the request has ended, the copy may take the job."""
    first = tick(instance, jet, now_ms=1_000)
    (request,) = first.run_requests or []
    original = instance.create_run_for_job(_job(), tags=dict(request.tags))
    instance.report_run_failed(original)
    copy = instance.create_run_for_job(_job(), tags=dict(request.tags))
    reason = skip_reason(tick(instance, jet, 60_000, first.cursor))
    assert f"run {copy.run_id} was launched" in reason


def test_an_execution_that_gets_nowhere_is_named_with_what_it_is_at(
    instance: DagsterInstance, jet: Jet
) -> None:
    activity = Activity(Doing.COMMITTING, 400_000, "out (/o): No space left on device")
    lease = new_lease("o", 10_000, "run-1", activity)
    write_record(jet, ExecutionRecord("shop", 4, JobStatus.RUNNING, lease=lease))
    reason = skip_reason(tick(instance, jet, now_ms=1_000))
    assert reason.startswith("stuck: execution 4 is RUNNING")
    assert reason.endswith("committing a snapshot for 400 s: out (/o): No space left on device")


def test_stuck_and_given_up_are_failed_ticks(instance: DagsterInstance, jet: Jet) -> None:
    """Failed before: nothing turned red by itself. A failed tick keeps the cursor that it had."""
    activity = Activity(Doing.COMMITTING, 400_000, "No space left on device")
    lease = replace(new_lease("o", 600_000, "run-1", activity), pid_scope="elsewhere")
    record = ExecutionRecord("shop", 4, JobStatus.RUNNING, lease=lease)
    write_record(jet, record)
    cursor = tick(instance, jet, now_ms=0).cursor
    for number, second in enumerate((10, 20, 59), start=1):
        renewed = replace(lease, renewed_at_ms=lease.renewed_at_ms + number)
        write_record(jet, replace(record, execution_id=4, lease=renewed))
        with pytest.raises(JetTickError, match="stuck: execution 4 is RUNNING"):
            tick(instance, jet, 1000 * second, cursor)
    saved = tick(instance, jet, 60_000, cursor).cursor
    assert saved != cursor, "now and then one succeeds, and remembers the lease"
    for second in (70, 659):
        with pytest.raises(JetTickError, match="stuck"):
            tick(instance, jet, 1000 * second, saved)
    assert requested(tick(instance, jet, 660_000, saved)) == ["shop:1"], "its lease has expired"


def test_ticks_of_a_job_that_was_given_up_fail(instance: DagsterInstance, jet: Jet) -> None:
    failed = ExecutionRecord("shop", 4, JobStatus.FAILED, failure="disk full")
    write_record(jet, failed)
    reserve_generation(
        jet.store, "shop", 0, requested_at_ms=0, attempts=POLICY.give_up_after,
        execution_id_seen=4, snapshot_id_seen=0, healthy_ms_seen=0, at_least=1,
    )  # fmt: skip
    late = 10 * POLICY.start_timeout_ms
    first = tick(instance, jet, 0)
    assert skip_reason(first).startswith("wait")
    for _ in range(2):
        with pytest.raises(JetTickError, match="give up: 8 runs in a row"):
            tick(instance, jet, late, first.cursor)


def test_run_keys_that_dagster_has_seen_are_not_used_again(
    instance: DagsterInstance, jet: Jet
) -> None:
    tags = {"dagster_jet/pipeline": "shop", "dagster_jet/generation": "6"}
    instance.report_run_failed(instance.create_run_for_job(_job(), tags=tags))  # of another store
    assert requested(tick(instance, jet, now_ms=1_000)) == ["shop:7"]


def test_a_store_that_is_older_than_dagster_gives_no_number_twice(
    instance: DagsterInstance, jet: Jet
) -> None:
    """Failed before: its next numbers were known to Dagster, which launched nothing, and the
    supervisor gave up. Numbers that a person has written into tags are passed over."""
    reserve_generation(
        jet.store, "shop", 0, requested_at_ms=0, attempts=1,
        execution_id_seen=0, snapshot_id_seen=0, healthy_ms_seen=0, at_least=5,
    )  # fmt: skip
    owner = LAUNCHES.of(jet.store).owner
    for number in ("5", "6", "9", "mine"):
        tags = {keys.TAG_PIPELINE: "shop", keys.TAG_JOB: owner, keys.TAG_GENERATION: number}
        instance.report_run_failed(instance.create_run_for_job(_job(), tags=tags))
    first = tick(instance, jet, now_ms=1_000)
    assert skip_reason(first).startswith("wait")
    assert requested(tick(instance, jet, 20_000, first.cursor)) == ["shop:10"]


def test_a_paused_job_stays_down(instance: DagsterInstance, jet: Jet) -> None:
    set_intent(jet.store, "shop", Intent.PAUSED)
    assert skip_reason(tick(instance, jet, now_ms=1_000)).startswith("wait: paused")


def test_the_built_sensor_asks_for_its_job(
    instance: DagsterInstance, resource: JetResource, pipeline: Pipeline
) -> None:
    sensor = build_jet_supervisor_sensor(
        job="shop_job",
        pipeline=pipeline,
        tags={"team": "sales"},
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    assert (sensor.name, sensor.job_name) == ("shop_supervisor", "shop_job")
    with dg.build_sensor_context(instance=instance, resources={"jet": resource}) as context:
        data = sensor.evaluate_tick(context)
    (request,) = data.run_requests or []
    assert (request.run_key, request.tags["team"]) == ("shop:1", "sales")


def test_the_resource_may_be_given_itself(
    instance: DagsterInstance, resource: JetResource, pipeline: Pipeline
) -> None:
    sensor = build_jet_supervisor_sensor(job=_job(), pipeline=pipeline, jet=resource)
    with dg.build_sensor_context(instance=instance) as context:
        data = sensor.evaluate_tick(context)
    assert [request.run_key for request in data.run_requests or []] == ["shop:1"]


def test_a_key_of_no_resource_is_named(
    instance: DagsterInstance, resource: JetResource, pipeline: Pipeline
) -> None:
    """Failed before: Dagster advised to require `jett` where it was accessed, which it was. It
    loads such definitions."""
    job = _job()
    sensor = build_jet_supervisor_sensor(job=job, pipeline=pipeline, jet="jett")
    definitions = dg.Definitions(jobs=[job], sensors=[sensor], resources={"jet": resource})
    repository = definitions.get_repository_def()
    with (
        dg.build_sensor_context(instance=instance, repository_def=repository) as context,
        pytest.raises(JetTickError, match=r"jet: the definitions have no resource 'jett'"),
    ):
        repository.get_sensor_def(sensor.name).evaluate_tick(context)


def test_a_job_that_runs_another_pipeline_is_refused(pipeline: Pipeline) -> None:
    @jet_assets(pipeline=pipeline)
    def assets():
        yield from ()

    with pytest.raises(ConfigurationError, match="'shop_job' runs 'shop'"):
        build_jet_supervisor_sensor(job=build_jet_job(assets), pipeline="bakery")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"give_up_after": 0}, "give_up_after: expected a number of at least 1, not 0"),
        ({"stuck_after_seconds": 0}, "stuck_after_seconds: expected a number of at least 0.1"),
        ({"max_run_age_seconds": -1}, "max_run_age_seconds: expected a number of at least 0.1"),
        ({"start_timeout_seconds": float("nan")}, "start_timeout_seconds: expected a number"),
        ({"backoff_max_seconds": "1 hour"}, "backoff_max_seconds: expected a number of at least 0"),
        ({"follow_definition": "stage"}, "follow_definition: expected one of off, stages, whole"),
    ],
)
def test_settings_that_no_job_could_satisfy_are_refused(
    pipeline: Pipeline, settings: dict[str, Any], said: str
) -> None:
    """Failed before: a job was given up before its first run, or replaced at every tick."""
    with pytest.raises(ConfigurationError, match=said):
        build_jet_supervisor_sensor(job=_job(), pipeline=pipeline, **settings)


def _other_job() -> dg.JobDefinition:
    @dg.job
    def other_job() -> None: ...

    return other_job


def _job() -> dg.JobDefinition:
    @dg.job
    def shop_job() -> None: ...

    return shop_job

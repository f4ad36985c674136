"""Runs whose processes are gone are reported; all others are left alone. Real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest

from dagster_jet import Jet
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.dead_runs import report_dead_runs
from dagster_jet.orchestration.launches import Launches
from dagster_jet.orchestration.run_notes import RunNotes
from dagster_jet.orchestration.run_worker import RunWorker
from dagster_jet.orchestration.sensor import supervise
from dagster_jet.orchestration.sightings import BootTime
from dagster_jet.orchestration.supervisor import RestartPolicy
from dagster_jet.ownership.lease import new_lease
from dagster_jet.ownership.record_keeper import record_register
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus

LAUNCHES = Launches("shop", "shop_job")
STATUS = dg.DagsterRunStatus


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def add_run(
    instance: dg.DagsterInstance,
    status: dg.DagsterRunStatus = STATUS.STARTED,
    job: str = "shop_job",
) -> str:
    run = dg.DagsterRun(job_name=job, status=status)
    instance.add_run(run)
    return run.run_id


def work_on(instance: dg.DagsterInstance, run_id: str, worker: RunWorker) -> None:
    instance.add_run_tags(run_id, {keys.TAG_WORKER: worker.to_tag()})


def dead_worker(run_id: str) -> RunWorker:
    """A run's worker that is gone: two processes, of which one had started the other."""
    return replace(_dead_worker(), run_id=run_id)


@cache
def _dead_worker() -> RunWorker:
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import subprocess, sys\n"
            "code = 'from dagster_jet.orchestration.run_worker import RunWorker;"
            ' print(RunWorker.here("r").to_tag())\'\n'
            "subprocess.run([sys.executable, '-c', code], check=True)",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    worker = RunWorker.from_tag(said, "r")
    assert worker is not None and worker.parent_pid
    return worker


def report(instance: dg.DagsterInstance) -> list[str]:
    runs = LAUNCHES.unended(instance)
    return list(report_dead_runs(instance, LAUNCHES.pipeline, runs).values())


def status_of(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def test_a_run_whose_processes_are_gone_has_failed(instance: dg.DagsterInstance) -> None:
    run_id = add_run(instance)
    worker = dead_worker(run_id)
    work_on(instance, run_id, worker)
    (told,) = report(instance)
    assert run_id in told and str(worker.pid) in told
    assert status_of(instance, run_id) is STATUS.FAILURE
    assert report(instance) == []


def test_one_that_was_being_cancelled_is_cancelled(instance: dg.DagsterInstance) -> None:
    run_id = add_run(instance, STATUS.CANCELING)
    work_on(instance, run_id, dead_worker(run_id))
    assert len(report(instance)) == 1
    assert status_of(instance, run_id) is STATUS.CANCELED


def test_who_may_live_is_left_alone(instance: dg.DagsterInstance) -> None:
    alive, other_host, other_boot, copied, untold, broken = (add_run(instance) for _ in range(6))
    work_on(instance, alive, RunWorker.here(alive))
    dead = dead_worker(copied)
    work_on(instance, other_host, replace(dead, run_id=other_host, host="elsewhere"))
    work_on(instance, other_boot, replace(dead, run_id=other_boot, scope="an earlier boot"))
    work_on(instance, copied, replace(dead, run_id="the run that this one is a re-execution of"))
    instance.add_run_tags(broken, {keys.TAG_WORKER: '{"pid": 1}'})
    runs = (alive, other_host, other_boot, copied, untold, broken)
    assert report(instance) == []
    assert {status_of(instance, run) for run in runs} == {STATUS.STARTED}


def test_a_step_may_be_done_again_by_the_run_worker_that_started_it(
    instance: dg.DagsterInstance,
) -> None:
    run_id = add_run(instance)
    here = RunWorker.here(run_id)
    step = replace(dead_worker(run_id), parent_pid=here.pid, parent_started=here.started)
    work_on(instance, run_id, step)
    assert report(instance) == []


def test_a_container_whose_first_process_started_it_says_nothing_about_it() -> None:
    assert not replace(RunWorker.here("r"), parent_pid=0).is_gone
    assert replace(dead_worker("r"), parent_pid=0, parent_started=0).is_gone


def test_runs_of_other_jobs_are_not_looked_at(instance: dg.DagsterInstance) -> None:
    run_id = add_run(instance, job="another_job")
    work_on(instance, run_id, dead_worker(run_id))
    assert report(instance) == []
    assert status_of(instance, run_id) is STATUS.STARTED


def test_a_tick_reports_it_and_waits_for_it_no_longer(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """The run died before it had the job: no lease says so. Without the report the supervisor would
    wait for it as for a run that is about to take the job."""
    run_id = add_run(instance)
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:

        def tick() -> dg.SensorResult:
            with dg.build_sensor_context(instance=instance) as context:
                return supervise(context, jet, LAUNCHES, RestartPolicy(), {})

        assert not tick().run_requests
        work_on(instance, run_id, dead_worker(run_id))
        assert [request.run_key for request in tick().run_requests or []] == ["shop:1"]
    assert status_of(instance, run_id) is STATUS.FAILURE


def test_what_a_reboot_has_killed_is_reported_once_another_run_has_the_job(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """The run may only be slow: then it learns of the other run at its next heartbeat, and ends in
    that time."""
    names = ("rebooted", "over", "newer", "successor", "canceling", "staging")
    runs = {
        name: add_run(instance, STATUS.CANCELING if name == "canceling" else STATUS.STARTED)
        for name in names
    }
    # Its lease is the second execution's; what the others have to do with the first one differs.
    executions = {
        "rebooted": 1, "over": 0, "newer": 3, "successor": 1, "canceling": 1, "staging": 1
    }  # fmt: skip
    # A healthy run of a pipeline of the same name in another store; failed before.
    instance.add_run_tags(runs["staging"], {keys.TAG_JOB: "another-store/default/shop"})
    for name, run_id in runs.items():
        worker = replace(RunWorker.here(run_id), execution_id=executions[name])
        work_on(instance, run_id, replace(worker, scope="an earlier boot"))
    here = add_run(instance)
    work_on(instance, here, replace(RunWorker.here(here), execution_id=1))
    policy, cursor = RestartPolicy(start_timeout_ms=60_000), None
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        lease = new_lease("o", 10_000, runs["successor"])
        register = jet.store.register(record_register("shop"))

        def told_at(seconds: int) -> set[str]:
            nonlocal cursor
            clock = lambda: BootTime("this boot", 1000 * seconds)  # noqa: E731
            with dg.build_sensor_context(instance=instance, cursor=cursor) as context:
                cursor = supervise(context, jet, LAUNCHES, policy, {}, clock=clock).cursor
            return {
                name for name, run in runs.items() if status_of(instance, run) is STATUS.FAILURE
            }

        living = ExecutionRecord("shop", 1, JobStatus.RUNNING, lease=lease)
        register.claim(1, "o").write(replace(living, execution_id=1).to_bytes())
        assert told_at(0) == told_at(100) == set(), "it is not fenced: of the same execution"
        register.claim(2, "o").write(replace(living, execution_id=2).to_bytes())
        assert told_at(100) == told_at(159) == set(), "it has the time to find out"
        assert told_at(160) == {"rebooted"}
        assert status_of(instance, runs["canceling"]) is STATUS.CANCELED
        assert told_at(1000) == {"rebooted"}
    assert status_of(instance, here) is STATUS.STARTED, "its process lives, which we can see"


def test_a_run_of_several_pipelines_is_fenced_only_by_the_job_of_its_worker(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """Failed before: "Materialize all" lost the job `shop` to another run, and worked on `sales`
    in its execution 7. It was reported as failed, because `shop` had its execution 50."""
    run_id, other = add_run(instance, job="__ASSET_JOB"), add_run(instance)
    run = instance.get_run_by_id(run_id)
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        context = SimpleNamespace(instance=instance, run=run)
        sales, shop = (RunNotes(context, jet.store, name) for name in ("sales", "shop"))
        lease = new_lease("o", 10_000, other)
        living = ExecutionRecord("shop", 50, JobStatus.RUNNING, lease=lease)
        jet.store.register(record_register("shop")).claim(50, "o").write(living.to_bytes())

        def status_after(seconds: int) -> dg.DagsterRunStatus:
            tag = instance.get_run_by_id(run_id).tags[keys.TAG_WORKER]
            worker = RunWorker.from_tag(tag, run_id)
            work_on(instance, run_id, replace(worker, host="elsewhere"))
            cursor = None
            for at in (0, seconds):
                clock = lambda at=at: BootTime("this boot", 1000 * at)  # noqa: E731
                with dg.build_sensor_context(instance=instance, cursor=cursor) as one:
                    cursor = supervise(one, jet, LAUNCHES, RestartPolicy(), {}, clock=clock).cursor
            return status_of(instance, run_id)

        sales.worker({})
        shop.worker({})
        shop.execution(0)
        sales.execution(7)
        assert status_after(1000) is STATUS.STARTED
        shop.execution(7)
        assert status_after(179) is STATUS.STARTED
        assert status_after(180) is STATUS.FAILURE


def test_a_run_failure_sensor_goes_off(instance: dg.DagsterInstance) -> None:
    """Dagster's own, as a user defines it, evaluated as its daemon does."""
    alerts: list[str] = []

    @dg.run_failure_sensor(monitor_all_code_locations=True)
    def alert(context: dg.RunFailureSensorContext) -> None:
        alerts.append(context.failure_event.message)

    cursor: str | None = None

    def tick() -> None:
        nonlocal cursor
        with dg.build_sensor_context(instance=instance, cursor=cursor) as context:
            cursor = alert.evaluate_tick(context).cursor

    other = add_run(instance)
    failed = instance.get_run_by_id(other)
    assert failed is not None
    instance.report_run_failed(failed, "before the sensor was on")
    tick()
    run_id = add_run(instance)
    worker = dead_worker(run_id)
    work_on(instance, run_id, worker)
    tick()
    assert alerts == [], "nobody has found out"
    assert len(report(instance)) == 1
    for _ in range(3):
        tick()
    (told,) = alerts
    assert f"Process {worker.pid} on {worker.host}" in told and "'shop' has detected this" in told

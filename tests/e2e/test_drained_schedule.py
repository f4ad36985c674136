"""Three drained runs continue one another exactly; a changed definition is noticed. Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dagster as dg

from dagster_jet import (
    Jet,
    Pipeline,
    build_jet_schedule,
    build_jet_source_assets,
    sinks,
    sources,
)
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.launches import Launches
from dagster_jet.orchestration.retirement import Retirement
from dagster_jet.orchestration.run_worker import RunWorker
from dagster_jet.orchestration.sensor import supervise
from dagster_jet.orchestration.supervisor import RestartPolicy
from dagster_jet.ownership.lease import new_lease
from dagster_jet.ownership.supervision import Intent, read_supervision
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, StopCause
from tests.long import long

from .tiny import committed_rows, jet_resource, put_file, tiny, tiny_assets


def scheduled_run(folder: Path, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """Evaluates the schedule and launches the run that it requests, as the daemon does at a
    tick."""
    assets, resources = tiny_assets(folder), {"jet": jet_resource(folder)}
    schedule = build_jet_schedule(assets, cron_schedule="*/15 * * * *")
    definitions = dg.Definitions(
        assets=[assets, *build_jet_source_assets(tiny(folder))],
        schedules=[schedule],
        resources=resources,
    )
    with dg.build_schedule_context(instance=instance, resources=resources) as context:
        (request,) = schedule.evaluate_tick(context).run_requests or []
    assert request.tags["dagster/schedule_name"] == "tiny_schedule"
    job = definitions.resolve_job_def("tiny_drained_job")
    return job.execute_in_process(
        run_config=request.run_config, tags=dict(request.tags), instance=instance
    )


def has_left(instance: dg.DagsterInstance, run_id: str) -> bool:
    """The run has noted that it has nothing to do with the job any more."""
    run = instance.get_run_by_id(run_id)
    assert run is not None
    worker = RunWorker.from_tag(run.tags.get(keys.TAG_WORKER), run_id)
    return worker is not None and worker.execution_id == 0


def follows(jet: Jet, instance: dg.DagsterInstance, record: ExecutionRecord, folder: Path) -> None:
    """Asserts that a running job would retire for another sink, and that a lost stage is an
    obstacle."""
    lives = replace(record, status=JobStatus.RUNNING, lease=new_lease("o", 60_000, None))
    assert Retirement(pipeline=tiny(folder)).reason(jet, instance, lives) == (None, None)
    more = tiny(folder)
    rows = more.read_from(
        sources.files(str(folder / "more"), format="json", schema="v double"), name="more"
    )
    rows.write_to(sinks.files(str(folder / "out"), format="json"), name="more_out")
    why, obstacle = Retirement(pipeline=more).reason(jet, instance, lives)
    assert why is not None and obstacle is None
    less = Pipeline("tiny")
    events = less.read_from(
        sources.files(str(folder / "in"), format="json", schema="k string"), name="events"
    )
    events.write_to(sinks.files(str(folder / "copy"), format="json"), name="copy_out")
    why, obstacle = Retirement(pipeline=less).reason(jet, instance, lives)
    assert why is None and obstacle is not None and "per_hour" in obstacle


@long
def test_three_drained_runs(tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        for number in range(3):
            put_file(tmp_path, number)
            run = scheduled_run(tmp_path, instance)
            assert run.success and has_left(instance, run.run_id), "whatever else the run does"
            assert len(committed_rows(tmp_path / "copy")) == 60 * (number + 1)
            with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
                record = jet.job("tiny").record()
                assert record is not None
                assert (record.status, record.cause) == (JobStatus.NOT_RUNNING, StopCause.SHUTDOWN)
                assert record.execution_id == number + 1
                # What a run has saved is of today's definition.
                assert record.plan_fingerprint == tiny(tmp_path).graph.fingerprint()
                assert record.definition == tiny(tmp_path).graph.definition()
                wanted = read_supervision(jet.store, "tiny")
                assert wanted is not None and wanted.intent is Intent.DRAINED
                with dg.build_sensor_context(instance=instance) as context:
                    result = supervise(
                        context,
                        jet,
                        Launches("tiny", "tiny_job"),
                        RestartPolicy(),
                        {},
                        retirement=Retirement(pipeline=tiny(tmp_path)),
                    )
                assert not result.run_requests, "it stays down in between"
                follows(jet, instance, record, tmp_path)
    rows = sorted(row["v"] for row in committed_rows(tmp_path / "copy"))
    assert rows == sorted(float(v) for v in range(60) for _ in range(3)), "each row once"

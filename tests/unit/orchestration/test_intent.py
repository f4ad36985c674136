"""The intended state of a job, which supervisor, schedule and the UI's form follow. No Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_jet import (
    Jet,
    JetResource,
    Pipeline,
    build_jet_control_job,
    build_jet_schedule,
    jet_assets,
    sinks,
    sources,
)
from dagster_jet.jobs.requests import StopRequest
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.launches import Launches
from dagster_jet.orchestration.retirement import Retirement
from dagster_jet.orchestration.sensor import supervise
from dagster_jet.orchestration.supervisor import RestartPolicy
from dagster_jet.ownership.lease import new_lease
from dagster_jet.ownership.record_keeper import JOB_DIRECTORY, read_record, record_register
from dagster_jet.ownership.supervision import Intent, read_supervision, resume, set_intent
from dagster_jet.snapshot.manifest import Manifest, checksum
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef, StopCause
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore

from .recorded_job import queued_run

LAUNCHES = Launches("shop", "shop_job")
SNAPSHOT = SnapshotRef(5, 5, 4, "manifest/5", 0, 0, 0, committed=True)


@pytest.fixture
def jet(tmp_path: Path) -> Iterator[Jet]:
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        yield jet


@pytest.fixture
def resource(tmp_path: Path) -> JetResource:
    return JetResource(store=[f"file://{tmp_path}/store"], backup_count=0)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def shop(*names: str) -> Pipeline:
    p = Pipeline("shop")
    rows = p.read_from(sources.files("/in", format="json", schema="id long"), name="rows")
    for name in names or ("out",):
        rows.write_to(sinks.files(f"/{name}", format="json"), name=name)
    return p


def shop_assets() -> dg.AssetsDefinition:
    @jet_assets(pipeline=shop())
    def assets(context, jet: JetResource):
        yield from jet.run(context=context)

    return assets


def run_shop(
    instance: dg.DagsterInstance, resource: JetResource, **more: Any
) -> dg.ExecuteInProcessResult:
    return dg.materialize([shop_assets()], instance=instance, resources={"jet": resource}, **more)


def write(jet: Jet, record: ExecutionRecord) -> None:
    register = jet.store.register(record_register(record.job))
    register.claim(record.execution_id, "test").write(record.to_bytes())


def tick(
    instance: dg.DagsterInstance, jet: Jet, retirement: Retirement | None = None
) -> tuple[list[str | None], str]:
    """Run keys requested, and what was said."""
    with dg.build_sensor_context(instance=instance) as context:
        result = supervise(
            context, jet, LAUNCHES, RestartPolicy(), {}, retirement=retirement or Retirement()
        )
    said = result.skip_reason.skip_message if result.skip_reason else None
    return [request.run_key for request in result.run_requests or []], said or ""


# --- the supervisor -------------------------------------------------------------------------------


def test_a_drained_job_stays_down(instance: dg.DagsterInstance, jet: Jet) -> None:
    down = ExecutionRecord("shop", 4, JobStatus.NOT_RUNNING, cause=StopCause.SHUTDOWN)
    write(jet, down)
    set_intent(jet.store, "shop", Intent.DRAINED)
    requested, said = tick(instance, jet)
    assert not requested and "launches the next one" in said
    set_intent(jet.store, "shop", Intent.ALWAYS_ON)
    assert tick(instance, jet)[0] == ["shop:1"]


def test_a_suspended_job_starts_when_it_is_resumed_and_not_before(
    instance: dg.DagsterInstance, jet: Jet
) -> None:
    failed = ExecutionRecord(
        "shop", 4, JobStatus.SUSPENDED, cause=StopCause.ERROR, failure="disk full"
    )
    write(jet, failed)
    set_intent(jet.store, "shop", Intent.ALWAYS_ON)
    requested, said = tick(instance, jet)
    assert not requested and "SUSPENDED (disk full)" in said and "resume" in said
    resume(jet.store, "shop", 3)
    assert not tick(instance, jet)[0], "what was resumed was an earlier one"
    resume(jet.store, "shop", 4)
    assert tick(instance, jet)[0] == ["shop:1"]


# --- the schedule ---------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance that a schedule can open."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def schedule_tick(resource: JetResource, instance: dg.DagsterInstance) -> dg.RunRequest | str:
    schedule = build_jet_schedule(shop_assets(), cron_schedule="*/5 * * * *", jet=resource)
    with dg.build_schedule_context(instance=instance) as context:
        data = schedule.evaluate_tick(context)
    if data.run_requests:
        (request,) = data.run_requests
        return request
    assert data.skip_message is not None
    return data.skip_message


def test_a_tick_requests_a_run_that_ends_by_itself(
    saved: dg.DagsterInstance, resource: JetResource
) -> None:
    request = schedule_tick(resource, saved)
    assert isinstance(request, dg.RunRequest)
    assert request.run_config == {"ops": {"shop": {"config": {"until": "drained"}}}}


def test_the_schedule_and_its_job_are_definitions_that_load(resource: JetResource) -> None:
    assets = shop_assets()
    schedule = build_jet_schedule(assets, cron_schedule="0 * * * *")
    definitions = dg.Definitions(
        assets=[assets],
        schedules=[schedule],
        jobs=[build_jet_control_job("shop")],
        resources={"jet": resource},
    )
    assert definitions.resolve_job_def("shop_drained_job").name == "shop_drained_job"
    assert definitions.resolve_schedule_def("shop_schedule").cron_schedule == "0 * * * *"


@pytest.mark.parametrize(
    ("record", "intent", "said"),
    [
        (ExecutionRecord("shop", 4, JobStatus.NOT_RUNNING), Intent.PAUSED, "paused"),
        (ExecutionRecord("shop", 4, JobStatus.SUSPENDED), Intent.DRAINED, "SUSPENDED (on request)"),
        (ExecutionRecord("shop", 4, JobStatus.COMPLETED), Intent.DRAINED, "COMPLETED"),
        (
            ExecutionRecord("shop", 4, JobStatus.RUNNING),
            Intent.DRAINED,
            "execution 4 still runs the job",
        ),
    ],
)
def test_a_tick_that_requests_nothing_says_why(
    saved: dg.DagsterInstance,
    jet: Jet,
    resource: JetResource,
    record: ExecutionRecord,
    intent: Intent,
    said: str,
) -> None:
    if record.status.is_live:
        record = replace(record, lease=new_lease("o", 60_000, None))  # now, not at collection
    write(jet, record)
    set_intent(jet.store, "shop", intent)
    found = schedule_tick(resource, saved)
    assert isinstance(found, str) and said in found


def test_a_run_that_died_is_followed_by_the_next(
    saved: dg.DagsterInstance, jet: Jet, resource: JetResource
) -> None:
    dead = ExecutionRecord("shop", 4, JobStatus.FAILED, cause=StopCause.ERROR, failure="broken")
    write(jet, dead)
    assert isinstance(schedule_tick(resource, saved), dg.RunRequest)


def test_while_a_scheduled_run_waits_in_the_queue_no_other_is_requested(
    saved: dg.DagsterInstance, jet: Jet, resource: JetResource
) -> None:
    """Failed before: each tick requested another one."""
    request = schedule_tick(resource, saved)
    assert isinstance(request, dg.RunRequest)

    @dg.job(name="shop_drained_job")
    def job() -> None: ...

    others = {**request.tags, keys.TAG_JOB: "another-store/default/shop"}
    queued_run(saved, "shop_drained_job", others)
    saved.create_run_for_job(job, tags=request.tags)
    assert isinstance(schedule_tick(resource, saved), dg.RunRequest), "else it is never submitted"
    queued = queued_run(saved, "shop_drained_job", request.tags)
    assert schedule_tick(resource, saved) == (
        f"run {queued.run_id} was requested, and will read this, too"
    )
    saved.report_run_failed(queued)
    assert isinstance(schedule_tick(resource, saved), dg.RunRequest)


def test_a_scheduled_run_does_not_lift_a_pause(
    instance: dg.DagsterInstance, jet: Jet, resource: JetResource
) -> None:
    """The run was requested a moment before the pause."""
    set_intent(jet.store, "shop", Intent.PAUSED)
    result = run_shop(instance, resource, tags={"dagster/schedule_name": "shop_schedule"})
    assert result.success and not result.get_asset_materialization_events()
    supervision = read_supervision(jet.store, "shop")
    assert supervision is not None and supervision.intent is Intent.PAUSED
    assert jet.job("shop").record() is None, "nothing was started"


@pytest.mark.parametrize("until", ["", "soon"])
def test_a_run_that_does_not_say_when_it_ends_is_refused_before_it_is_noted(
    instance: dg.DagsterInstance, jet: Jet, resource: JetResource, until: str
) -> None:
    """An empty word counted as none before; another wrong one lifted a pause."""
    set_intent(jet.store, "shop", Intent.PAUSED)
    run_config = {"ops": {"shop": {"config": {"until": until}}}}
    result = run_shop(instance, resource, run_config=run_config, raise_on_error=False)
    assert f"until: {until!r} is neither" in failure(result)
    supervision = read_supervision(jet.store, "shop")
    assert supervision is not None and supervision.intent is Intent.PAUSED


# --- the form in the UI ---------------------------------------------------------------------------


def ask(resource: JetResource, action: str, **form: object) -> dg.ExecuteInProcessResult:
    config = {"action": action, "wait_seconds": 1.0, **form}
    return build_jet_control_job("shop").execute_in_process(
        resources={"jet": resource},
        run_config={"ops": {"ask_shop": {"config": config}}},
        raise_on_error=False,
    )


def test_partitions_are_deleted_from_the_launchpad(
    instance: dg.DagsterInstance, jet: Jet, resource: JetResource
) -> None:
    directory = jet.store.map(JOB_DIRECTORY)
    names = ("shop", "shop@2024-01-01", "shop@2024-01-01@2-0badcafe", "shop@2024-01-02")
    for name in names:
        directory.put_all({directory.key(name): b""})
        write(jet, ExecutionRecord(name, 4, JobStatus.COMPLETED))
        map = jet.store.map(f"jobs/{name}/state")
        map.put_all({map.key("k"): b"v"})
    assert ask(resource, "delete", partitions=["2024-01-01", "2024-01-01"]).success
    assert [record.job for record in jet.jobs()] == ["shop", "shop@2024-01-02"]
    assert jet.store.map_names("jobs/") == ["jobs/shop/state", "jobs/shop@2024-01-02/state"]
    assert ask(resource, "delete").success
    assert [record.job for record in jet.jobs()] == ["shop@2024-01-02"]
    assert not ask(resource, "delete").success, "there is none any more"


KILLED = """
import sys
from dagster_jet.jobs.deletion import delete_job
from dagster_jet.store import Store, StoreConfig
with Store.open(StoreConfig((sys.argv[1],), backup_count=0)) as store:
    delete_job(store, "shop@2024-01-01", release_sinks=False)
"""


@pytest.mark.parametrize(
    "names", [("shop@2024-01-01",), ("shop@2024-01-01", "shop@2024-01-01@2-x")]
)
def test_a_deletion_of_a_partition_that_was_killed_is_finished_by_the_next(
    jet: Jet, resource: JetResource, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Failed before: the job was not listed any more, and no run could compute the partition."""
    directory = jet.store.map(JOB_DIRECTORY)
    for name in names:
        directory.put_all({directory.key(name): b""})
        write(jet, ExecutionRecord(name, 4, JobStatus.COMPLETED))
    died = subprocess.run(
        [sys.executable, "-c", KILLED, f"file://{tmp_path}/store"],
        env={**os.environ, "JET_FAIL_POINTS": "delete.unlisted=kill"},
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    record = read_record(jet.store, names[0])
    assert record is not None and record.cause is StopCause.DELETE
    assert ask(resource, "delete", partitions=["2024-01-01"]).success
    assert all(read_record(jet.store, name) is None for name in names) and not jet.jobs()
    assert "no job of partition" in failure(ask(resource, "delete", partitions=["2024-01-01"]))


def failure(result: dg.ExecuteInProcessResult) -> str:
    """Text that the UI shows first for the failed step."""
    (failed,) = result.filter_events(lambda event: event.is_step_failure)
    said = failed.step_failure_data.user_failure_data
    assert said is not None and said.description is not None
    return said.description


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["2024-01-01", "2024-01-09"], "no job of partition '2024-01-09' exists"),
        ([], "partitions: it is empty"),
    ],
)
def test_partitions_without_a_job_are_an_error_that_names_those_with_one(
    jet: Jet, resource: JetResource, keys: list[str], said: str
) -> None:
    directory = jet.store.map(JOB_DIRECTORY)
    names = {"shop", "shop@2024-01-01", "shop@2024-01-01@2-0badcafe", "shop@2024-01-02", "shops@x"}
    for name in names:
        directory.put_all({directory.key(name): b""})
        write(jet, ExecutionRecord(name, 4, JobStatus.COMPLETED))
    found = failure(ask(resource, "delete", partitions=keys))
    assert said in found, "was green before, and deleted nothing"
    assert "There are jobs of the partitions: '2024-01-01', '2024-01-02'." in found
    assert {record.job for record in jet.jobs()} == names


def test_suspended_and_resumed_from_the_launchpad(
    instance: dg.DagsterInstance, jet: Jet, resource: JetResource
) -> None:
    write(jet, ExecutionRecord("shop", 4, JobStatus.NOT_RUNNING))
    assert ask(resource, "suspend").success
    assert "paused" in tick(instance, jet)[1]
    assert ask(resource, "resume").success
    assert tick(instance, jet)[0] == ["shop:1"]


@pytest.mark.parametrize("action", ["suspend", "cancel", "complete", "export", "cancel_and_export"])
def test_zero_seconds_do_not_wait(jet: Jet, resource: JetResource, action: str) -> None:
    write(jet, running())
    result = ask(resource, action, wait_seconds=0.0, export_name="kept")
    assert result.success, "failed before with suspend and the exports: the job is still RUNNING"
    assert asked_for(jet) or [export.name for export in jet.exports()] == ["kept"]
    if action == "cancel":  # nothing answers: a time to wait that has passed is an error
        assert "'shop' is still RUNNING" in failure(ask(resource, action, wait_seconds=0.01))


def test_what_makes_no_sense_is_one_sentence(jet: Jet, resource: JetResource) -> None:
    write(jet, ExecutionRecord("shop", 4, JobStatus.COMPLETED))
    assert "cannot cancel: the job is COMPLETED" in failure(ask(resource, "cancel"))


def test_an_export_from_the_launchpad(jet: Jet, resource: JetResource) -> None:
    manifest = Manifest("shop", 7, 9, 4, 1, "", 271, {}, {}, {}, ())
    SnapshotStore(jet.store, "shop").write(manifest)
    digest = checksum(manifest.to_bytes())
    ref = SnapshotRef(7, 9, 4, manifest.name, digest, 0, 0, committed=True)
    write(jet, ExecutionRecord("shop", 4, JobStatus.SUSPENDED, snapshots=(ref,)))
    assert not ask(resource, "export").success, "it needs a name"
    assert ask(resource, "export", export_name="before-upgrade").success
    (export,) = jet.exports()
    assert (export.name, export.snapshot_id, export.is_done) == ("before-upgrade", 7, True)
    assert jet.job("shop").manifest("before-upgrade") == manifest


# --- retirement -----------------------------------------------------------------------------------


def running(
    run_id: str | None = None, fingerprint: str = "", definition: str = "", execution_id: int = 4
) -> ExecutionRecord:
    return ExecutionRecord(
        "shop",
        execution_id,
        JobStatus.RUNNING,
        lease=new_lease("o", 60_000, run_id),
        snapshots=(replace(SNAPSHOT, execution_id=execution_id),),
        plan_fingerprint=fingerprint,
        definition=definition,
    )


def asked_for(jet: Jet) -> StopKind | None:
    value = jet.store.register("jobs/shop/request").read()
    return None if value is None else StopRequest.from_bytes(value.value).kind


def test_a_run_that_is_too_old_is_asked_to_end(instance: dg.DagsterInstance, jet: Jet) -> None:
    @dg.job
    def shop_job() -> None: ...

    run = instance.create_run_for_job(shop_job)
    started = dg.DagsterEvent(
        event_type_value=dg.DagsterEventType.RUN_START.value, job_name="shop_job"
    )
    instance.report_dagster_event(started, run_id=run.run_id)
    write(jet, running(run.run_id))
    time.sleep(0.05)
    assert asked_for(jet) is None
    assert tick(instance, jet, Retirement(max_age_seconds=3_600))[0] == []
    assert asked_for(jet) is None, "it is young"
    requested, said = tick(instance, jet, Retirement(max_age_seconds=0.01))
    assert not requested and "so that the next run can start" in said
    assert asked_for(jet) is StopKind.SHUTDOWN


def test_one_with_the_definition_of_today_goes_on(instance: dg.DagsterInstance, jet: Jet) -> None:
    pipeline = shop()
    write(jet, running(fingerprint=pipeline.graph.fingerprint()))
    tick(instance, jet, Retirement(pipeline=pipeline))
    assert asked_for(jet) is None


class Ticks:
    """Ticks of one sensor, which remembers things between them."""

    def __init__(self, instance: dg.DagsterInstance, jet: Jet, retirement: Retirement) -> None:
        self.instance, self.jet, self.retirement = instance, jet, retirement
        self.cursor: str | None = None

    def __call__(self) -> tuple[str, list[dg.AssetKey]]:
        """Returns the tick's message, and the assets for which it was noted."""
        repository = dg.Definitions(
            assets=[shop_assets()],
            resources={"jet": JetResource(store=["file:///s"], backup_count=0)},
        ).get_repository_def()
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, repository_def=repository
        ) as context:
            result = supervise(
                context, self.jet, LAUNCHES, RestartPolicy(), {}, retirement=self.retirement
            )
        self.cursor = result.cursor
        assert result.skip_reason is not None and result.skip_reason.skip_message is not None
        return result.skip_reason.skip_message, [e.asset_key for e in result.asset_events]


def older(pipeline: Pipeline, execution_id: int = 4) -> ExecutionRecord:
    """Runs the same stages with another filter, sink path or function."""
    return running(
        fingerprint=pipeline.graph.fingerprint(), definition="older", execution_id=execution_id
    )


def test_an_older_definition_that_runs_on_is_named_and_noted_once(
    instance: dg.DagsterInstance, jet: Jet
) -> None:
    """Failed before: it was shown as the new one, running and fresh."""
    pipeline = shop()
    ticks = Ticks(instance, jet, Retirement(pipeline=pipeline))
    write(jet, running(definition=pipeline.graph.definition()))
    said, noted = ticks()
    assert said.startswith("adopt") and "definition" not in said and not noted
    write(jet, older(pipeline, 5))
    said, noted = ticks()
    assert "it runs an older definition" in said and 'follow_definition="whole"' in said
    assert noted == [dg.AssetKey(["shop", "out"])]
    assert ticks() == (said, []), "once: Dagster keeps it for ever"
    assert asked_for(jet) is None, "it is left alone"


def test_the_supervisor_follows_the_whole_definition_where_it_is_told_to(
    instance: dg.DagsterInstance, jet: Jet
) -> None:
    pipeline = shop()
    write(jet, older(pipeline))
    ticks = Ticks(instance, jet, Retirement(pipeline=pipeline, follows="whole"))
    assert "the run was asked to end" in ticks()[0]
    assert asked_for(jet) is StopKind.SHUTDOWN
    assert "the run was asked to end" in ticks()[0], "until it has ended"
    # The next run's process has loaded newer files than this code location, or older ones.
    write(jet, older(pipeline, 5))
    said, _ = ticks()
    assert "Reload the definitions" in said, "else they would restart it for ever"


def test_a_definition_that_is_not_known_is_not_an_older_one(
    instance: dg.DagsterInstance, jet: Jet
) -> None:
    write(jet, running(definition=""))
    ticks = Ticks(instance, jet, Retirement(pipeline=shop(), follows="whole"))
    said, noted = ticks()
    assert "definition" not in said and not noted and asked_for(jet) is None


def test_one_that_has_not_saved_anything_yet_is_left_alone(
    instance: dg.DagsterInstance, jet: Jet
) -> None:
    """The run may have just been started for the very definition; the record still has the old
    one."""
    earlier = SnapshotRef(5, 5, 3, "manifest/5", 0, 0, 0, committed=True)
    record = ExecutionRecord(
        "shop",
        4,
        JobStatus.RUNNING,
        lease=new_lease("o", 60_000, None),
        snapshots=(earlier,),
        plan_fingerprint="another",
    )
    write(jet, record)
    tick(instance, jet, Retirement(max_age_seconds=0, pipeline=shop()))
    assert asked_for(jet) is None

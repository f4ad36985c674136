"""Runs beside the one that drives the job, and runs that carry another's tags: a real instance and
store, no Spark."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from pyspark import SparkContext

from dagster_jet import Jet, JetResource, Pipeline, jet_assets
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.launches import (
    Launches,
    is_cancelled_by_hand,
    is_launched_by_hand,
    job_tag,
)
from dagster_jet.ownership.record_keeper import RecordKeeper, read_record
from dagster_jet.ownership.supervision import (
    Intent,
    Supervision,
    read_supervision,
    resume,
    set_intent,
)
from dagster_jet.snapshot.record import ExecutionRecord
from dagster_jet.store import Store, StoreConfig

from .recorded_job import RecordedJob

OWNER = "a-store/default/shop"
GENERATION = {keys.TAG_PIPELINE: "shop", keys.TAG_JOB: OWNER, keys.TAG_GENERATION: "4"}
AS_A_STREAM = {"ops": {"shop": {"config": {"until": "stopped"}}}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    config = StoreConfig((f"file://{tmp_path}/store",), backup_count=0)
    with Store.open(config) as store:
        yield store


@pytest.fixture
def owner(store: Store) -> Iterator[RecordKeeper]:
    """Another process that has the job and renews its lease."""
    keeper = RecordKeeper(store, "shop", 1_000, run_id="run-of-the-owner")
    record = keeper.claim(change=None)
    yield keeper
    keeper.release(record)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def resource(tmp_path: Path, drain: float = 25) -> JetResource:
    return JetResource(
        store=[f"file://{tmp_path}/store"],
        backup_count=0,
        lease_ttl="1 second",
        drain_budget_seconds=drain,
    )


def assets(pipeline: Pipeline) -> dg.AssetsDefinition:
    @jet_assets(pipeline=pipeline)
    def stream(context, jet: JetResource):
        yield from jet.run(context=context)

    return stream


def record(store: Store) -> ExecutionRecord:
    found = read_record(store, "shop")
    assert found is not None
    return found


def test_a_duplicate_launch_ends_softly_and_before_spark(
    instance: dg.DagsterInstance,
    store: Store,
    owner: RecordKeeper,
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    spark_before = SparkContext._active_spark_context
    result = dg.materialize(
        [assets(pipeline)], instance=instance, resources={"jet": resource(tmp_path)}
    )
    assert result.success, "a failed step would turn every asset red"
    assert result.get_asset_materialization_events() == []
    assert SparkContext._active_spark_context is spark_before
    said = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert any("Already running" in text and "run-of-the-owner" in text for text in said)
    assert record(store).execution_id == 1 and not owner.fenced.is_set()


@pytest.mark.parametrize(("word", "runs"), [(None, True), ("proceed", True), ("skip", False)])
def test_what_is_behind_a_stream_that_another_run_has(
    instance: dg.DagsterInstance,
    store: Store,
    pipeline: Pipeline,
    tmp_path: Path,
    word: str | None,
    runs: bool,
) -> None:
    """Failed before: it was always skipped, although the rows are there."""
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        RecordedJob(jet).commits(7, {"revenue_out": 5, "large_out": 9, "bad_orders": 0})
    owner = RecordKeeper(store, "shop", 1_000, run_id="run-of-the-owner")
    claimed = owner.claim(change=None)

    @dg.asset(deps=[dg.AssetKey(["shop", "revenue_out"])])
    def report() -> None: ...

    config = {} if word is None else {"ops": {"shop": {"config": {"if_running": word}}}}
    result = dg.materialize(
        [assets(pipeline), report],
        instance=instance,
        resources={"jet": resource(tmp_path)},
        run_config=config,
    )
    assert result.success
    materialized = [event.asset_key for event in result.get_asset_materialization_events()]
    assert materialized == ([dg.AssetKey("report")] if runs else [])
    owner.release(claimed)


def test_steps_that_would_wait_for_ever_are_a_warning(
    instance: dg.DagsterInstance,
    owner: RecordKeeper,
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    @dg.asset(deps=[dg.AssetKey(["shop", "revenue_out"])])
    def report() -> None: ...

    for more, warnings in (([report], 1), ([], 0)):
        result = dg.materialize(
            [assets(pipeline), *more],
            instance=instance,
            resources={"jet": resource(tmp_path)},
            run_config=AS_A_STREAM,
        )
        said = [entry.user_message for entry in instance.all_logs(result.run_id)]
        assert len([text for text in said if "wait for ever" in text]) == warnings


def test_a_word_of_the_code_that_means_nothing(
    instance: dg.DagsterInstance, pipeline: Pipeline, tmp_path: Path
) -> None:
    @jet_assets(pipeline=pipeline)
    def stream(context, jet: JetResource):
        yield from jet.run(context=context, if_running="pass")

    with pytest.raises(dg.Failure, match="expected 'proceed' or 'skip', not 'pass'"):
        dg.materialize([stream], instance=instance, resources={"jet": resource(tmp_path)})


def test_a_cancel_of_it_does_not_pause_the_job(
    instance: dg.DagsterInstance, store: Store, pipeline: Pipeline, tmp_path: Path
) -> None:
    """The run still waits to see whether the owner lives."""
    owner = RecordKeeper(store, "shop", 1_000, run_id="run-of-the-owner")
    owner.claim(change=None)

    def terminate() -> None:
        """Terminates the run as Dagster does, once the asset has submitted the job."""
        while read_supervision(store, "shop") is None:
            assert not done.wait(0.02)
        (run,) = instance.get_runs()
        instance.report_run_canceling(run)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)

    done, terminator = threading.Event(), threading.Thread(target=terminate)
    terminator.start()
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        dg.materialize(
            [assets(pipeline)],
            instance=instance,
            resources={"jet": resource(tmp_path, drain=0.5)},
            run_config=AS_A_STREAM,
        )
    done.set()
    terminator.join()
    (run,) = instance.get_runs()
    assert run.status is dg.DagsterRunStatus.CANCELED
    supervision = read_supervision(store, "shop")
    assert supervision is not None and supervision.intent is Intent.ALWAYS_ON
    owner.release(record(store))


def test_a_forced_termination_is_a_users_cancel(instance: dg.DagsterInstance) -> None:
    """Failed before: the UI marks the run as cancelled at once, and the supervisor started the job
    again."""
    run = instance.create_run_for_job(_job())

    def is_cancelled() -> bool:
        return is_cancelled_by_hand(instance, run.run_id)

    assert not is_cancelled()
    instance.report_run_canceling(run)
    assert is_cancelled()
    instance.report_run_canceled(run)
    assert is_cancelled()
    evicted = instance.create_run_for_job(_job())
    instance.report_run_failed(evicted)
    assert not is_cancelled_by_hand(instance, evicted.run_id)


def test_a_run_that_a_supervisor_requested_is_its_own(instance: dg.DagsterInstance) -> None:
    requested = instance.create_run_for_job(_job(), tags=GENERATION)
    assert not is_launched_by_hand(instance, requested, OWNER)


@pytest.mark.parametrize("how", ["plain", "re-executed", "from the launchpad"])
def test_what_a_person_launches_is_theirs_although_tags_are_copied(
    instance: dg.DagsterInstance, how: str
) -> None:
    requested = instance.create_run_for_job(_job(), tags=GENERATION)
    parent = {"parent_run_id": requested.run_id, "root_run_id": requested.run_id}
    launched = instance.create_run_for_job(
        _job(),
        tags={} if how == "plain" else GENERATION,
        **(parent if how == "re-executed" else {}),
    )
    assert is_launched_by_hand(instance, launched, OWNER)
    assert not is_launched_by_hand(instance, requested, OWNER), "still"


def test_a_run_of_another_deployment_says_nothing_about_it(instance: dg.DagsterInstance) -> None:
    """Failed before: the older run of the same generation was staging's, so that the supervisor's
    own request counted as a person's, which resets back-off and failures."""
    instance.create_run_for_job(_job(), tags={**GENERATION, keys.TAG_JOB: "staging/default/shop"})
    requested = instance.create_run_for_job(_job(), tags=GENERATION)
    assert not is_launched_by_hand(instance, requested, OWNER)
    supervision = Supervision("shop", 4, "shop:4", attempts=1)
    found = Launches("shop", "shop_job", OWNER).requested(instance, supervision)
    assert found is not None and found.run_id == requested.run_id


def test_a_retry_of_dagsters_own_is_nobodys_wish(instance: dg.DagsterInstance) -> None:
    requested = instance.create_run_for_job(_job(), tags=GENERATION)
    retried = instance.create_run_for_job(
        _job(),
        tags={**GENERATION, keys.DAGSTER_RETRY_NUMBER: "1"},
        parent_run_id=requested.run_id,
        root_run_id=requested.run_id,
    )
    assert not is_launched_by_hand(instance, retried, OWNER)


def test_re_executing_a_terminated_run_lifts_the_pause(
    instance: dg.DagsterInstance,
    store: Store,
    owner: RecordKeeper,
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    """The first run is here only for its tags; the copy finds the job taken, and ends softly."""
    tags = {**GENERATION, keys.TAG_JOB: job_tag(store, "shop")}
    instance.create_run_for_job(_job(), tags=tags)
    set_intent(store, "shop", Intent.PAUSED)
    result = dg.materialize(
        [assets(pipeline)],
        instance=instance,
        resources={"jet": resource(tmp_path)},
        run_config=AS_A_STREAM,
        tags=tags,
    )
    assert result.success
    supervision = read_supervision(store, "shop")
    assert supervision is not None and supervision.intent is Intent.ALWAYS_ON


STANDBY = {keys.TAG_KIND: keys.KIND_STANDBY, keys.TAG_STANDBY: "1"}


@pytest.mark.parametrize(
    "tags",
    [
        {keys.TAG_GENERATION: "4"},
        STANDBY,
        {keys.TAG_GENERATION: "4", keys.DAGSTER_RETRY_NUMBER: "1"},
        {keys.DAGSTER_SCHEDULE_NAME: "shop_schedule"},
    ],
    ids=["requested", "standby", "retried", "scheduled"],
)
def test_a_run_that_waited_since_before_a_pause_starts_nothing(
    instance: dg.DagsterInstance,
    store: Store,
    owner: RecordKeeper,
    pipeline: Pipeline,
    tmp_path: Path,
    tags: dict[str, str],
) -> None:
    """Failed before, but for the schedule: a job that was deleted meanwhile began anew."""
    tags |= {keys.TAG_PIPELINE: "shop", keys.TAG_JOB: job_tag(store, "shop")}

    def launched() -> tuple[bool, str]:
        run_config = AS_A_STREAM if keys.DAGSTER_SCHEDULE_NAME in tags else {}
        result = dg.materialize(
            [assets(pipeline)],
            instance=instance,
            resources={"jet": resource(tmp_path, drain=0.5)},
            run_config=run_config,
            tags=tags,
        )
        said = [entry.user_message for entry in instance.all_logs(result.run_id)]
        instance.delete_run(result.run_id)  # or the next one would be a copy of it
        return result.success, " ".join(said)

    set_intent(store, "shop", Intent.ALWAYS_ON)
    set_intent(store, "shop", Intent.PAUSED)
    succeeds, said = launched()
    assert succeeds and "'shop' is paused" in said and "Already running" not in said
    supervision = read_supervision(store, "shop")
    assert supervision is not None and supervision.intent is Intent.PAUSED
    if tags.items() >= STANDBY.items():
        return  # it would wait for the end of its owner
    resume(store, "shop", 0)
    succeeds, said = launched()
    assert succeeds and "is paused" not in said and "Already running" in said


@pytest.mark.parametrize(
    ("more", "found"),
    [({}, Intent.ALWAYS_ON), ({keys.DAGSTER_RETRY_NUMBER: "1"}, Intent.PAUSED)],
    ids=["re-executed", "retried"],
)
def test_re_executing_a_scheduled_run_lifts_a_pause(
    instance: dg.DagsterInstance,
    store: Store,
    owner: RecordKeeper,
    pipeline: Pipeline,
    tmp_path: Path,
    more: dict[str, str],
    found: Intent,
) -> None:
    """Failed before: the copy has the schedule's tag, and counted as scheduled."""
    set_intent(store, "shop", Intent.ALWAYS_ON)
    set_intent(store, "shop", Intent.PAUSED)
    job = dg.Definitions(
        assets=[assets(pipeline)],
        jobs=[dg.define_asset_job("shop_job", executor_def=dg.in_process_executor)],
        resources={"jet": resource(tmp_path)},
    ).resolve_job_def("shop_job")
    tags = {keys.DAGSTER_SCHEDULE_NAME: "shop_schedule"}
    scheduled = instance.create_run_for_job(job, tags=tags)
    copy = instance.create_run_for_job(
        job,
        tags=tags | more,
        run_config=AS_A_STREAM,
        parent_run_id=scheduled.run_id,
        root_run_id=scheduled.run_id,
    )
    execute_run(InMemoryJob(job), copy, instance)
    supervision = read_supervision(store, "shop")
    assert supervision is not None and supervision.intent is found


def test_a_step_that_is_retried_does_not_lift_a_pause(
    instance: dg.DagsterInstance,
    store: Store,
    owner: RecordKeeper,
    pipeline: Pipeline,
    tmp_path: Path,
) -> None:
    """A person has launched the run, and paused the job since."""

    @jet_assets(pipeline=pipeline)
    def stream(context, jet: JetResource):
        if context.retry_number == 0:
            set_intent(store, "shop", Intent.PAUSED)
            raise dg.RetryRequested(max_retries=1)
        yield from jet.run(context=context)

    result = dg.materialize(
        [stream],
        instance=instance,
        resources={"jet": resource(tmp_path)},
        run_config=AS_A_STREAM,
    )
    supervision = read_supervision(store, "shop")
    assert result.success and supervision is not None and supervision.intent is Intent.PAUSED


@pytest.mark.parametrize("intent", Intent)
def test_materialize_all_changes_nothing_of_what_is_wanted(
    instance: dg.DagsterInstance,
    store: Store,
    owner: RecordKeeper,
    pipeline: Pipeline,
    tmp_path: Path,
    intent: Intent,
) -> None:
    """Failed before: a job that a person had paused was always-on afterwards."""
    set_intent(store, "shop", intent)
    before = read_supervision(store, "shop")
    result = dg.materialize(
        [assets(pipeline)], instance=instance, resources={"jet": resource(tmp_path)}
    )
    assert result.success
    assert read_supervision(store, "shop") == before


def _job() -> dg.JobDefinition:
    @dg.job
    def shop_job() -> None: ...

    return shop_job

"""A partition is a bounded job of its own: names, attempts, refusals; no Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_jet import (
    Jet,
    JetResource,
    Pipeline,
    build_jet_asset_checks,
    build_jet_job,
    build_jet_observation_sensor,
    build_jet_schedule,
    build_jet_supervisor_sensor,
    jet_assets,
    sinks,
    sources,
)
from dagster_jet.connectors.reopening import destination_of
from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration.defined_pipeline import defined_in
from dagster_jet.orchestration.launches import Launches
from dagster_jet.orchestration.partition_job import (
    Attempt,
    PartitionJob,
    job_of_partition,
    launch_of,
    partition_job,
)
from dagster_jet.ownership.record_keeper import JOB_DIRECTORY, RecordKeeper
from dagster_jet.snapshot.record import JobStatus

from .recorded_job import RecordedJob

DAYS = dg.StaticPartitionsDefinition(["mon", "tue"])


def shop(day: str) -> Pipeline:
    p = Pipeline("shop")
    rows = p.read_from(sources.files(f"/in/{day}", format="json", schema="id long"), name="rows")
    rows.write_to(sinks.files(f"/out/{day}", format="json"), name="out")
    return p


def assets_of(pipeline: Any = shop, **options: Any) -> dg.AssetsDefinition:
    # Not annotated in this module's string form: Dagster reads the class from the function.
    def stream(context, jet):
        yield from jet.run(context=context)

    stream.__annotations__["jet"] = JetResource
    options = {"partitions_def": DAYS, **options}
    return jet_assets(pipeline=pipeline, **options)(stream)


@pytest.fixture
def jet(tmp_path: Path) -> Iterator[Jet]:
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        yield jet


def launch(folder: Path, assets: dg.AssetsDefinition, **options: Any) -> dg.ExecuteInProcessResult:
    resource = JetResource(store=[f"file://{folder}/store"], backup_count=0)
    return dg.materialize([assets], resources={"jet": resource}, raise_on_error=False, **options)


def job_of(assets: dg.AssetsDefinition) -> dg.JobDefinition:
    definitions = dg.Definitions(
        assets=[assets],
        jobs=[build_jet_job(assets)],
        resources={"jet": JetResource(store=["file:///nowhere/a"], backup_count=0)},
    )
    return definitions.resolve_job_def("shop_partitions_job")


def failure(result: dg.ExecuteInProcessResult) -> str:
    """Text that the UI shows first for a failed step."""
    (event,) = result.get_step_failure_events()
    data = event.step_failure_data.user_failure_data
    assert data is not None and data.description is not None
    return data.description


def test_names_are_fit_for_paths_and_differ_where_keys_do() -> None:
    assert job_of_partition("shop", "2024-01-01") == "shop@2024-01-01"
    odd = ["a b", "a/b", "a@b", "2024-01-01-00:00", "é", "x" * 300, "x" * 301]
    names = [job_of_partition("shop", key) for key in odd]
    assert len({*names}) == len(odd)
    for name in names:
        longest = job_of_partition("p" * 100, name.partition("@")[2])
        assert Pipeline("p").renamed(Attempt(99, "01234567").of(longest)).name.startswith(longest)
        assert len(name) < 130 and name.isascii() and ":" not in name and name.count("@") == 1


def test_attempts_are_read_from_names() -> None:
    second = Attempt().next("0123456789abcdef")
    assert second.of("shop@mon") == "shop@mon@2-01234567"
    assert second.next("0123456789abcdef") is second, "a retry of the run goes on with it"
    third = second.next("fedcba98-76")
    assert Attempt.read(third.of("shop@mon"), "shop@mon") == third == Attempt(3, "fedcba98")
    assert Attempt.read("shop@mon", "shop@mon") == Attempt()
    assert Attempt.read("shop@monday", "shop@mon") is None


def test_assets_with_partitions_have_one_run_for_each() -> None:
    assets = assets_of()
    assert assets.partitions_def == DAYS
    assert assets.backfill_policy == dg.BackfillPolicy.multi_run(1)
    assert assets.op.name == "shop_partition", "beside the live pipeline's"
    assert {spec.key.path[1] for spec in assets.specs} == {"out"}
    job = job_of(assets)
    assert job.partitions_def == DAYS
    assert job.run_tags["dagster_jet/kind"] == "partition"


def test_a_live_jobs_supervisor_leaves_their_runs_alone() -> None:
    assets = assets_of()
    job = job_of(assets)
    with dg.DagsterInstance.ephemeral() as instance:
        tags = {**job.run_tags, "dagster/partition": "mon"}
        instance.create_run_for_job(job, tags=tags)
        assert Launches("shop", "shop_job").unended(instance).runs == ()
    with pytest.raises(ConfigurationError, match=r"'shop_partitions_job' runs 'shop@\*'"):
        build_jet_supervisor_sensor(job=build_jet_job(assets), pipeline="shop")


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (build_jet_asset_checks, "checks"),
        (build_jet_observation_sensor, "an observation sensor"),
        (lambda a: build_jet_schedule(a, cron_schedule="@daily"), "a schedule of drained runs"),
    ],
)
def test_what_is_for_streams_is_refused(build: Any, what: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot have {what}"):
        build(assets_of())


def test_a_complete_partition_is_a_success_without_work(jet: Jet, tmp_path: Path) -> None:
    job = RecordedJob(jet, "shop@mon", listed=True)
    job.commits(7, {"out": 5}, reads={"rows": 5})
    job.has_ended(JobStatus.COMPLETED)
    with dg.DagsterInstance.ephemeral() as instance:
        result = launch(tmp_path, assets_of(), partition_key="mon", instance=instance)
        (event,) = result.get_asset_materialization_events()
        assert event.partition == "mon"
        assert event.materialization.metadata["dagster/row_count"].value == 5
        (run,) = instance.get_runs()
        assert run.tags["dagster_jet/pipeline"] == "shop@mon"
        again = launch(tmp_path, assets_of(), partition_key="mon", instance=instance)
        assert again.success, "failed before, and painted the partition as FAILED"
        (same,) = again.get_asset_materialization_events()
        assert same.materialization.metadata["unchanged"].value is True
        version = event.materialization.tags["dagster/data_version"]
        assert same.materialization.tags["dagster/data_version"] == version
        said = [entry.user_message for entry in instance.all_logs(again.run_id)]
        assert (
            "Partition 'mon' of 'shop' is complete, and there is nothing to do: its rows are in "
            "its sinks (/out/mon). To replace them, launch it with the op config anew: true."
        ) in said
        record = jet.job("shop@mon").record()
        assert record is not None and record.status is JobStatus.COMPLETED


def test_the_newest_attempt_counts(jet: Jet, tmp_path: Path) -> None:
    first = RecordedJob(jet, "shop@mon", listed=True)
    first.commits(1, {"out": 5})
    first.has_ended(JobStatus.COMPLETED)
    second = RecordedJob(jet, "shop@mon@2-0123abcd", listed=True)
    second.commits(1, {"out": 6})
    second.has_ended(JobStatus.COMPLETED)
    RecordedJob(jet, "shop@monday", listed=True).commits(1, {"out": 99})
    assert len(jet.store.map(JOB_DIRECTORY).keys("")) == 3
    result = launch(tmp_path, assets_of(), partition_key="mon")
    (event,) = result.get_asset_materialization_events()
    assert event.materialization.metadata["dagster/row_count"].value == 6


def test_rows_that_a_sink_cannot_remove_are_not_written_twice(jet: Jet, tmp_path: Path) -> None:
    table = destination_of(sinks.sql(f"sqlite:///{tmp_path}/shop.db", table="out"))
    files = destination_of(sinks.files(str(tmp_path / "out"), format="json"))
    job = RecordedJob(jet, "shop@mon", listed=True, places={"out": table, "copy": files})
    job.commits(1, {"out": 5, "copy": 5})
    job.has_ended(JobStatus.COMPLETED)
    anew = {"ops": {"shop_partition": {"config": {"anew": True}}}}
    refused = launch(tmp_path, assets_of(), partition_key="mon", run_config=anew)
    assert "the rows of partition 'mon' in out cannot be removed by the sink" in failure(refused)
    assert jet.job("shop@mon").record() is not None, "nothing was deleted"

    defined = defined_in(assets_of().metadata_by_key)
    assert defined is not None
    second = partition_job("0123456789ab", jet, defined, "mon", anew=True)
    assert second.name.startswith("shop@mon@2-"), "the refused launch has requested it"
    assert second.attempt == second.name.removeprefix("shop@mon@")
    second.replace(jet, logging.getLogger(), accept_old_rows=True)
    assert jet.job("shop@mon").record() is None
    RecordedJob(jet, second.name, listed=True).commits(1, {"out": 1})
    again = partition_job("0123456789ab", jet, defined, "mon", anew=True)
    assert (again.name, again.replaces) == (second.name, ()), "a retry goes on with its work"


def test_launches_at_one_moment_compute_one_job(jet: Jet) -> None:
    """Failed before: two launches with `anew`, or one with and one without, got two names, and
    both wrote the partition's rows."""
    defined = defined_in(assets_of().metadata_by_key)
    assert defined is not None

    def job(run: str, *, anew: bool = True) -> PartitionJob:
        assert defined is not None
        return partition_job(run, jet, defined, "mon", anew=anew)

    never_computed = [job("aaaaaaaa-1"), job("bbbbbbbb-1"), job("cccccccc-1", anew=False)]
    assert {one.name for one in never_computed} == {"shop@mon"}
    assert not any(one.replaces for one in never_computed)
    RecordedJob(jet, "shop@mon", listed=True).has_ended(JobStatus.COMPLETED)
    assert [job(f"{run * 8}-1").name for run in "ab"] == ["shop@mon"] * 2, "retries"

    computed = [job("dddddddd-1"), job("eeeeeeee-1")]
    assert {(one.name, one.replaces) for one in computed} == {
        ("shop@mon@2-dddddddd", ("shop@mon",))
    }
    for one in computed:
        one.replace(jet, logging.getLogger(), accept_old_rows=False)
    between = [job("ffffffff-1"), job("00000000-1", anew=False)]
    assert {one.name for one in between} == {"shop@mon@2-dddddddd"}, "the first has not begun"
    RecordedJob(jet, "shop@mon@2-dddddddd", listed=True).is_held_by(None)
    assert job("eeeeeeee-1").name == "shop@mon@2-dddddddd", "a retry"
    later = job("11111111-1")
    assert (later.name, later.replaces) == ("shop@mon@3-11111111", ("shop@mon@2-dddddddd",))
    assert job("22222222-1", anew=False).name == "shop@mon@2-dddddddd", "the other has not begun"
    RecordedJob(jet, "shop@mon@4-01234567", listed=True).is_held_by(None)
    assert job("33333333-1").name == "shop@mon@5-33333333", "an older version of the library knew 4"


def test_a_deleted_attempt_does_not_get_its_name_back(jet: Jet) -> None:
    """Failed before: the next launch took the name of the last request with `anew`."""
    defined = defined_in(assets_of().metadata_by_key)
    assert defined is not None
    RecordedJob(jet, "shop@mon", listed=True).has_ended(JobStatus.COMPLETED)
    second = partition_job("dddddddd-1", jet, defined, "mon", anew=True)
    second.replace(jet, logging.getLogger(), accept_old_rows=False)
    RecordedJob(jet, second.name, listed=True).has_ended(JobStatus.COMPLETED)
    jet.job(second.name).delete()
    plain = partition_job("eeeeeeee-1", jet, defined, "mon", anew=False)
    assert (plain.name, plain.is_completed) == ("shop@mon", False)
    third = partition_job("ffffffff-1", jet, defined, "mon", anew=True)
    assert third.name == "shop@mon@3-ffffffff"


def test_a_retry_continues_and_a_re_execution_of_a_success_computes_anew(
    jet: Jet, tmp_path: Path
) -> None:
    """Failed before: the latter was a success without work that advised `anew: true`."""
    job = job_of(assets_of())
    with dg.DagsterInstance.ephemeral() as instance:

        def run_after(parent: dg.DagsterRun | None, status: dg.DagsterRunStatus) -> dg.DagsterRun:
            before = None if parent is None else parent.run_id
            root = None if parent is None else parent.root_run_id or parent.run_id
            return instance.create_run_for_job(
                job, status=status, parent_run_id=before, root_run_id=root
            )

        failed = run_after(None, dg.DagsterRunStatus.FAILURE)
        cancelled = run_after(failed, dg.DagsterRunStatus.CANCELED)
        done = run_after(cancelled, dg.DagsterRunStatus.SUCCESS)
        assert [launch_of(instance, run) for run in (failed, cancelled, done)] == [
            failed.run_id
        ] * 3
        again = run_after(done, dg.DagsterRunStatus.FAILURE)
        retry = run_after(again, dg.DagsterRunStatus.STARTED)
        assert [launch_of(instance, run) for run in (again, retry)] == [again.run_id] * 2
        instance.delete_run(failed.run_id)
        assert launch_of(instance, cancelled) == failed.run_id


def test_a_run_of_no_partition_is_a_sentence(jet: Jet, tmp_path: Path) -> None:
    """A job of one's own, without partitions, over the same op."""
    assets = assets_of()
    job = dg.define_asset_job("mine", [*assets.keys])
    definitions = dg.Definitions(
        assets=[assets],
        jobs=[job],
        resources={"jet": JetResource(store=[f"file://{tmp_path}/store"], backup_count=0)},
    )
    result = definitions.resolve_job_def("mine").execute_in_process(raise_on_error=False)
    assert "this run has no partitions" in failure(result)


def test_a_backfill_does_not_wait_for_ever_for_what_another_run_computes(
    jet: Jet, tmp_path: Path
) -> None:
    owner = RecordKeeper(jet.store, "shop@mon", 1_000, run_id="another")
    claimed = owner.claim(change=None)
    plain = launch(tmp_path, assets_of(), partition_key="mon")
    assert plain.success and not plain.get_asset_materialization_events()
    backfill = launch(tmp_path, assets_of(), partition_key="mon", tags={"dagster/backfill": "b"})
    assert "Another run computes partition 'mon'" in failure(backfill)
    owner.release(claimed)


def test_a_backfill_in_one_run(jet: Jet, tmp_path: Path) -> None:
    """Failed before: a run of several partitions was refused."""
    for day, rows in (("mon", 5), ("tue", 6)):
        job = RecordedJob(jet, f"shop@{day}", listed=True)
        job.commits(1, {"out": rows})
        job.has_ended(JobStatus.COMPLETED)
    assets = assets_of(backfill_policy=dg.BackfillPolicy.single_run())
    assert assets.backfill_policy == dg.BackfillPolicy.single_run()

    @dg.asset(deps=[*assets.keys])
    def behind() -> None: ...

    days = {"asset_partition_range_start": "mon", "asset_partition_range_end": "tue"}
    result = dg.materialize(
        [assets, behind],
        resources={"jet": JetResource(store=[f"file://{tmp_path}/store"], backup_count=0)},
        tags={f"dagster/{name}": day for name, day in days.items()},
    )
    found = [
        (event.partition, event.materialization.metadata.get("dagster/row_count"))
        for event in result.get_asset_materialization_events()
    ]
    assert [(day, rows and rows.value) for day, rows in found] == [
        ("mon", 5), ("tue", 6), (None, None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda day: shop(day).renamed(f"shop_{day}"),
            "is named 'shop_tue', and the pipeline of another",
        ),
        (lambda day: shop(day) if day == "mon" else _more(day), "has other stages"),
    ],
)
def test_pipelines_of_partitions_are_alike(
    jet: Jet, tmp_path: Path, change: Any, sentence: str
) -> None:
    assert sentence in failure(launch(tmp_path, assets_of(change), partition_key="tue"))


def test_bad_definitions_are_sentences() -> None:
    with pytest.raises(ConfigurationError, match="each partition has a pipeline of its own"):
        assets_of(shop("mon"))
    with pytest.raises(ConfigurationError, match="Call the function that makes it"):
        assets_of(shop, partitions_def=None)
    with pytest.raises(ConfigurationError, match="returned str, not a Pipeline"):
        assets_of(lambda day: day)
    cities = dg.DynamicPartitionsDefinition(name="cities")
    with pytest.raises(ConfigurationError, match="sample_partition="):
        assets_of(partitions_def=cities)
    assert assets_of(partitions_def=cities, sample_partition="any").keys
    assert assets_of(partitions_def=dg.DailyPartitionsDefinition("2130-01-01")).keys, "none yet"


def _more(day: str) -> Pipeline:
    p = shop(day)
    rows = p.read_from(sources.files("/more", format="json", schema="id long"), name="more")
    rows.write_to(sinks.files("/more_out", format="json"), name="more_out")
    return p

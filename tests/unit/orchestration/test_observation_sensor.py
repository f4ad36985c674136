"""Commits that no run has reported come into Dagster's log, once; no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import dagster as dg
import pytest

from dagster_jet import (
    Jet,
    JetResource,
    Pipeline,
    build_jet_job,
    build_jet_observation_sensor,
    jet_assets,
)
from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.committed_snapshot import newest_commit
from dagster_jet.orchestration.observation_sensor import PATIENCE_MS, Watched, report_missed
from dagster_jet.orchestration.reported_assets import asset_reports
from dagster_jet.orchestration.run_worker import RunWorker
from dagster_jet.orchestration.sightings import BootTime
from dagster_jet.ownership.lease import new_lease
from dagster_jet.snapshot.record import JobStatus

from .recorded_job import RecordedJob
from .test_status import DIM, Site, committed, of, restored, rows, shop

OUT = dg.AssetKey(["shop", "out"])

# Dagster's own way to ask what automation would do calls something of its own that is beta.
pytestmark = pytest.mark.filterwarnings("ignore:Parameter `include_sources`")


@dataclass
class Daemon:
    """Ticks the sensor and stores what it returns, as the daemon does."""

    site: Site
    jet: Jet
    cursor: str | None = None
    now_ms: int = 1_000

    def tick(self, *, loses_cursor: bool = False) -> str:
        """Number of materializations that a tick reports, or its skip reason."""
        watched = Watched(self.site.stream, self.site.pipeline)
        with dg.build_sensor_context(instance=self.site.instance, cursor=self.cursor) as context:
            clock = lambda: BootTime("this boot", self.now_ms)  # noqa: E731
            result = report_missed(context, self.jet, watched, clock)
        for event in result.asset_events:
            self.site.instance.report_runless_asset_event(event)
        if not loses_cursor:
            self.cursor = result.cursor
        if result.skip_reason is not None:
            return str(result.skip_reason.skip_message)
        new = [event for event in result.asset_events if isinstance(event, dg.AssetMaterialization)]
        return f"{len(new)} new"


@pytest.fixture
def jet(tmp_path: Path) -> Iterator[Jet]:
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        yield jet


@pytest.fixture
def daemon(jet: Jet) -> Iterator[Daemon]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Daemon(Site(instance, shop()), jet)


def version(instance: dg.DagsterInstance) -> str | None:
    event = instance.get_latest_materialization_event(OUT)
    assert event is not None and event.asset_materialization is not None
    return (event.asset_materialization.tags or {}).get("dagster/data_version")


def test_a_job_of_plain_python_is_reported_as_it_goes_on(daemon: Daemon, jet: Jet) -> None:
    job = RecordedJob(jet)
    assert daemon.tick() == "'shop': nothing is committed yet"
    job.commits(0, {"out": 0, "bad": 0})
    assert daemon.tick() == "'shop': nothing is committed yet", "where the sources begin"
    job.is_held_by(new_lease("o", 10_000, None))
    job.commits(1, {"out": 5, "bad": 1}, reads={"rows": 6})
    assert daemon.tick() == "2 new"
    event = daemon.site.instance.get_latest_materialization_event(OUT)
    assert event is not None and event.asset_materialization is not None
    facts = {key: value.value for key, value in event.asset_materialization.metadata.items()}
    assert (facts["dagster/row_count"], facts["snapshot"], facts["replayed"]) == (5, 1, True)
    assert facts["rows_read"] == 6
    assert daemon.tick() == "'shop': snapshot 1 is known"
    job.commits(2, {"out": 5, "bad": 1}, reads={"rows": 6})
    assert daemon.tick() == "'shop': snapshot 2 is known", "without rows it is no news"
    assert of(OUT, daemon.site.instance) == 1


def test_rows_that_a_start_commits_are_reported(daemon: Daemon, jet: Jet) -> None:
    """Failed before: the snapshot was known by its id, though its rows had become more."""
    job = RecordedJob(jet)
    job.commits(1, {"out": 8, "bad": 1}, held={"out": 3})
    assert daemon.tick() == "2 new"
    assert daemon.tick() == "'shop': snapshot 1 is known"
    job.commits_what_it_holds()
    assert daemon.tick() == "2 new"
    event = daemon.site.instance.get_latest_materialization_event(OUT)
    assert event is not None and event.asset_materialization is not None
    assert event.asset_materialization.metadata["dagster/row_count"].value == 8
    assert daemon.tick() == "'shop': snapshot 1 is known"


def test_what_a_killed_run_has_not_said_is_said_once(daemon: Daemon, jet: Jet) -> None:
    site, job = daemon.site, RecordedJob(jet)
    site.run(lambda to: to.committed(committed(1, **rows(5, 1)), 1_000))
    site.requested()
    job.commits(2, {"out": 9, "bad": 3})  # and then its worker was killed
    assert daemon.tick(loses_cursor=True) == "2 new"
    assert site.requested() == 1, "eager assets run"
    assert daemon.tick() == "'shop': snapshot 2 is known", "the log says so, without a cursor"
    assert version(site.instance) == "2"
    # The next run finds it reported: what it restores is no news.
    site.run(lambda to: to.restored(restored(2, **rows(9, 3)), 2_000))
    assert of(OUT, site.instance) == 2
    assert site.requested() == 0


def test_a_stage_whose_input_is_over_has_no_lag(jet: Jet, pipeline: Pipeline) -> None:
    """Failed before: the lag was -8,998,210,000,000 seconds."""
    job = RecordedJob(jet)
    for snapshot_id, reached_ms, shown_ms in ((1, 5_000, 5_000), (2, FINAL_WATERMARK_MS, None)):
        job.commits(snapshot_id, {"revenue_out": 5}, reached_ms={"revenue": reached_ms})
        found = newest_commit(jet, "shop")
        assert found is not None
        assert found.as_restored(pipeline.graph).stages["revenue"].watermark_ms == shown_ms


def test_nothing_that_a_run_has_reported(daemon: Daemon, jet: Jet) -> None:
    daemon.site.run(lambda to: to.committed(committed(3, **rows(5, 1)), 1_000))
    RecordedJob(jet).commits(4, {"out": 5, "bad": 1})
    assert daemon.tick() == "'shop': snapshot 4 is known"
    assert of(OUT, daemon.site.instance) == 1


def test_a_run_that_has_the_job_reports_itself(daemon: Daemon, jet: Jet) -> None:
    instance, job = daemon.site.instance, RecordedJob(jet)
    run = instance.create_run_for_job(_job(daemon), tags={}, status=dg.DagsterRunStatus.STARTED)
    job.is_held_by(new_lease("o", 10_000, run.run_id))
    job.commits(1, {"out": 5, "bad": 1})
    assert daemon.tick() == f"'shop': run {run.run_id} runs the job, and reports its commits itself"
    daemon.now_ms += 10 * PATIENCE_MS
    assert "reports its commits itself" in daemon.tick(), "however long it lasts"
    job.is_held_by(None)
    assert daemon.tick() == f"'shop': run {run.run_id} may report it itself", "its last word"
    instance.report_run_canceled(run)
    assert daemon.tick() == "2 new", "it has not"


def test_a_run_of_several_pipelines_reports_itself(daemon: Daemon, jet: Jet) -> None:
    """Failed before: its tag named the job of another pipeline, so its commits were reported
    twice."""
    instance, job = daemon.site.instance, RecordedJob(jet)
    others = {keys.TAG_JOB: f"{jet.store.store_id}/default/sales"}
    run = instance.create_run_for_job(_job(daemon), tags=others, status=dg.DagsterRunStatus.STARTED)
    job.is_held_by(new_lease("o", 10_000, run.run_id))
    job.commits(1, {"out": 5, "bad": 1})
    assert daemon.tick() == f"'shop': run {run.run_id} runs the job, and reports its commits itself"
    instance.report_run_canceled(run)
    assert daemon.tick() == "2 new", "it has ended, though the lease lives"


def test_a_run_that_was_killed_hard_is_waited_for_a_while(daemon: Daemon, jet: Jet) -> None:
    """Dagster calls it started for days; of another host nobody can tell."""
    instance, job = daemon.site.instance, RecordedJob(jet)
    run = instance.create_run_for_job(_job(daemon), tags={}, status=dg.DagsterRunStatus.STARTED)
    elsewhere = replace(RunWorker.here(run.run_id), host="elsewhere")
    instance.add_run_tags(run.run_id, {keys.TAG_WORKER: elsewhere.to_tag()})
    job.commits(1, {"out": 5, "bad": 1})
    assert "may report it itself" in daemon.tick()
    daemon.now_ms += PATIENCE_MS - 1
    assert "may report it itself" in daemon.tick()
    daemon.now_ms += 1
    assert daemon.tick() == "2 new"


def test_a_worker_that_is_proven_dead_is_not_waited_for(daemon: Daemon, jet: Jet) -> None:
    instance = daemon.site.instance
    run = instance.create_run_for_job(_job(daemon), tags={}, status=dg.DagsterRunStatus.STARTED)
    dead = replace(RunWorker.here(run.run_id), pid=2**22 + 1, parent_pid=0)
    instance.add_run_tags(run.run_id, {keys.TAG_WORKER: dead.to_tag()})
    RecordedJob(jet).commits(1, {"out": 5, "bad": 1})
    assert daemon.tick() == "2 new"


def test_a_queued_run_will_say_it(daemon: Daemon, jet: Jet) -> None:
    instance = daemon.site.instance
    run = instance.create_run_for_job(_job(daemon), tags={}, status=dg.DagsterRunStatus.NOT_STARTED)
    RecordedJob(jet).commits(1, {"out": 5, "bad": 1})
    assert daemon.tick() == f"'shop': run {run.run_id} may report it itself"


def test_a_job_that_went_back_is_reported_with_the_rows_it_has(daemon: Daemon, jet: Jet) -> None:
    job = RecordedJob(jet)
    job.commits(1, {"out": 5, "bad": 1})
    job.commits(2, {"out": 9, "bad": 1})
    assert daemon.tick() == "2 new"
    job.goes_back_to(1)
    job.commits(3, {"out": 7, "bad": 1})
    assert daemon.tick() == "2 new"
    assert (daemon.tick(), version(daemon.site.instance)) == ("'shop': snapshot 3 is known", "3")


def test_a_job_that_was_deleted_and_ran_again_is_reported(daemon: Daemon, jet: Jet) -> None:
    """Failed before: its ids begin again, and as many rows were taken for the same rows."""
    for execution_id, expected in ((1, "2"), (50, "2.50")):
        job = RecordedJob(jet, listed=True, execution_id=execution_id)
        job.commits(2, {"out": 5, "bad": 1})
        assert daemon.tick() == "2 new"
        assert version(daemon.site.instance) == expected
        assert daemon.tick(loses_cursor=True) == "'shop': snapshot 2 is known"
        job.has_ended(JobStatus.COMPLETED)
        jet.job("shop").delete(release_sinks=False)


def test_inputs_are_those_that_were_reported(daemon: Daemon, jet: Jet) -> None:
    """A table may have changed since the job has read it: nobody knows here."""
    site = daemon.site
    dg.materialize([site.airports], instance=site.instance)
    site.run(lambda to: to.committed(committed(1, **rows(5, 1)), 1_000))
    before = _input_version(site)
    site.instance.report_runless_asset_event(
        dg.AssetMaterialization(DIM, tags={"dagster/data_version": "new"})
    )
    RecordedJob(jet).commits(2, {"out": 9, "bad": 1})
    assert daemon.tick() == "2 new"
    assert _input_version(site) == before != "new"


def test_the_built_sensor_stands_in_a_code_location(
    jet: Jet, pipeline: Pipeline, tmp_path: Path
) -> None:
    @jet_assets(pipeline=pipeline)
    def stream():
        yield from ()

    sensor = build_jet_observation_sensor(stream)
    resource = JetResource(store=[f"file://{tmp_path}/store"], backup_count=0)
    definitions = dg.Definitions(assets=[stream], sensors=[sensor], resources={"jet": resource})
    RecordedJob(jet).commits(1, {"revenue_out": 3, "large_out": 1, "bad_orders": 0})
    repository = definitions.get_repository_def()
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(
            instance=instance, resources={"jet": resource}, repository_def=repository
        ) as context,
    ):
        data = repository.get_sensor_def("shop_observations").evaluate_tick(context)
    assert sorted(event.asset_key.path[1] for event in data.asset_events) == [
        "bad_orders", "large_out", "orders", "revenue", "revenue_out",
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="what @jet_assets made"):
        build_jet_observation_sensor(pipeline)


def test_reports_of_a_completed_job(daemon: Daemon, jet: Jet) -> None:
    job = RecordedJob(jet)
    job.commits(1, {"out": 5, "bad": 1})
    job.has_ended(JobStatus.COMPLETED)
    assert daemon.tick() == "2 new"
    reports = asset_reports(daemon.site.pipeline, daemon.site.stream, daemon.site.instance)
    assert reports.last["out"].data_version == "1"


def _job(daemon: Daemon) -> dg.JobDefinition:
    assets = daemon.site.stream
    return dg.Definitions(assets=[assets], jobs=[build_jet_job(assets)]).resolve_job_def("shop_job")


def _input_version(site: Site) -> str:
    event = site.instance.get_latest_materialization_event(OUT)
    assert event is not None and event.asset_materialization is not None
    return (event.asset_materialization.tags or {})["dagster/input_data_version/airports"]

"""Batch work behind a stream is requested once per new rows; a real store and Dagster, no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pytest

from dagster_jet import Jet, JetResource, Pipeline, build_jet_snapshot_sensor
from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration.tick import JetTickError
from dagster_jet.snapshot.record import JobStatus

from .recorded_job import RecordedJob, queued_run


@pytest.fixture
def jet(tmp_path: Path) -> Iterator[Jet]:
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        yield jet


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@dg.asset(key="worst")
def worst() -> None: ...


@dataclass
class Daemon:
    """Ticks a sensor as the daemon does: with the cursor of the tick before."""

    instance: dg.DagsterInstance
    folder: Path
    sinks: tuple[str, ...] = ()
    cursor: str | None = None
    requests: list[dg.RunRequest] = field(default_factory=list)

    def tick(self) -> str:
        """The keys of the runs it asks for, or why it asks for none."""
        sensor = build_jet_snapshot_sensor(
            pipeline="shop",
            sinks=self.sinks,
            asset_selection=[worst],
            jet=JetResource(store=[f"file://{self.folder}/store"], backup_count=0),
        )
        repository = dg.Definitions(assets=[worst], sensors=[sensor]).get_repository_def()
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, repository_def=repository
        ) as context:
            data = sensor.evaluate_tick(context)
        self.cursor = data.cursor
        self.requests += data.run_requests or []
        return " ".join(str(r.run_key) for r in data.run_requests or []) or str(data.skip_message)


def keys(jet: Jet, *ends: str, execution_id: int = 1) -> str:
    return " ".join(f"shop:{jet.store.store_id[:8]}:{end}:{execution_id}" for end in ends)


def test_new_rows_are_requested_once(
    instance: dg.DagsterInstance, jet: Jet, tmp_path: Path
) -> None:
    daemon, job = Daemon(instance, tmp_path), RecordedJob(jet)
    assert daemon.tick() == "'shop': it has never run"
    job.commits(0, {"out": 0, "bad": 0})
    assert daemon.tick() == "'shop': nothing is committed yet", "where the sources begin"
    job.commits(1, {"out": 5, "bad": 0})
    assert daemon.tick() == keys(jet, "1:1")
    assert daemon.tick() == "'shop': snapshot 1 is known"
    job.commits(2, {"out": 5, "bad": 0})
    assert daemon.tick() == "'shop': snapshot 2 has no new rows of bad, out"
    job.commits(3, {"out": 6, "bad": 0})
    job.commits(4, {"out": 9, "bad": 0})
    assert daemon.tick() == keys(jet, "1:4"), "the newest has the rows of all"
    assert daemon.requests[-1].tags == {
        ".dagster/dagster_jet_snapshot_in": f"{jet.store.store_id}/default/shop",
        "dagster_jet/snapshot_of": "shop",
        "dagster_jet/snapshot": "4",
        "dagster_jet/epoch": "4",
        "dagster/sensor_name": "shop_snapshots",
    }


def test_only_chosen_sinks_count(instance: dg.DagsterInstance, jet: Jet, tmp_path: Path) -> None:
    daemon, job = Daemon(instance, tmp_path, sinks=("bad",)), RecordedJob(jet)
    job.commits(1, {"out": 5, "bad": 0})
    assert "no new rows of bad" in daemon.tick()
    job.commits(2, {"out": 9, "bad": 1})
    assert daemon.tick() == keys(jet, "1:2")


def test_what_is_decided_and_not_in_the_sinks_yet_is_not_requested(
    instance: dg.DagsterInstance, jet: Jet, tmp_path: Path
) -> None:
    daemon, job = Daemon(instance, tmp_path), RecordedJob(jet)
    job.commits(1, {"out": 5})
    assert daemon.tick() == keys(jet, "1:1")
    job.commits(2, {"out": 7}, committed=False)
    assert daemon.tick() == "'shop': snapshot 1 is known"


def test_rows_that_are_held_back_are_not_requested(
    instance: dg.DagsterInstance, jet: Jet, tmp_path: Path
) -> None:
    daemon, job = Daemon(instance, tmp_path), RecordedJob(jet)
    job.commits(1, {"out": 5, "bad": 0})
    assert daemon.tick() == keys(jet, "1:1")
    job.commits(2, {"out": 8, "bad": 0}, held={"out": 3})
    assert daemon.tick() == "'shop': snapshot 2 has no new rows of bad, out"
    job.commits(3, {"out": 9, "bad": 1}, held={"out": 4})
    assert daemon.tick() == f"{keys(jet, '1:3')}:held", "the other sink has its rows"
    assert daemon.tick() == "'shop': snapshot 3 is known"
    job.commits_what_it_holds()
    # Failed before: the key was the same, and Dagster launches no run for a key that it knows.
    assert daemon.tick() == keys(jet, "1:3")
    job.commits(4, {"out": 11, "bad": 1})
    assert daemon.tick() == keys(jet, "1:4")


def test_a_job_that_goes_back_is_requested_for_its_new_rows(
    instance: dg.DagsterInstance, jet: Jet, tmp_path: Path
) -> None:
    daemon, job = Daemon(instance, tmp_path), RecordedJob(jet)
    for snapshot, rows in ((1, 5), (2, 20)):
        job.commits(snapshot, {"out": rows})
    assert daemon.tick() == keys(jet, "1:2")
    job.goes_back_to(1)
    assert "snapshot 1 has no new rows" in daemon.tick(), "restored, on another timeline"
    job.commits(3, {"out": 8})
    assert daemon.tick() == keys(jet, "2:3"), "fewer than before, and yet new"
    assert "known" in daemon.tick()


def test_a_tick_that_comes_after_the_job_went_back_and_on(
    instance: dg.DagsterInstance, jet: Jet, tmp_path: Path
) -> None:
    daemon, job = Daemon(instance, tmp_path), RecordedJob(jet)
    for snapshot, rows in ((1, 5), (2, 20)):
        job.commits(snapshot, {"out": rows})
    daemon.tick()
    job.goes_back_to(1)
    job.commits(3, {"out": 5})
    assert "no new rows" in daemon.tick(), "as many as it went back to"
    job.commits(4, {"out": 6})
    assert daemon.tick() == keys(jet, "2:4")


def test_a_lost_cursor_asks_with_a_key_that_dagster_knows(
    instance: dg.DagsterInstance, jet: Jet, tmp_path: Path
) -> None:
    daemon, job = Daemon(instance, tmp_path), RecordedJob(jet)
    job.commits(1, {"out": 5})
    first = daemon.tick()
    daemon.cursor = "garbage"
    assert daemon.tick() == first
    job.goes_back_to(1)
    daemon.cursor = None
    assert daemon.tick() == first, "a restored snapshot is the one that it was"


@pytest.mark.parametrize("lives", [[(2, 10), (2, 10)], [(129, 30), (2, 10)], [(2, 10), (65, 9)]])
def test_a_job_that_was_deleted_and_ran_again_is_requested(
    instance: dg.DagsterInstance, jet: Jet, tmp_path: Path, lives: list[tuple[int, int]]
) -> None:
    """Failed before: its ids begin again, so it was known, or Dagster knew the run key."""
    daemon = Daemon(instance, tmp_path)
    for execution_id, (snapshot_id, rows) in zip((1, 50), lives, strict=True):
        job = RecordedJob(jet, listed=True, execution_id=execution_id)
        job.commits(snapshot_id, {"out": rows})
        asked = keys(jet, f"1:{snapshot_id}", execution_id=execution_id)
        assert daemon.tick() == asked
        assert daemon.tick() == f"'shop': snapshot {snapshot_id} is known"
        job.has_ended(JobStatus.COMPLETED)
        jet.job("shop").delete(release_sinks=False)


def test_another_store_is_another_life(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    daemon = Daemon(instance, tmp_path / "a")
    with Jet(store=[f"file://{tmp_path}/a/store"], backup_count=0) as jet:
        RecordedJob(jet).commits(5, {"out": 50})
        first = daemon.tick()
    daemon.folder = tmp_path / "b"
    with Jet(store=[f"file://{tmp_path}/b/store"], backup_count=0) as jet:
        RecordedJob(jet).commits(5, {"out": 3})
        second = daemon.tick()
    assert first != second and second.endswith("1:5:1")


def test_a_run_that_waits_in_the_queue_will_read_it_too(
    instance: dg.DagsterInstance, jet: Jet, tmp_path: Path
) -> None:
    daemon, job = Daemon(instance, tmp_path), RecordedJob(jet)
    job.commits(1, {"out": 5})
    daemon.tick()

    tags = {**daemon.requests[0].tags, "dagster/sensor_name": "shop_snapshots"}
    run = queued_run(instance, "batch", tags)
    others = {**tags, ".dagster/dagster_jet_snapshot_in": "another-store/default/shop"}
    queued_run(instance, "batch", others)
    job.commits(2, {"out": 6})
    assert daemon.tick() == f"'shop': run {run.run_id} was requested, and will read this, too"
    instance.report_run_failed(run)
    assert daemon.tick() == keys(jet, "1:2")


def test_bad_input_is_a_sentence(
    instance: dg.DagsterInstance, jet: Jet, tmp_path: Path, pipeline: Pipeline
) -> None:
    with pytest.raises(
        ConfigurationError, match="the pipeline has no sink 'uot'; its sinks are: bad_orders"
    ):
        build_jet_snapshot_sensor(pipeline=pipeline, sinks=["uot"], asset_selection=[worst])
    with pytest.raises(ConfigurationError, match="either job or asset_selection"):
        build_jet_snapshot_sensor(pipeline="shop")
    RecordedJob(jet).commits(1, {"out": 5})
    with pytest.raises(
        JetTickError, match=r"job 'shop': the pipeline has no sink 'uot'; its sinks are: out\."
    ):
        Daemon(instance, tmp_path, sinks=("uot",)).tick()


def test_a_store_that_does_not_answer_fails_the_tick_with_one_sentence(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    (tmp_path / "not_a_folder").write_text("")
    with pytest.raises(JetTickError) as caught:
        Daemon(instance, tmp_path / "not_a_folder").tick()
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    assert "not_a_folder" in str(caught.value)


def test_it_runs_assets_or_a_job(jet: Jet, instance: dg.DagsterInstance, tmp_path: Path) -> None:
    """The sensor is part of a code location, with the resource by its key."""

    @dg.job
    def batch() -> None: ...

    by_name = build_jet_snapshot_sensor(pipeline="shop", job="batch", name="by_name")
    assets = build_jet_snapshot_sensor(pipeline="shop", asset_selection="worst")
    resource = JetResource(store=[f"file://{tmp_path}/store"], backup_count=0)
    definitions = dg.Definitions(
        assets=[worst], jobs=[batch], sensors=[by_name, assets], resources={"jet": resource}
    )
    RecordedJob(jet).commits(1, {"out": 5})
    repository = definitions.get_repository_def()
    for name in ("by_name", "shop_snapshots"):
        sensor = repository.get_sensor_def(name)
        with dg.build_sensor_context(
            instance=instance, resources={"jet": resource}, repository_def=repository
        ) as context:
            (request,) = sensor.evaluate_tick(context).run_requests or []
        assert request.run_key == keys(jet, "1:1")
        if name == "shop_snapshots":
            assert request.asset_selection == [dg.AssetKey("worst")]

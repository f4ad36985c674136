"""`jet.run` and `jet.submit` of a DAG: without Spark, in memory, with nothing in the store."""

import time
from collections import Counter
from datetime import timedelta
from threading import Event

import pytest

from dagster_jet import Jet, JobConfig
from dagster_jet.dag import Watermark
from dagster_jet.dag.local import LocalJob
from dagster_jet.errors import ConfigurationError, JobStateError, ProcessorError
from dagster_jet.ownership.garbage import JobGarbage, collect_garbage
from dagster_jet.ownership.record_keeper import record_register
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus
from tests.unit.dag.local_processors import (
    Place,
    counting_dag,
    expected_counts,
    two_feeds,
)

BACK_TO_BACK = JobConfig(snapshot_interval=timedelta(0), parallelism=2)


@pytest.fixture
def open_jet(tmp_path):
    return lambda: Jet(store=[f"file://{tmp_path}/store"], backup_count=0, partition_count=7)


def stored(jet):
    return [member.list_keys(b"") for member in jet.store._view.members.values()]


def test_a_dag_runs_to_its_end_and_leaves_nothing_in_the_store(open_jet):
    with open_jet() as jet:
        place, before = Place(), stored(jet)
        result = jet.run(counting_dag(20, place), BACK_TO_BACK)
        assert result.status is JobStatus.COMPLETED and result.snapshots_taken
        assert Counter(place.committed) == expected_counts(20)
        again = Place()
        jet.run(counting_dag(20, again), JobConfig(guarantee="none"))
        assert Counter(again.committed) == expected_counts(20)
        assert stored(jet) == before


def test_inside_the_process_it_goes_on_from_a_snapshot(open_jet):
    place, gate = Place(crash_at=300), Event()
    with open_jet() as jet:
        job = jet.submit(counting_dag(200, place, gate), BACK_TO_BACK)
        with pytest.raises(JobStateError, match="running in this process already"):
            jet.submit(counting_dag(200, place, gate))
        with pytest.raises(ProcessorError, match="at item"):
            job.result(60)
    latest = job.snapshots.latest()
    saved = {name for name, _ in latest.state("sink")}
    place.prepared = {n: items for n, items in place.prepared.items() if n in saved}
    gate.set()
    LocalJob(counting_dag(200, place, gate), restore=latest).run(60)
    assert Counter(place.committed) == expected_counts(200)


def test_closing_ends_it_with_a_terminal_snapshot(open_jet):
    place, gate = Place(), Event()
    with open_jet() as jet:
        job = jet.submit(counting_dag(200, place, gate), BACK_TO_BACK)
    assert job.status is JobStatus.NOT_RUNNING and not place.prepared
    gate.set()
    LocalJob(counting_dag(200, place, gate), restore=job.snapshots.latest()).run(60)
    assert Counter(place.committed) == expected_counts(200)


# --- what a DAG's run cannot have ---------------------------------------------------------------


def test_settings_that_only_pipelines_have_are_refused(open_jet):
    dag = counting_dag(1, Place())
    with open_jet() as jet:
        with pytest.raises(
            ConfigurationError, match=r"initial_snapshot, retained_snapshots: a DAG"
        ):
            jet.run(dag, JobConfig(initial_snapshot=3, retained_snapshots=5))
        with pytest.raises(ConfigurationError, match="until, run_id: a DAG"):
            jet.submit(dag, until="drained", run_id="r")
        with pytest.raises(ConfigurationError, match="on_event: a DAG"):
            jet.run(dag, on_event=print)
        job = jet.submit(counting_dag(1, Place(), Event()))
        with pytest.raises(ConfigurationError, match="in memory"):
            job.local.export_snapshot("before-upgrade")


def test_a_dag_under_the_name_of_durable_work_is_refused(open_jet):
    with open_jet() as jet:
        record = ExecutionRecord("counting", 1, JobStatus.SUSPENDED)
        jet.store.register(record_register("counting")).claim(1, "me").write(record.to_bytes())
        with pytest.raises(JobStateError, match="a pipeline of this name has its record"):
            jet.run(counting_dag(1, Place()))


def test_what_an_older_version_kept_of_a_dag_is_told_and_dropped(open_jet):
    with open_jet() as jet:
        for name in ("counting", "other/dag"):
            old = jet.store.map(f"local_jobs/{name}")
            old.put_all({old.key("latest"): b"pickled", old.key("8/v/3"): b"pickled"})
        with pytest.raises(JobStateError, match="older version has kept a snapshot of this DAG"):
            jet.run(counting_dag(1, Place()))
        assert collect_garbage(jet.store) == [JobGarbage("counting", 2), JobGarbage("other/dag", 2)]
        assert collect_garbage(jet.store) == []
        assert jet.run(counting_dag(1, Place())).status is JobStatus.COMPLETED


@pytest.mark.parametrize(("retention", "passes"), [("20 ms", True), (None, False)])
def test_the_configuration_says_how_long_a_laggard_holds_back(open_jet, retention, passes):
    gate, out = Event(), []
    dag = two_feeds([Watermark(100)], ["event"], gate, out)
    with open_jet() as jet:
        config = JobConfig(guarantee="none", max_watermark_retention=retention)
        job = jet.submit(dag, config)
        deadline = time.monotonic() + (30 if passes else 0.5)
        while Watermark(100) not in out and time.monotonic() < deadline:
            time.sleep(0.005)
        assert (Watermark(100) in out) == passes
        job.cancel()


def test_a_negative_retention_is_refused():
    with pytest.raises(ConfigurationError, match="max_watermark_retention is negative"):
        JobConfig(max_watermark_retention=timedelta(seconds=-1))

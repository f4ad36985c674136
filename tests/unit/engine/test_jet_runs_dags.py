"""`jet.run` and `jet.submit` of a DAG: without Spark, with snapshots in the store."""

import time
from collections import Counter
from datetime import timedelta
from threading import Event

import pytest

from dagster_jet import Jet, JobConfig
from dagster_jet.core import Watermark
from dagster_jet.engine.local import LocalStatus, StoredSnapshots
from dagster_jet.errors import ConfigurationError, JobStateError, ProcessorError
from tests.unit.engine.local_processors import (
    Place,
    counting_dag,
    expected_counts,
    two_feeds,
)

BACK_TO_BACK = JobConfig(snapshot_interval=timedelta(0), parallelism=2)


@pytest.fixture
def open_jet(tmp_path):
    return lambda: Jet(store=[f"file://{tmp_path}/store"], backup_count=0, partition_count=7)


def test_a_dag_runs_to_its_end_and_leaves_nothing(open_jet):
    with open_jet() as jet:
        place = Place()
        result = jet.run(counting_dag(20, place), BACK_TO_BACK)
        assert result.status is LocalStatus.COMPLETED
        assert Counter(place.committed) == expected_counts(20)
        assert StoredSnapshots(jet.store, "counting").latest() is None
        again = Place()
        jet.run(counting_dag(20, again), JobConfig(guarantee="none"))
        assert Counter(again.committed) == expected_counts(20)


def test_another_process_goes_on_from_the_store(open_jet):
    place, gate = Place(), Event()
    with open_jet() as jet:
        job = jet.submit(counting_dag(200, place, gate), BACK_TO_BACK)
        with pytest.raises(JobStateError, match="running in this process already"):
            jet.submit(counting_dag(200, place, gate))
        job.snapshot()
    assert job.status is LocalStatus.CANCELLED, "closing takes a terminal snapshot"
    assert not place.prepared
    gate.set()
    with open_jet() as jet:
        jet.run(counting_dag(200, place, gate), JobConfig(parallelism=3))
    assert Counter(place.committed) == expected_counts(200)


def test_after_a_crash_it_goes_on_from_the_last_snapshot(open_jet):
    place, gate = Place(crash_at=300), Event()
    with open_jet() as jet:
        with pytest.raises(ProcessorError, match="at item"):
            jet.run(counting_dag(200, place, gate), BACK_TO_BACK)
        latest = StoredSnapshots(jet.store, "counting").latest()
        assert latest is not None
        saved = {name for name, _ in latest.state("sink")}
        place.prepared = {n: items for n, items in place.prepared.items() if n in saved}
        gate.set()
        assert jet.run(counting_dag(200, place, gate)).status is LocalStatus.COMPLETED
    assert Counter(place.committed) == expected_counts(200)


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

"""Metrics of a job: rows are counted once, gauges are current, and nothing grows without bound."""

from __future__ import annotations

import gc
import shutil
import tracemalloc
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from dagster_jet.execution.events import ExecutionEnded, SourceAvailable, SourceUnavailable
from dagster_jet.observe.metrics.instruments import COUNTERS, HISTOGRAMS, READINGS
from dagster_jet.snapshot.record import JobStatus, StopCause
from tests.long import long

from .measured_job import (
    committed,
    epoch,
    everything,
    failed,
    measured,
    points,
    progress,
    started,
)

_EPOCHS = 1_500


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


def test_every_instrument_has_a_value_behind_the_events_of_a_job(
    tmp_path: Path, reader: InMemoryMetricReader
) -> None:
    with measured(tmp_path, reader) as (job, _):
        for event in everything():
            job.note(event)
        found = points(reader)
    assert set(found) == {*COUNTERS, *HISTOGRAMS, *READINGS}
    assert found["dagster_jet.epoch.rows"] == {("shop",): 10}
    assert found["dagster_jet.source.rows"] == {("shop", "orders"): 100}
    assert found["dagster_jet.stage.rows"] == {("shop", "hourly"): 94}
    assert found["dagster_jet.sink.rows"] == {("shop", "out"): 50}
    assert found["dagster_jet.rows.late"] == {("shop", "hourly"): 4}
    assert found["dagster_jet.stage.counted"] == {("bad_rows", "shop", "hourly"): 10}
    assert found["dagster_jet.stage.gauge"] == {("version", "shop", "hourly"): 7.5}
    assert found["dagster_jet.stage.recorded.sum"] == {("seconds", "shop", "hourly"): 25.0}
    assert found["dagster_jet.stage.recorded"] == {
        ("seconds", "shop", "hourly", le): number
        for le, number in (("0.5", 50), ("2.0", 50), ("+Inf", 75))
    }
    assert found["dagster_jet.rows.rejected"] == {("shop", "orders"): 6}
    assert found["dagster_jet.source.lost"] == {("shop", "orders"): 3}
    assert found["dagster_jet.snapshot.failures"] == {("shop",): 1}
    assert found["dagster_jet.commit.retries"] == {("shop",): 1}
    assert found["dagster_jet.snapshot.written"] == {("shop",): 4_096}
    assert found["dagster_jet.epoch.duration"] == {("shop",): (1, 0.08)}
    assert found["dagster_jet.epoch.phase.duration"] == {
        ("shop", "action"): (1, 0.06),
        ("shop", "step", "hourly"): (1, 0.02),
    }
    assert found["dagster_jet.snapshot.duration"] == {("shop",): (1, 0.05)}
    assert found["dagster_jet.commit.duration"] == {("shop",): (1, 0.25)}
    assert found["dagster_jet.source.watermark.lag"] == {("shop", "orders"): 30.0}
    assert found["dagster_jet.stage.watermark.lag"] == {("shop", "hourly"): 90.0}
    assert found["dagster_jet.stage.state.rows"] == {("shop", "hourly"): 40}
    assert found["dagster_jet.state.size"] == {("shop",): 10_000}
    assert found["dagster_jet.job.up"] == {("shop",): 1}
    members = found["dagster_jet.store.members"]
    assert sorted((key[0], value) for key, value in members.items()) == [
        ("reachable", 2),
        ("unreachable", 0),
    ]


def test_rows_are_counted_once_over_a_restart_and_anew_after_going_back(
    tmp_path: Path, reader: InMemoryMetricReader
) -> None:
    def counted() -> int:
        found: int = points(reader)["dagster_jet.source.rows"]["shop", "orders"]
        return found

    with measured(tmp_path, reader) as (job, _):
        job.note(started(read=1_000))  # an earlier process had read these
        job.note(committed(1_100))
        job.note(progress(1_190, 0))  # not committed: read again after the restart
        assert counted() == 100
        job.note(started(read=1_100, restarts=1))
        job.note(committed(1_200))
        assert counted() == 200
        job.note(started(read=1_250))  # what a dead execution had decided was committed by a start
        assert counted() == 250
        job.note(started(read=400))  # initial_snapshot
        job.note(committed(500))
        assert counted() == 350


def test_progress_between_snapshots_moves_what_is_true_now(
    tmp_path: Path, reader: InMemoryMetricReader
) -> None:
    with measured(tmp_path, reader) as (job, _):
        job.note(started())
        job.note(progress(10, 7))
        job.note(SourceUnavailable("shop", "orders", 5, "broker away"))
        found = points(reader)
        assert found["dagster_jet.source.lag"] == {
            ("shop", "orders", "files"): 7,
            ("shop", "orders", "bytes"): 7_000,
        }
        assert found["dagster_jet.source.available"] == {("shop", "orders"): 0}
        job.note(SourceAvailable("shop", "orders", 5))
        assert points(reader)["dagster_jet.source.available"] == {("shop", "orders"): 1}


def test_a_job_that_has_ended_is_not_up_and_its_counters_stay(
    tmp_path: Path, reader: InMemoryMetricReader
) -> None:
    with measured(tmp_path, reader) as (job, _):
        for event in everything():
            job.note(event)
        job.note(ExecutionEnded("shop", 4, JobStatus.COMPLETED, StopCause.COMPLETE, ""))
        found = points(reader)
        assert not found.get("dagster_jet.job.up") and not found.get("dagster_jet.source.lag")
        assert found["dagster_jet.source.rows"] == {("shop", "orders"): 100}


def test_a_member_that_is_away(tmp_path: Path, reader: InMemoryMetricReader) -> None:
    with measured(tmp_path, reader) as (job, _):
        shutil.rmtree(tmp_path / "b")
        job.note(started())
        found = points(reader)
    members = found["dagster_jet.store.members"]
    assert sorted((key[0], value) for key, value in members.items()) == [
        ("reachable", 1),
        ("unreachable", 1),
    ]
    (missing,) = found["dagster_jet.store.partitions.under_replicated"].values()
    assert missing == 271


def test_what_fails_in_here_is_said_once_and_fails_no_job(
    tmp_path: Path, reader: InMemoryMetricReader, caplog: pytest.LogCaptureFixture
) -> None:
    with measured(tmp_path, reader) as (job, _):
        job.instruments.counters.clear()
        for _ in range(3):
            job.note(epoch())
    said = [text for text in caplog.messages if "without metrics" in text]
    assert len(said) == 1 and said[0].startswith("job 'shop' goes on without metrics")


@long
def test_a_long_run_takes_no_more_memory_than_a_short_one(
    tmp_path: Path, reader: InMemoryMetricReader
) -> None:
    with measured(tmp_path, reader) as (job, _):
        job.note(started())

        def held(first: int) -> int:
            for number in range(first, first + _EPOCHS):
                job.note(epoch())
                job.note(failed(number))
                job.note(committed(100 + number))
            points(reader)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        held(1)
        tracemalloc.start()
        try:
            before = held(_EPOCHS)
            after = held(2 * _EPOCHS)
        finally:
            tracemalloc.stop()
    assert after - before < _EPOCHS * 16  # less than the smallest object per epoch

"""A cancelled or evicted run drains: terminal snapshot, then the interrupt goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest

from dagster_jet import Jet
from dagster_jet.jobs.supervision import read_supervision
from dagster_jet.snapshot.record import JobStatus
from tests.long import long

from .tiny import committed_rows, put_file

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_SECONDS = 240


@dataclass
class Worker:
    """A process that runs the tiny job on an instance of its own until it is stopped."""

    folder: Path
    process: subprocess.Popen[bytes]
    instance: dg.DagsterInstance
    jet: Jet

    def wait_for(self, what: str, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not happened():
            assert self.process.poll() is None, f"the worker ended before: {what}"
            assert time.monotonic() < deadline, f"in vain: {what}"
            time.sleep(0.05)

    def run(self) -> dg.DagsterRun:
        (run,) = self.instance.get_runs()
        return run

    def end(self) -> None:
        self.process.wait(TIMEOUT_SECONDS)


@contextmanager
def start_worker(tmp_path: Path, **more_environment: str) -> Iterator[Worker]:
    put_file(tmp_path, 0)
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    environment = {**os.environ, "DAGSTER_HOME": str(home), "TINY_FOLDER": str(tmp_path)}
    environment.update(more_environment)
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.tiny"], cwd=REPOSITORY, env=environment
        )
        try:
            with dg.DagsterInstance.from_config(str(home)) as instance:
                yield Worker(tmp_path, process, instance, jet)
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with start_worker(tmp_path) as worker:
        worker.wait_for(
            "the first rows are committed",
            lambda: len(committed_rows(tmp_path / "copy")) == 60,
        )
        put_file(tmp_path, 1)
        yield worker


def test_a_users_cancel_drains_and_pauses(worker: Worker) -> None:
    worker.instance.report_run_canceling(worker.run())
    worker.process.send_signal(signal.SIGTERM)
    worker.end()
    assert worker.run().status is dg.DagsterRunStatus.CANCELED
    assert_drained(worker)
    supervision = read_supervision(worker.jet.store, "tiny")
    assert supervision is not None and supervision.intent == "paused"


def test_an_eviction_drains_and_does_not_pause(worker: Worker) -> None:
    worker.process.send_signal(signal.SIGTERM)
    worker.end()
    assert worker.run().status is dg.DagsterRunStatus.FAILURE, "nobody asked Dagster for it"
    assert_drained(worker)
    supervision = read_supervision(worker.jet.store, "tiny")
    assert supervision is not None and supervision.intent == "always-on"


@long
def test_a_cancel_that_meets_dagsters_own_code_drains_too(tmp_path: Path) -> None:
    """Between two events the interrupt is Dagster's: the asset's generator is never told."""
    with start_worker(tmp_path, TINY_CANCELS_ITSELF="1") as worker:
        worker.end()
        assert worker.run().status is dg.DagsterRunStatus.CANCELED
        assert_drained(worker)
        supervision = read_supervision(worker.jet.store, "tiny")
        assert supervision is not None and supervision.intent == "paused"


def assert_drained(worker: Worker) -> None:
    record = worker.jet.record("tiny")
    assert record is not None and record.snapshot is not None
    assert record.status is JobStatus.NOT_RUNNING
    assert record.lease is None
    assert record.snapshot.committed
    key = dg.AssetKey(["tiny", "copy_out"])
    event = worker.instance.get_latest_materialization_event(key)
    assert event is not None and event.asset_materialization is not None
    metadata = event.asset_materialization.metadata
    ends = [metadata["snapshot"].value]
    for observed in worker.instance.fetch_observations(key, limit=1).records:
        assert observed.asset_observation is not None
        ends.append(observed.asset_observation.metadata["snapshot"].value)
    assert max(ends) == record.snapshot.snapshot_id, "observed, if it brought no rows"
    rows = committed_rows(worker.folder / "copy")
    assert len(rows) == metadata["dagster/row_count"].value
    assert len(rows) in (60, 120), "the second file is in whole, or not yet"

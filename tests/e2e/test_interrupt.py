"""A cancelled or evicted run drains: terminal snapshot, then the interrupt goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dagster_jet.ownership.supervision import read_supervision
from dagster_jet.snapshot.record import JobStatus
from tests.long import long

from .run_worker import Worker, start_worker
from .tiny import committed_rows, put_file


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with start_worker(tmp_path) as worker:
        worker.wait_for(
            "the first rows are committed",
            lambda: len(committed_rows(tmp_path / "copy")) == 60,
        )
        put_file(tmp_path, 1)
        yield worker


@long
@pytest.mark.parametrize("forced", [False, True])
def test_a_users_cancel_drains_and_pauses(worker: Worker, forced: bool) -> None:
    """In `make test` a person does it: `browser/test_ui.py`. A forced one failed before: it did not
    pause the job."""
    worker.instance.report_run_canceling(worker.run())
    if forced:
        worker.instance.report_run_canceled(worker.run())
    worker.process.send_signal(signal.SIGTERM)
    worker.end()
    assert worker.run().status is dg.DagsterRunStatus.CANCELED
    assert_drained(worker)
    supervision = read_supervision(worker.jet.store, "tiny")
    assert supervision is not None and supervision.intent == "paused"


@long
def test_an_eviction_drains_and_does_not_pause(worker: Worker) -> None:
    worker.process.send_signal(signal.SIGTERM)
    worker.end()
    assert worker.run().status is dg.DagsterRunStatus.FAILURE, "nobody asked Dagster for it"
    assert_drained(worker)
    supervision = read_supervision(worker.jet.store, "tiny")
    assert supervision is not None and supervision.intent == "always-on"


@long
def test_a_cancel_that_meets_dagsters_own_code_drains_too(tmp_path: Path) -> None:
    """Dagster handles an interrupt between two events: the asset's generator is never told."""
    with start_worker(tmp_path, TINY_CANCELS_ITSELF="1") as worker:
        worker.end()
        assert worker.run().status is dg.DagsterRunStatus.CANCELED
        assert_drained(worker)
        supervision = read_supervision(worker.jet.store, "tiny")
        assert supervision is not None and supervision.intent == "paused"


def assert_drained(worker: Worker) -> None:
    record = worker.jet.job("tiny").record()
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

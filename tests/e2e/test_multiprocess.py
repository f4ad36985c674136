"""A retry policy restarts a step whose process is killed."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import psutil

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.run_worker import RunWorker
from dagster_jet.ownership.record_keeper import read_record
from tests.long import long

from .run_worker import Worker, start_worker
from .tiny import committed_rows, put_file


def driver(worker: Worker, after: int = 0) -> tuple[int, int] | None:
    """The newest execution and its process."""
    record = read_record(worker.jet.store, "tiny")
    if record is None or record.lease is None or record.execution_id <= after:
        return None
    return record.execution_id, record.lease.pid


@long
def test_a_killed_step_goes_on_in_the_same_run(tmp_path: Path) -> None:
    with start_worker(tmp_path, TINY_RETRIES="1") as worker:
        worker.wait_for("60 rows", lambda: len(committed_rows(tmp_path / "copy")) == 60)
        found = driver(worker)
        assert found is not None
        execution, step = found
        assert step != worker.process.pid, "a process of its own"
        (run,) = worker.instance.get_runs()
        noted = RunWorker.from_tag(run.tags.get(keys.TAG_WORKER), run.run_id)
        assert noted is not None and (noted.pid, noted.parent_pid) == (step, worker.process.pid)
        assert noted.execution_id == execution
        psutil.Process(step).kill()
        put_file(tmp_path, 1)
        assert not noted.is_gone, "the run worker begins the step anew"
        worker.wait_for("120 rows", lambda: len(committed_rows(tmp_path / "copy")) == 120)
        assert driver(worker, after=execution) is not None
        (run,) = worker.instance.get_runs()
        assert run.status is dg.DagsterRunStatus.STARTED
        worker.instance.report_run_canceling(run)
        worker.process.terminate()
        worker.end()
        assert worker.run().status is dg.DagsterRunStatus.CANCELED
        rows = sorted(row["v"] for row in committed_rows(tmp_path / "copy"))
        assert rows == sorted(float(v) for v in range(60) for _ in range(2)), "each row once"

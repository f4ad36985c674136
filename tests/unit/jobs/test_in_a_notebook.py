"""Notebook views of jobs and results."""

from __future__ import annotations

from pathlib import Path

from dagster_jet import Jet, JobResult
from dagster_jet.snapshot.record import JobStatus, StopCause
from tests.unit.cli.job_in_store import StoredJob


def test_a_job_and_a_result(tmp_path: Path) -> None:
    with Jet(store=[f"file://{tmp_path}/a"], backup_count=0) as jet:
        assert "<td>never ran</td>" in jet.job("orders")._repr_html_()
        stored = StoredJob(jet.store, "orders", 7)
        stored.is_at(JobStatus.FAILED, cause=StopCause.ERROR, failure="no <model>")
        shown = jet.job("orders")._repr_html_()
    assert shown.startswith(
        "<table><caption>Job orders</caption><tr><td>status</td><td>FAILED</td>"
    )
    assert "<td>execution</td><td>7</td>" in shown and "no &lt;model&gt;" in shown
    result = JobResult(JobStatus.COMPLETED, 10, 9, 3, 2)._repr_html_()
    assert "<tr><td>rows in</td><td>10</td></tr>" in result and "COMPLETED" in result
    assert "ignored" not in result

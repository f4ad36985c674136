"""Jobs in a notebook: how they look, and calls that nothing has checked before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_jet import Jet, JobResult, Pipeline
from dagster_jet.errors import ConfigurationError
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((lambda: None,), "pipeline: expected a Pipeline, not a function"),
        ((Pipeline("p"), {"parallelism": 2}), "config: expected a JobConfig, not a dict"),
        (
            (Pipeline("p"), "completed"),
            r"config: .* not a str\. Write JobConfig\(\.\.\.\), and until=",
        ),
    ],
)
def test_a_job_of_something_else(tmp_path: Path, given: Any, said: str) -> None:
    """Failed before: an AttributeError."""
    with (
        Jet(store=[f"file://{tmp_path}/a"], backup_count=0) as jet,
        pytest.raises(ConfigurationError, match=said),
    ):
        jet.run(*given)

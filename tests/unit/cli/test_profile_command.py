"""``dagster-jet profile``: read from the store alone; no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dagster_jet.cli import app
from dagster_jet.core.phases import Phase
from dagster_jet.observe.writing.profile_keeper import ProfileKeeper
from dagster_jet.observe.writing.recent_timings import RecentTimings, Timing
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.store import Store, StoreConfig

from .job_in_store import StoredJob


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(StoreConfig((f"file://{tmp_path}/a",), backup_count=0)) as store:
        StoredJob(store, "shop").is_at(JobStatus.NOT_RUNNING)
        yield store


def measured(store: Store) -> None:
    timings = RecentTimings()
    for number in (7, 8, 9):
        timing = Timing(number, 5_000)
        timing.add(Phase.BUILDING, 30.0)
        timing.add(Phase.ACTION, 70.0)
        timing.add(Phase.SPARK, 25.0)
        timing.add(Phase.STEP, 45.0, "hourly")
        timings.add_epoch(timing)
    snapshot = Timing(3)
    snapshot.add(Phase.COMMIT, 12.0)
    snapshot.add(Phase.COMMIT, 11.0, "out")
    timings.add_snapshot(snapshot)
    ProfileKeeper(store, "shop", 4, timings, lambda: 0.0, lambda: 1_700_000_000_000).close()


def run(tmp_path: Path, *arguments: str) -> Any:
    environment = {"DAGSTER_JET_STORE": f"file://{tmp_path}/a", "COLUMNS": "120"}
    return CliRunner().invoke(app, ["profile", "shop", *arguments], env=environment)


def test_a_table_for_people_and_a_sentence(store: Store, tmp_path: Path) -> None:
    measured(store)
    shown = run(tmp_path)
    assert shown.exit_code == 0, shown.stderr
    assert "execution 4, epochs 8 to 9, as of 2023-11-14 22:13:20 UTC" in shown.stdout
    cells = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in shown.stdout.splitlines()
        if line.startswith("│")
    ]
    assert ["the step of hourly", "45.0%", "45.0", "45.0", "45.0"] in cells
    assert ["committing to out", "", "11.0", "11.0", "11.0"] in cells
    assert "2 epochs, 10,000 rows, 50,000 rows/s" in shown.stdout
    assert "The execution's first epoch, which warms up, took 0.1 s." in shown.stdout
    assert "The largest part of an epoch is the step of hourly: 45% of the time" in shown.stdout


def test_one_document_for_programs(store: Store, tmp_path: Path) -> None:
    measured(store)
    document = json.loads(run(tmp_path, "--json").stdout)
    assert (document["job"], document["execution_id"], document["epochs"]) == ("shop", 4, 2)
    assert document["rows_per_second"] == 50_000
    assert document["largest"] == {"phase": "step", "stage": "hourly"}


def test_a_job_that_was_never_measured(store: Store, tmp_path: Path) -> None:
    refused = run(tmp_path)
    assert refused.exit_code == 2
    assert "the job has no profile" in refused.stderr

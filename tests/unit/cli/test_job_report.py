"""``dagster-jet job NAME``: the record, and why nothing comes out; read from the store alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dagster_jet import FindingKind, Jet, JobStateError
from dagster_jet.cli import app
from dagster_jet.execution.events import SourceProgress, StageProgress
from dagster_jet.ownership.lease import wall_clock_ms
from dagster_jet.snapshot.manifest import Counters, Manifest, checksum
from dagster_jet.snapshot.record import JobStatus, SnapshotRef
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store, StoreConfig

from .job_in_store import StoredJob

NOON = 1_699_963_200_000  # 2023-11-14 12:00:00 UTC


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(StoreConfig((f"file://{tmp_path}/a",), backup_count=0)) as store:
        yield store


def run(tmp_path: Path, *arguments: str) -> Any:
    environment = {"DAGSTER_JET_STORE": f"file://{tmp_path}/a", "COLUMNS": "200"}
    return CliRunner().invoke(app, list(arguments), env=environment)


def snapshot_of(store: Store, taken_at_ms: int) -> SnapshotRef:
    """A snapshot of a job with a window, as its execution would write it."""
    manifest = Manifest(
        job="shop", snapshot_id=9, epoch_id=20, execution_id=1, timeline=1, plan_fingerprint="",
        partition_count=271, sources={"orders": {}, "prices": {}}, watermarks={},
        shards={"hourly": ()}, artifacts=(), plan={"hourly": {"kind": "aggregate"}},
        counters={"orders": Counters(100), "hourly": Counters(100)}, sinks={"out": {"kind": "x"}},
    )  # fmt: skip
    SnapshotStore(store, "shop").write(manifest)
    sum_of = checksum(manifest.to_bytes())
    return SnapshotRef(9, 20, 1, manifest.name, sum_of, taken_at_ms, 1_000, committed=True)


def held_back(store: Store) -> None:
    """Two sources, and one that holds the windows of both open for five minutes."""
    job, now_ms = StoredJob(store, "shop"), wall_clock_ms()
    job.is_at(JobStatus.RUNNING, snapshots=(snapshot_of(store, now_ms - 120_000),))
    held = StageProgress(
        100, 0, state_rows=40, watermark_ms=NOON, held_back_by="prices", held_back_partition="p-2",
        held_back_since_ms=now_ms - 300_000, next_due_ms=NOON + 3_600_000,
    )  # fmt: skip
    prices = SourceProgress(0, {}, {"rows": 0}, {"p-1": 0, "p-2": 0})
    orders = SourceProgress(100, {}, {"rows": 1_200}, {"o-1": 1_150, "o-2": 50})
    job.reports(
        sources={"orders": orders, "prices": prices},
        stages={"hourly": held, "out": StageProgress(0, 0)},
        rows_per_second=10.0,
        last_rows_ms={"orders": now_ms},
    )


def test_who_holds_the_watermark_in_words_and_what_waits_where(
    store: Store, tmp_path: Path
) -> None:
    held_back(store)
    shown = run(tmp_path, "job", "shop")
    assert shown.exit_code == 0, shown.stderr
    text = " ".join(shown.stdout.split())
    assert "1. The watermark of hourly is at 2023-11-14 12:00:00; partition p-2 of prices has" in (
        text
    )
    assert "passes 2023-11-14 13:00:00, 1 h of event time from there." in text
    assert "1.2 k rows wait in orders; the job reads 10 rows/s; most in partitions o-1: 1.1 k" in (
        text
    )
    assert "prices, partition p-2" in text


def test_one_document_for_programs(store: Store, tmp_path: Path) -> None:
    held_back(store)
    (document,) = json.loads(run(tmp_path, "job", "shop", "--json").stdout)
    assert (document["job"], document["status"], document["execution"]) == ("shop", "RUNNING", 1)
    first = document["findings"][0]
    assert (first["kind"], first["subject"]) == ("watermark held", "hourly")
    assert abs(wall_clock_ms() - 300_000 - first["since_ms"]) < 60_000
    assert document["sources"]["orders"]["partition_lag"] == {"o-1": 1_150, "o-2": 50}
    assert document["stages"]["hourly"]["held_back_partition"] == "p-2"
    assert "orders" not in document["stages"]


def test_the_same_from_python_and_a_job_that_never_ran(store: Store, tmp_path: Path) -> None:
    held_back(store)
    with Jet(store=[f"file://{tmp_path}/a"], backup_count=0) as jet:
        explanation = jet.job("shop").explain()
        assert explanation.findings[0].kind is FindingKind.WATERMARK_HELD
        assert explanation.reported_at_ms is not None
        with pytest.raises(JobStateError, match="has ever run"):
            jet.job("no_such_job").explain()


def test_a_report_of_an_older_execution_is_not_that_of_this_one(
    store: Store, tmp_path: Path
) -> None:
    held_back(store)
    StoredJob(store, "shop", 2).is_at(JobStatus.RUNNING)
    (document,) = json.loads(run(tmp_path, "job", "shop", "--json").stdout)
    assert (document["reported_at_ms"], document["findings"]) == (None, [])


def test_a_failed_job_is_explained_and_the_exit_code_says_so(store: Store, tmp_path: Path) -> None:
    StoredJob(store, "shop").is_at(JobStatus.FAILED, failure="orders: no such topic")
    shown = run(tmp_path, "job", "shop")
    assert shown.exit_code == 1
    assert "1. The job has FAILED: orders: no such topic." in shown.stdout

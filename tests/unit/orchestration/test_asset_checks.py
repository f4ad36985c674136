"""Checks on a real store and a real Dagster instance; no Spark."""

import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_jet import Jet, JetResource, Pipeline, build_jet_asset_checks, jet_assets
from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration import health
from dagster_jet.orchestration.health import Limits
from dagster_jet.ownership.lease import new_lease
from dagster_jet.ownership.record_keeper import record_register
from dagster_jet.snapshot.manifest import Counters, Manifest, checksum
from dagster_jet.snapshot.record import (
    Activity,
    Doing,
    ExecutionRecord,
    JobStatus,
    SnapshotRef,
)

JOB = "shop"
LIMITS = Limits(60_000, 30_000, 0.1, 0.1)
NOW = 10_000_000


@pytest.fixture
def members(tmp_path: Path) -> list[str]:
    return [f"file://{tmp_path}/{name}" for name in "abc"]


@pytest.fixture
def jet(members: list[str]) -> Iterator[Jet]:
    with Jet(store=members, backup_count=1) as jet:
        yield jet


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def snapshot(jet: Jet, counters: Mapping[str, Counters], **fields: Any) -> SnapshotRef:
    manifest = Manifest(
        job=JOB, snapshot_id=4, epoch_id=9, execution_id=1, timeline=1, plan_fingerprint="",
        partition_count=271, sources={}, shards={}, artifacts=(), counters=dict(counters),
        watermarks={"reached_ms": {"revenue": now_ms() - 90_000},
                    "held_back_by": {"revenue": {"source": "orders"}}},
    )  # fmt: skip
    state = jet.store.map(f"jobs/{JOB}/state")
    state.put_all({state.key(manifest.name): manifest.to_bytes()})
    digest = checksum(manifest.to_bytes())
    return SnapshotRef(4, 9, 1, manifest.name, digest, now_ms(), 8, **fields)


def write(jet: Jet, record: ExecutionRecord) -> None:
    register = jet.store.register(record_register(JOB))
    register.claim(record.execution_id, "test").write(record.to_bytes())


def run(
    pipeline: Pipeline, members: list[str], **limits: Any
) -> dict[str, dg.AssetCheckEvaluation]:
    """By ``asset:check``, what one run of all checks says."""

    @jet_assets(pipeline=pipeline)
    def assets(context: dg.AssetExecutionContext, jet: JetResource) -> Iterator[Any]:
        yield from jet.run(context=context)

    checks = build_jet_asset_checks(assets, **limits)
    job = dg.Definitions(
        assets=[assets],
        asset_checks=[checks],
        jobs=[dg.define_asset_job("checks", dg.AssetSelection.checks(checks))],
        resources={"jet": JetResource(store=members, backup_count=1)},
    ).resolve_job_def("checks")
    with dg.DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(instance=instance)
    assert done.success
    return {
        f"{each.asset_key.path[-1]}:{each.check_name}": each
        for each in done.get_asset_check_evaluations()
    }


def test_a_job_that_is_well_is_green(jet: Jet, pipeline: Pipeline, members: list[str]):
    ref = snapshot(jet, {"orders": Counters(rows_in=100), "revenue": Counters(rows_in=100)})
    write(
        jet, ExecutionRecord(JOB, 1, JobStatus.RUNNING, snapshots=(replace(ref, committed=True),))
    )
    found = run(pipeline, members)
    assert set(found) == {
        "revenue:late_rows",
        *(
            f"{sink}:{check}"
            for sink in ("revenue_out", "large_out", "bad_orders")
            for check in ("snapshot_age", "committed", "store_safe", "rejected_rows")
        ),
    }
    assert all(each.passed for each in found.values()), found
    assert found["revenue_out:committed"].metadata["epoch"].value == 9


def test_a_member_that_is_lost_turns_the_store_red(
    jet: Jet, pipeline: Pipeline, members: list[str], tmp_path: Path
):
    ref = snapshot(jet, {"orders": Counters(rows_in=90, rejected=10)}, committed=True)
    write(jet, ExecutionRecord(JOB, 1, JobStatus.RUNNING, snapshots=(ref,)))
    jet.close()
    shutil.rmtree(tmp_path / "b")
    found = run(pipeline, members, max_watermark_lag="1 minute")
    red = found["revenue_out:store_safe"]
    assert not red.passed and red.severity is dg.AssetCheckSeverity.ERROR
    assert "does not answer" in red.description and "store repair" in red.description
    assert found["revenue_out:committed"].passed
    rejected = found["revenue_out:rejected_rows"]
    assert not rejected.passed and rejected.severity is dg.AssetCheckSeverity.WARN
    assert "10 of 100 rows did not fit" in rejected.description
    lag = found["revenue:watermark_lag"]
    assert not lag.passed and "held back by orders" in lag.description


def test_a_job_that_never_ran(pipeline: Pipeline, members: list[str], jet: Jet):
    found = run(pipeline, members)
    assert not found["large_out:snapshot_age"].passed
    assert found["large_out:snapshot_age"].description == "The job has no snapshot yet."
    assert found["revenue:late_rows"].passed


@pytest.mark.parametrize(
    "limits", [{"max_late_ratio": 2}, {"max_snapshot_age": "5 parsecs"}], ids=str
)
def test_limits_that_cannot_be_are_refused_at_load(pipeline: Pipeline, limits: Any):
    with pytest.raises(ConfigurationError, match=next(iter(limits))):
        run(pipeline, [], **limits)


# --- verdicts -------------------------------------------------------------------------------------

REF = SnapshotRef(4, 9, 1, "m", 0, NOW - 90_000, 8)


def record(status: JobStatus = JobStatus.RUNNING, **lease: Any) -> ExecutionRecord:
    made = ExecutionRecord(JOB, 1, status, snapshots=(REF,))
    if not lease:
        return made
    return made.with_lease(replace(new_lease("me", 10_000, None), **lease))


@pytest.mark.parametrize(
    ("of", "is_well"),
    [
        (record(), False),
        (record(JobStatus.COMPLETED), True),
        (record(activity=Activity(Doing.IDLE, 80_000), renewed_at_ms=NOW - 1000), True),
        (record(activity=Activity(Doing.EPOCH, 80_000), renewed_at_ms=NOW - 1000), False),
        (record(activity=Activity(Doing.IDLE, 80_000), renewed_at_ms=NOW - 300_000), False),
        (None, False),
    ],
    ids=["running", "completed", "alive and idle", "busy", "was idle, and died", "never ran"],
)
def test_an_old_snapshot_is_bad_unless_there_is_nothing_to_do(of: Any, is_well: bool):
    assert health.snapshot_age(of, NOW, LIMITS).is_well is is_well


def test_a_commit_may_be_pending_for_a_while():
    assert not health.committed(record(), NOW, LIMITS).is_well
    fresh = replace(record(), snapshots=(replace(REF, taken_at_ms=NOW - 1000),))
    assert health.committed(fresh, NOW, LIMITS).is_well


def test_ratios_count_from_the_limit_on():
    assert health.late_rows(Counters(rows_in=90, late=10), LIMITS).is_well
    late = health.late_rows(Counters(rows_in=89, late=11), LIMITS)
    assert not late.is_well and "11 of 100 rows came too late (11.00%)" in late.why

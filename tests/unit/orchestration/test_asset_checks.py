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
from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration import health
from dagster_jet.orchestration.health import Limits
from dagster_jet.ownership.lease import new_lease
from dagster_jet.ownership.liveness import as_lost
from dagster_jet.ownership.record_keeper import record_register
from dagster_jet.ownership.supervision import Intent, Supervision
from dagster_jet.snapshot.manifest import Counters, Manifest, checksum
from dagster_jet.snapshot.record import (
    Activity,
    Doing,
    ExecutionRecord,
    JobStatus,
    SnapshotRef,
    StopCause,
)

from .damage import flip_in

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
    """Evaluations of one run of all checks, by ``asset:check``."""

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
    running = ExecutionRecord(
        JOB, 1, JobStatus.RUNNING, snapshots=(replace(ref, committed=True),),
        lease=new_lease("me", 60_000, None),
    )  # fmt: skip
    write(jet, running)
    found = run(pipeline, members)
    assert set(found) == {
        "revenue:late_rows",
        *(
            f"{sink}:{check}"
            for sink in ("revenue_out", "large_out", "bad_orders")
            for check in (
                "alive",
                "definition",
                "snapshot_age",
                "committed",
                "store_safe",
                "rejected_rows",
            )
        ),
    }
    assert all(each.passed for each in found.values()), found
    assert found["revenue_out:committed"].metadata["epoch"].value == 9
    assert "RUNNING" in found["revenue_out:alive"].description


def test_an_older_definition_that_runs_is_a_warning(
    jet: Jet, pipeline: Pipeline, members: list[str]
):
    """Failed before: nothing said that the changed filter did not run."""
    running = ExecutionRecord(
        JOB, 1, JobStatus.RUNNING, lease=new_lease("me", 60_000, None), definition="older"
    )
    write(jet, running)
    found = run(pipeline, members)["large_out:definition"]
    assert not found.passed and found.severity is dg.AssetCheckSeverity.WARN
    assert found.description is not None and "runs an older definition" in found.description
    write(jet, replace(running, execution_id=2, definition=pipeline.graph.definition()))
    assert run(pipeline, members)["large_out:definition"].passed
    write(jet, replace(running, execution_id=3, status=JobStatus.NOT_RUNNING, lease=None))
    assert run(pipeline, members)["large_out:definition"].passed, "the next one has the new one"


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


def test_a_stage_whose_input_is_over_has_no_lag() -> None:
    """Failed before: event time was -8,998,210,000,000 s behind the clock."""
    found = health.watermark_lag(FINAL_WATERMARK_MS, None, 1_790_000_000_000, LIMITS)
    assert found.is_well and found.numbers == {} and "over" in found.why


def test_a_damaged_copy_turns_the_store_red_until_all_are_verified(
    jet: Jet, pipeline: Pipeline, members: list[str], tmp_path: Path
):
    ref = snapshot(jet, {"orders": Counters(rows_in=90)}, committed=True)
    write(jet, ExecutionRecord(JOB, 1, JobStatus.RUNNING, snapshots=(ref,)))
    state = jet.store.map(f"jobs/{JOB}/state")
    key = state.key(ref.manifest_name)
    manifest, first = state.get(key), jet.store.table.replicas[key.partition][0]
    jet.close()
    flip_in(tmp_path / first[-1], manifest)
    for _ in range(2):
        red = run(pipeline, members)["large_out:store_safe"]
        assert not red.passed and red.severity is dg.AssetCheckSeverity.ERROR
        assert f"Damaged copies were read from {first} (1)" in red.description
        assert "store verify --repair" in red.description
    with Jet(store=members, backup_count=1) as jet:
        assert jet.store.verify(repair=True).is_whole
    assert run(pipeline, members)["large_out:store_safe"].passed


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


LIVING = record(activity=Activity(Doing.IDLE, 80_000))
ASKING = Activity(Doing.ASKING, 400_000, "all replication slots are in use")
STUCK = Activity(Doing.COMMITTING, 400_000, "the database refuses: no such table")
DOWN = ExecutionRecord(JOB, 3, JobStatus.NOT_RUNNING, snapshots=(REF,), updated_at_ms=NOW - 30_000)
BY_ERROR = replace(DOWN, cause=StopCause.ERROR, failure="the disk is full")
ALWAYS_ON = Supervision(JOB, 3, attempts=1, execution_id_seen=2, snapshot_id_seen=4)
PAUSED = replace(ALWAYS_ON, intent=Intent.PAUSED)
DRAINED = replace(ALWAYS_ON, intent=Intent.DRAINED)


@pytest.mark.parametrize(
    ("of", "wanted", "is_well", "says"),
    [
        (LIVING, ALWAYS_ON, True, "waiting for input"),
        (record(activity=STUCK), ALWAYS_ON, False, "committing a snapshot for 400 s: the database"),
        (record(activity=replace(STUCK, for_ms=200_000)), ALWAYS_ON, True, "for 200 s"),
        (record(activity=ASKING), ALWAYS_ON, False, "asking the sources for 400 s: all"),
        (record(activity=replace(ASKING, doing=Doing.STARTING)), ALWAYS_ON, False, "slots are in"),
        (record(activity=STUCK), PAUSED, False, "the database refuses"),
        (DOWN, DRAINED, True, "ts runs end by themselves"),
        (BY_ERROR, DRAINED, False, "Its last run failed: the disk is full."),
        (replace(BY_ERROR, failure="it"), DRAINED, False, "Its last run failed: it. Its"),
        (DOWN, PAUSED, True, "aused on a person's request"),
        (BY_ERROR, PAUSED, True, "aused on a person's request"),
        (replace(DOWN, status=JobStatus.COMPLETED), ALWAYS_ON, True, "COMPLETED"),
        (replace(DOWN, cause=StopCause.CANCEL), ALWAYS_ON, True, "cancelled"),
        (replace(DOWN, status=JobStatus.SUSPENDED, cause=StopCause.SUSPEND), ALWAYS_ON, True,
         "SUSPENDED (on request)"),
        (replace(BY_ERROR, status=JobStatus.SUSPENDED), ALWAYS_ON, False, "the disk is full"),
        (replace(BY_ERROR, status=JobStatus.FAILED), ALWAYS_ON, False, "the disk is full"),
        (BY_ERROR, replace(ALWAYS_ON, attempts=8), False, "has given up: 8 runs in a row"),
        (replace(BY_ERROR, cause=StopCause.LOST), ALWAYS_ON, True, "the disk is full"),
        (replace(DOWN, cause=StopCause.RESTART), ALWAYS_ON, True, "NOT_RUNNING"),
        (replace(DOWN, updated_at_ms=NOW - 61_000), ALWAYS_ON, False, "for 61 s: check that its"),
        (replace(DOWN, updated_at_ms=NOW - 61_000), None, False, "for 61 s: check that its"),
        (None, None, False, "never run"),
        (None, PAUSED, True, "aused on a person's request"),
    ],
    ids=["idle", "stuck", "busy", "a source is away", "starting for ever", "paused, and stuck",
         "drained", "drained, and failed", "drained, failed with a word of it", "paused",
         "paused after a failure", "completed", "cancelled", "suspended", "suspended by an error",
         "failed", "given up", "just killed", "between two runs", "nobody takes it up",
         "never supervised", "never ran", "paused before its first run"],
)  # fmt: skip
def test_alive_is_who_gets_on_and_what_is_wanted_down(of, wanted, is_well, says):
    found = health.alive(of, wanted, NOW, LIMITS)
    assert (found.is_well, says in found.why) == (is_well, True), found


@pytest.mark.parametrize(
    ("fruitless", "doing", "is_well"),
    [(1, Doing.EPOCH, True), (2, Doing.EPOCH, False), (2, Doing.IDLE, True)],
)
def test_a_job_that_begins_again_and_again_is_not_well(fruitless: int, doing: Doing, is_well: bool):
    of = replace(record(activity=Activity(doing, 100)), fruitless=fruitless)
    found = health.alive(of, ALWAYS_ON, NOW, LIMITS)
    assert found.is_well == is_well
    assert is_well or "2 executions before it ended without" in found.why


def test_a_job_whose_process_is_gone_has_been_down_since_its_last_sign_of_life():
    idle = replace(LIVING, updated_at_ms=NOW - 900_000)
    lost = as_lost(idle.with_lease(replace(idle.lease, renewed_at_ms=NOW - 30_000, pid=2**22 + 1)))
    assert health.alive(lost, ALWAYS_ON, NOW, LIMITS).is_well
    assert not health.alive(lost, ALWAYS_ON, NOW + 60_000, LIMITS).is_well


@pytest.mark.parametrize(
    ("of", "wanted", "limit_ms", "is_well"),
    [
        (DOWN, DRAINED, None, True),
        (record(activity=Activity(Doing.EPOCH, 1_000)), DRAINED, None, True),
        (DOWN, DRAINED, 60_000, False),
        (DOWN, DRAINED, 120_000, True),
        (DOWN, PAUSED, None, True),
        (BY_ERROR, PAUSED, None, True),
        (record(activity=Activity(Doing.EPOCH, 1_000)), PAUSED, None, False),
        (None, PAUSED, None, True),
        (replace(DOWN, status=JobStatus.FAILED, cause=StopCause.CANCEL), ALWAYS_ON, None, True),
        (DOWN, ALWAYS_ON, None, False),
    ],
    ids=["drained", "its next run", "too old for its limit", "within its limit", "paused",
         "paused after a failure", "paused, and still running", "paused before its first run",
         "cancelled", "down"],
)  # fmt: skip
def test_the_snapshot_of_a_job_that_is_down_on_purpose_may_be_old(
    of: Any, wanted: Supervision, limit_ms: int | None, is_well: bool
):
    """Failed before: with a schedule each quarter of an hour the check was red at each evaluation,
    and so it was for a paused job."""
    limits = replace(LIMITS, drained_snapshot_age_ms=limit_ms)
    assert health.snapshot_age(of, wanted, NOW, limits).is_well is is_well


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
    assert health.snapshot_age(of, ALWAYS_ON, NOW, LIMITS).is_well is is_well


def test_a_commit_may_be_pending_for_a_while():
    assert not health.committed(record(), NOW, LIMITS).is_well
    fresh = replace(record(), snapshots=(replace(REF, taken_at_ms=NOW - 1000),))
    assert health.committed(fresh, NOW, LIMITS).is_well


def test_rows_that_are_held_back_are_no_pending_commit():
    holding = replace(record(), snapshots=(replace(REF, committed=True, holds=True),))
    found = health.committed(holding, NOW, LIMITS)
    assert found.is_well and "in all sinks, but for rows that sinks hold back" in found.why


def test_ratios_count_from_the_limit_on():
    assert health.late_rows(Counters(rows_in=90, late=10), LIMITS).is_well
    late = health.late_rows(Counters(rows_in=89, late=11), LIMITS)
    assert not late.is_well and "11 of 100 rows came too late (11.00%)" in late.why

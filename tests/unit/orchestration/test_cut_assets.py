"""Sinks agree on a cut, and hours before it are sealed; a real store, no Spark."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import dagster as dg
import pytest

from dagster_jet import Jet, JetResource, Pipeline, build_jet_cut_assets, jet_assets, sinks, sources
from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.errors import ConfigurationError
from dagster_jet.snapshot.record import JobStatus

from .recorded_job import RecordedJob

CONSISTENT, SEALED = dg.AssetKey(["shop", "consistent"]), dg.AssetKey(["shop", "sealed"])
CHECK = dg.AssetCheckKey(SEALED, "sealed")
HOURS = dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00")

# Virtual assets and checks of partitions are previews of Dagster, which copies the specs of users.
pytestmark = [
    pytest.mark.filterwarnings("ignore::dagster.PreviewWarning"),
    pytest.mark.filterwarnings("ignore:Parameter `include_sources`"),
]


def at(hour: int, minute: int = 0) -> int:
    return int(datetime(2026, 1, 1, hour, minute, tzinfo=timezone.utc).timestamp() * 1000)


@dataclass
class Daemon:
    """Ticks the sensor and stores what it returns, as the daemon does."""

    definitions: dg.Definitions
    resource: JetResource
    instance: dg.DagsterInstance
    cursor: str | None = None

    def tick(self) -> list[str]:
        """Returns the assets that the sensor reports, or its skip reason."""
        repository = self.definitions.get_repository_def()
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            resources={"jet": self.resource},
            repository_def=repository,
        ) as context:
            data = repository.get_sensor_def("shop_cut").evaluate_tick(context)
        self.cursor = data.cursor
        for event in data.asset_events:
            self.instance.report_runless_asset_event(event)
        return [_said(event) for event in data.asset_events] or [data.skip_message]

    def check(self, hour: str) -> bool:
        """Executes the check of one hour, as the UI does."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        one = job.get_subset(asset_selection=set(), asset_check_selection={CHECK})
        done = one.execute_in_process(instance=self.instance, tags={"dagster/partition": hour})
        return done.get_asset_check_evaluations()[0].passed


def _said(event: dg.AssetMaterialization | dg.AssetCheckEvaluation) -> str:
    if isinstance(event, dg.AssetCheckEvaluation):
        return f"check {event.partition} {event.passed}"
    return f"{event.asset_key.path[-1]} {event.partition or event.tags['dagster/data_version']}"


@pytest.fixture
def jet(tmp_path: Path) -> Iterator[Jet]:
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        yield jet


@pytest.fixture
def daemon(tmp_path: Path, pipeline: Pipeline, jet: Jet) -> Iterator[Daemon]:
    @jet_assets(pipeline=pipeline)
    def stream():
        yield from ()

    @dg.asset(deps=[CONSISTENT], automation_condition=dg.AutomationCondition.eager())
    def report() -> None: ...

    @dg.asset_check(
        asset=SEALED,
        partitions_def=HOURS,
        automation_condition=dg.AutomationCondition.any_deps_updated().since_last_handled(),
    )
    def complete(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    resource = JetResource(store=[f"file://{tmp_path}/store"], backup_count=0)
    own = dg.Definitions(
        assets=[stream, report], asset_checks=[complete], resources={"jet": resource}
    )
    definitions = dg.Definitions.merge(own, build_jet_cut_assets(stream, hours=HOURS))
    with dg.DagsterInstance.ephemeral() as instance:
        yield Daemon(definitions, resource, instance)


def rows(number: int) -> dict[str, int]:
    return {"revenue_out": number, "large_out": number, "bad_orders": 0}


def test_hours_are_reported_once_the_watermark_is_past_them(daemon: Daemon, jet: Jet) -> None:
    job = RecordedJob(jet)
    assert daemon.tick() == ["'shop': nothing is committed yet"]
    job.commits(1, rows(1), reached_ms={"revenue": None})
    assert daemon.tick() == ["consistent 1.1"], "no watermark yet"
    job.commits(2, rows(1), reached_ms={"revenue": at(1, 59)})
    assert daemon.tick() == [
        "consistent 1.2", "sealed 2026-01-01-00:00", "check 2026-01-01-00:00 True",
    ]  # fmt: skip
    assert daemon.tick() == ["'shop': nothing new is committed"]
    assert (daemon.check("2026-01-01-00:00"), daemon.check("2026-01-01-01:00")) == (True, False)
    job.commits(3, rows(2), reached_ms={"revenue": at(3)}, committed=False)
    assert daemon.tick() == ["consistent 1.3"], "decided, and not noted as committed yet"
    job.commits(4, rows(2), reached_ms={"revenue": at(3)})
    assert [each for each in daemon.tick() if each.startswith("sealed")] == [
        "sealed 2026-01-01-01:00",
        "sealed 2026-01-01-02:00",
    ]  # fmt: skip


def test_an_hour_whose_rows_are_held_back_is_not_over(daemon: Daemon, jet: Jet) -> None:
    job, reached, before = RecordedJob(jet), {"revenue": at(3, 10)}, {"revenue": at(1, 30)}
    held = {"revenue_out": 4}
    job.commits(1, rows(9), reached_ms=reached, held=held, reached_before_ms=before)
    assert [each for each in daemon.tick() if each.startswith("sealed")] == [
        "sealed 2026-01-01-00:00"
    ]
    assert not daemon.check("2026-01-01-01:00")
    job.commits(2, rows(9), reached_ms=reached)
    assert [each for each in daemon.tick() if each.startswith("sealed")] == [
        "sealed 2026-01-01-01:00",
        "sealed 2026-01-01-02:00",
    ]  # fmt: skip


def test_hours_after_a_rewind_are_sealed_once_more(daemon: Daemon, jet: Jet) -> None:
    job = RecordedJob(jet)
    job.commits(1, rows(1), reached_ms={"revenue": at(1, 30)})
    job.commits(2, rows(2), reached_ms={"revenue": at(3, 10)})
    assert len(daemon.tick()) == 1 + 2 * 3
    job.goes_back_to(1)
    assert daemon.tick() == ["consistent 2.1"]
    assert not daemon.check("2026-01-01-02:00")
    job.commits(3, rows(2), reached_ms={"revenue": at(2)})
    assert daemon.tick() == ["consistent 2.3", "sealed 2026-01-01-01:00"]


def test_the_last_hours_of_a_completed_job_are_sealed(daemon: Daemon, jet: Jet) -> None:
    """Failed before: no text could be made of the final watermark, and every tick was red."""
    job = RecordedJob(jet)
    job.commits(1, rows(1), reached_ms={"revenue": at(1, 30)})
    daemon.tick()
    job.commits(2, rows(2), reached_ms={"revenue": FINAL_WATERMARK_MS})
    job.has_ended(JobStatus.COMPLETED)
    assert daemon.tick()[:3] == [
        "consistent 1.2", "sealed 2026-01-01-01:00", "check 2026-01-01-01:00 True",
    ]  # fmt: skip
    assert daemon.check("2026-01-01-07:00")


def test_a_watermark_before_the_calendar_seals_no_hour(daemon: Daemon, jet: Jet) -> None:
    job = RecordedJob(jet)
    job.commits(1, rows(1), reached_ms={"revenue": -62_135_596_805_000})
    assert daemon.tick() == ["consistent 1.1"], "the tick was red before"
    assert not daemon.check("2026-01-01-00:00")


def test_a_lost_cursor_repeats_what_is_sealed(daemon: Daemon, jet: Jet) -> None:
    RecordedJob(jet).commits(1, rows(1), reached_ms={"revenue": at(1, 30)})
    daemon.tick()
    daemon.cursor = None
    assert daemon.tick() == ["consistent 1.1", "sealed 2026-01-01-00:00"]


def test_a_job_that_was_deleted_and_ran_again_has_versions_and_hours_of_its_own(
    daemon: Daemon, jet: Jet
) -> None:
    """Failed before: its epochs begin again, so the version was known, and its hours were over."""
    for execution_id, version in ((1, "1.2"), (50, "1.2.50")):
        job = RecordedJob(jet, listed=True, execution_id=execution_id)
        job.commits(2, rows(2), reached_ms={"revenue": at(2, 30)})
        assert [each for each in daemon.tick() if not each.startswith("check")] == [
            f"consistent {version}",
            "sealed 2026-01-01-00:00",
            "sealed 2026-01-01-01:00",
        ]
        assert daemon.tick() == ["'shop': nothing new is committed"]
        job.has_ended(JobStatus.COMPLETED)
        jet.job("shop").delete(release_sinks=False)


def test_years_of_hours_come_in_portions(daemon: Daemon, jet: Jet) -> None:
    RecordedJob(jet).commits(1, rows(1), reached_ms={"revenue": at(0) + 60 * 3_600_000})
    sealed = []
    while "nothing new" not in (news := daemon.tick())[0]:
        sealed.append(sum(each.startswith("sealed") for each in news))
        if not sealed[-1]:
            break
    assert sealed == [50, 10]


def test_what_is_downstream_runs_on_the_cut_and_on_sealed_hours(daemon: Daemon, jet: Jet) -> None:
    asked = dg.evaluate_automation_conditions(daemon.definitions, daemon.instance)
    assert asked.total_requested == 0
    for sink in ("revenue_out", "large_out", "bad_orders"):
        daemon.instance.report_runless_asset_event(dg.AssetMaterialization(["shop", sink]))
    RecordedJob(jet).commits(1, rows(1), reached_ms={"revenue": at(2, 30)})
    daemon.tick()
    now = dg.evaluate_automation_conditions(
        daemon.definitions, daemon.instance, cursor=asked.cursor
    )
    assert now.get_num_requested(dg.AssetKey("report")) == 1
    wanted = {each.key: each.true_subset for each in now.results}
    hours = wanted[dg.AssetCheckKey(SEALED, "complete")].expensively_compute_partition_keys()
    assert hours == {"2026-01-01-00:00", "2026-01-01-01:00"}


def test_no_hours_without_a_watermark() -> None:
    p = Pipeline("plain")
    rows = p.read_from(sources.files("/in", format="json", schema="id long"), name="rows")
    rows.write_to(sinks.files("/out", format="json"), name="out")

    @jet_assets(pipeline=p)
    def stream():
        yield from ()

    with pytest.raises(ConfigurationError, match="no stateful stage"):
        build_jet_cut_assets(stream, hours=HOURS)
    only = build_jet_cut_assets(stream)
    assert [spec.key.path for spec in only.assets] == [["plain", "consistent"]]

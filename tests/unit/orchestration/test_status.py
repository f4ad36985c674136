"""Dagster's view of a stream's events: nothing looks newer, fresher or healthier than it is."""

import asyncio
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.asset_health.asset_health import AssetHealthStatus
from dagster._core.definitions.asset_health.asset_materialization_health import (
    AssetMaterializationHealthState,
)
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.definitions.freshness import FreshnessState
from dagster._core.definitions.freshness_evaluator import TimeWindowFreshnessPolicyEvaluator
from dagster._core.workspace.context import LoadingContext

from dagster_jet import (
    DagsterJetTranslator,
    Jet,
    Pipeline,
    build_jet_job,
    build_jet_source_assets,
    jet_assets,
    sinks,
    sources,
    tables,
)
from dagster_jet.events import ExecutionStarted, SnapshotCommitted, SourceProgress, StageProgress
from dagster_jet.orchestration.asset_reports import AssetReports
from dagster_jet.orchestration.health import store_safe
from dagster_jet.orchestration.reported_assets import asset_reports
from dagster_jet.orchestration.run_config import default_until
from dagster_jet.orchestration.store_watch import StoreWatch

from .damage import flip_in, spoil_first_pages, spoil_page_of

OUT, BAD = dg.AssetKey(["shop", "out"]), dg.AssetKey(["shop", "bad"])
DIM = dg.AssetKey("airports")
NOW_MS = 1_000_000_000

# Dagster's own way to ask what automation would do calls something of its own that is beta.
pytestmark = pytest.mark.filterwarnings("ignore:Parameter `include_sources`")


def shop(refresh: str | None = None) -> Pipeline:
    p = Pipeline("shop")
    schema = "id long, k string, at timestamp"
    rows = p.read_from(sources.files("/in", format="json", schema=schema), name="rows")
    rows = rows.dead_letter_to(sinks.files("/bad", format="json"), name="bad")
    table = tables.files("/dim/airports.parquet", asset="airports")
    rows.enrich(table, on="k", refresh=refresh).write_to(
        sinks.files("/out", format="json"), name="out"
    )
    return p


class Fresh(DagsterJetTranslator):
    """Assets that want news every ten minutes."""

    def get_asset_spec(self, data: Any) -> dg.AssetSpec:
        policy = dg.FreshnessPolicy.time_window(fail_window=timedelta(minutes=10))
        return super().get_asset_spec(data).replace_attributes(freshness_policy=policy)


def rows(out: int, bad: int = 0) -> dict[str, Any]:
    """A job's totals: rows in its two sinks."""
    return {
        "stages": {"out": StageProgress(out, out), "bad": StageProgress(bad, bad)},
        "sources": {"rows": SourceProgress(out + bad, {"files": 1}, {"files": 0})},
    }


def committed(number: int, **totals: Any) -> SnapshotCommitted:
    return SnapshotCommitted("shop", 1, number, number, 0, 1, 1, 1, 1, 0, **totals)


def restored(number: int, **totals: Any) -> ExecutionStarted:
    return ExecutionStarted("shop", 2, 1, number, number, 100, **totals)


@dataclass
class Site:
    """A Dagster instance with a stream, and an eager asset behind it."""

    instance: dg.DagsterInstance
    pipeline: Pipeline
    translator: DagsterJetTranslator = field(default_factory=DagsterJetTranslator)
    condition: dg.AutomationCondition = field(default_factory=dg.AutomationCondition.eager)
    cursor: Any = None
    script: Any = None

    def __post_init__(self) -> None:
        @jet_assets(pipeline=self.pipeline, dagster_jet_translator=self.translator)
        def stream(context):
            op = context.op_execution_context
            yield from self.script(asset_reports(self.pipeline, op.assets_def, context.instance))

        @dg.asset(deps=[BAD], automation_condition=self.condition)
        def alarm() -> None: ...

        @dg.asset(key=DIM)
        def airports() -> None: ...

        self.stream, self.airports, self.alarm = stream, airports, alarm
        self.definitions = dg.Definitions(
            assets=[stream, alarm, airports, *build_jet_source_assets(self.pipeline)]
        )

    def run(self, script: Any) -> dg.ExecuteInProcessResult:
        self.script = script
        job = self.definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            instance=self.instance,
            asset_selection=[*self.stream.keys],
            raise_on_error=False,
        )

    def requested(self) -> int:
        """Number of assets that automation wants to run since the last call."""
        answer = dg.evaluate_automation_conditions(
            self.definitions, self.instance, cursor=self.cursor
        )
        self.cursor = answer.cursor
        return answer.total_requested

    def stale_status(self, key: dg.AssetKey) -> StaleStatus:
        graph = self.definitions.resolve_asset_graph()
        context = LoadingContextForTest(self.instance)
        return CachingStaleStatusResolver(self.instance, graph, context).get_status(key)

    def health(self, key: dg.AssetKey) -> AssetHealthStatus:
        """Green or red in the UI, as far as runs and materializations go."""
        context = LoadingContextForTest(self.instance)
        computed = AssetMaterializationHealthState.compute_for_asset(key, None, context)
        return asyncio.run(computed).health_status

    def freshness(self, key: dg.AssetKey) -> FreshnessState:
        node = self.definitions.resolve_asset_graph().get(key)
        context = LoadingContextForTest(self.instance)
        evaluated = TimeWindowFreshnessPolicyEvaluator().evaluate_freshness(context, node)
        return asyncio.run(evaluated)


class LoadingContextForTest(LoadingContext):
    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance, self._loaders = instance, {}

    @property
    def instance(self) -> dg.DagsterInstance:
        return self._instance

    @property
    def loaders(self) -> dict[Any, Any]:
        return self._loaders


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def of(key: dg.AssetKey, instance: dg.DagsterInstance) -> int:
    """Number of the asset's materializations."""
    return len(instance.fetch_materializations(key, limit=100).records)


def test_a_restart_without_new_rows_triggers_nothing(instance: dg.DagsterInstance) -> None:
    site = Site(instance, shop())
    assert site.run(lambda to: to.committed(committed(1, **rows(5, 1)), NOW_MS)).success
    site.requested()
    site.run(lambda to: to.committed(committed(2, **rows(6, 2)), NOW_MS))
    assert site.requested() == 1, "new rows do"

    def restart(to: AssetReports) -> Iterator[Any]:
        yield from to.restored(restored(2, **rows(6, 2)), NOW_MS)
        yield from to.committed(committed(3, **rows(6, 2)), NOW_MS)
        yield from to.last_committed(committed(4, **rows(6, 2)), NOW_MS)

    dg.materialize([site.alarm], instance=instance)
    site.requested()
    assert site.run(restart).success
    assert site.requested() == 0, "restored, and a terminal snapshot: nothing is new"
    (seen,) = instance.fetch_observations(OUT, limit=1).records
    assert seen.asset_observation.metadata["snapshot"].value == 4, "but it is shown"


def test_a_stream_that_dies_after_each_restart_is_failed(instance: dg.DagsterInstance) -> None:
    site = Site(instance, shop())
    site.run(lambda to: to.committed(committed(1, **rows(5)), NOW_MS))

    def dies(to: AssetReports) -> Iterator[Any]:
        yield from to.restored(restored(1, **rows(5)), NOW_MS)
        raise dg.Failure("the disk is full")

    assert site.health(OUT) is AssetHealthStatus.HEALTHY
    result = site.run(dies)
    assert not result.success
    assert site.health(OUT) is AssetHealthStatus.DEGRADED, "its newest run has not materialized it"


def test_a_commit_that_dagster_missed_is_news(instance: dg.DagsterInstance) -> None:
    site = Site(instance, shop())
    site.run(lambda to: to.committed(committed(1, **rows(5, 1)), NOW_MS))
    site.requested()
    # Snapshot 2 was committed, and the run died before it was reported.
    site.run(lambda to: to.restored(restored(2, **rows(9, 3)), NOW_MS))
    assert site.requested() == 1
    event = instance.get_latest_materialization_event(OUT)
    assert event.asset_materialization.tags["dagster/data_version"] == "2"
    site.run(lambda to: to.restored(restored(2, **rows(9, 3)), NOW_MS))
    assert of(OUT, instance) == 2, "once"


def test_who_asks_for_new_rows_of_one_sink_is_not_woken_by_the_others(
    instance: dg.DagsterInstance,
) -> None:
    new_rows = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed())
    site = Site(instance, shop(), condition=new_rows.since_last_handled())
    site.run(lambda to: to.committed(committed(1, **rows(5, 1)), NOW_MS))
    site.requested()
    site.run(lambda to: to.committed(committed(2, **rows(9, 1)), NOW_MS))
    assert site.requested() == 0
    site.run(lambda to: to.committed(committed(3, **rows(9, 2)), NOW_MS))
    assert site.requested() == 1


def test_a_job_that_was_deleted_and_begins_anew_has_other_rows(
    instance: dg.DagsterInstance,
) -> None:
    """Failed before: its snapshot ids begin again, and the rows of the second are as many."""
    new_rows = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed())
    site = Site(instance, shop(), condition=new_rows.since_last_handled())
    site.run(lambda to: to.committed(committed(2, **rows(5, 1)), NOW_MS))
    site.requested()

    def anew(to: AssetReports) -> Iterator[Any]:
        begun = ExecutionStarted("shop", 50, 0, None, None, 100, first_execution_id=50)
        yield from to.restored(begun, NOW_MS)
        yield from to.committed(committed(2, **rows(5, 1)), NOW_MS)

    assert site.run(anew).success
    assert site.requested() == 1
    restarted = replace(restored(2, **rows(5, 1)), first_execution_id=50)
    site.run(lambda to: to.restored(restarted, NOW_MS))
    assert of(OUT, instance) == 2, "a restart of the new job is no news"


def test_an_asset_with_a_table_is_in_sync_until_the_table_changes(
    instance: dg.DagsterInstance,
) -> None:
    site = Site(instance, shop())
    dg.materialize([site.airports], instance=instance)
    site.run(lambda to: to.committed(committed(1, **rows(5)), NOW_MS))
    assert site.stale_status(OUT) is StaleStatus.FRESH
    assert site.stale_status(BAD) is StaleStatus.FRESH
    dg.materialize([site.airports.with_attributes()], instance=instance)
    instance.report_runless_asset_event(
        dg.AssetMaterialization(DIM, tags={"dagster/data_version": "new"})
    )
    assert site.stale_status(OUT) is StaleStatus.STALE, "it was read before"
    site.run(lambda to: to.committed(committed(2, **rows(6)), NOW_MS))
    assert site.stale_status(OUT) is StaleStatus.FRESH, "a new run has read it"


def test_a_table_that_is_read_anew_counts_when_it_was(instance: dg.DagsterInstance) -> None:
    site = Site(instance, shop(refresh="1 minute"))
    version = dg.AssetMaterialization(DIM, tags={"dagster/data_version": "new"})

    def across_a_change(to: AssetReports) -> Iterator[Any]:
        now_ms = time.time_ns() // 1_000_000
        yield from to.committed(committed(1, **rows(5)), now_ms)
        instance.report_runless_asset_event(version)
        for minutes in (0.5, 2):
            total = rows(5 + int(minutes * 10))
            yield from to.committed(committed(2, **total), now_ms + int(minutes * 60_000))
            seen.append(site.stale_status(OUT))

    seen: list[StaleStatus] = []
    site.run(across_a_change)
    assert seen == [StaleStatus.STALE, StaleStatus.FRESH]


def test_a_source_is_observed_and_nobody_is_unsynced_by_it(instance: dg.DagsterInstance) -> None:
    site = Site(instance, shop())
    site.run(lambda to: to.committed(committed(1, **rows(5)), NOW_MS))
    key = dg.AssetKey(["shop", "rows"])
    (seen,) = instance.fetch_observations(key, limit=1).records
    assert seen.asset_observation.metadata["rows_read"].value == 5
    assert site.stale_status(OUT) is StaleStatus.FRESH


def test_an_idle_stream_is_fresh_and_a_dead_one_is_not(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(instance, shop(), Fresh())
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began - 900)

    def waits(to: AssetReports) -> Iterator[Any]:
        yield from to.committed(committed(1, **rows(5)), int((began - 900) * 1000))
        monkeypatch.undo()
        if alive:
            now_ms = int(began * 1000)
            yield from to.idle(to.idle_due(now_ms), now_ms)

    alive = False
    site.run(waits)
    assert site.freshness(OUT) is FreshnessState.FAIL
    alive = True
    site.run(lambda to: to.committed(committed(2, **rows(6)), int((began - 900) * 1000)))
    site.run(waits)
    assert site.freshness(OUT) is FreshnessState.PASS


def test_only_a_job_of_build_jet_job_does_not_end(pipeline: Pipeline) -> None:
    seen: dict[str, str] = {}

    @jet_assets(pipeline=pipeline)
    def stream(context):
        seen[context.run.job_name] = default_until(context, pipeline)
        yield from ()

    dg.materialize([stream])
    definitions = dg.Definitions(
        assets=[stream],
        jobs=[dg.define_asset_job("mine", dg.AssetSelection.all()), build_jet_job(stream)],
    )
    definitions.resolve_implicit_global_asset_job_def().execute_in_process()
    said = definitions.resolve_job_def("shop_job").description
    assert said is not None and "data_version_changed" in said, "what to launch behind it"
    for job in ("mine", "shop_job"):
        definitions.resolve_job_def(job).execute_in_process()
    assert [*seen.values()] == ["drained", "drained", "drained", "stopped"], seen


def test_a_member_that_is_lost_is_a_warning(tmp_path: Path) -> None:
    urls = [f"file://{tmp_path}/{name}" for name in "abc"]
    with Jet(store=urls, backup_count=1) as jet:
        watch = StoreWatch(jet.store)
        watch.look()
        assert watch.take() == []
        shutil.move(tmp_path / "b", tmp_path / "gone")
        watch.look()
        watch.look()
        (warning,) = watch.take()
        assert "not safe" in warning and "does not answer" in warning
        shutil.move(tmp_path / "gone", tmp_path / "b")
        watch.look()
        assert watch.take() == ["The store is safe again."]


def test_a_member_that_is_damaged_is_a_warning_until_all_copies_are_verified(
    tmp_path: Path,
) -> None:
    urls = [f"file://{tmp_path}/{name}" for name in "abc"]
    with Jet(store=urls, backup_count=1) as jet:
        chunks = jet.store.map("chunks")
        items = {chunks.key(f"{n}"): b"chunk %d " % n * 50 for n in range(20)}
        chunks.put_all(items)
        of_b = [key for key in items if jet.store.table.replicas[key.partition][0] == urls[1]]
    flip_in(tmp_path / "b", items[of_b[0]])
    with Jet(store=urls, backup_count=1) as jet, Jet(store=urls, backup_count=1) as elsewhere:
        watch = StoreWatch(jet.store)
        watch.look()
        assert watch.take() == [], "nobody has read it yet"
        # An executor: what it meets is seen in every process.
        chunks = elsewhere.store.handle().map("chunks")
        assert chunks.get_all([*items]) == [*items.values()]
        watch.look()
        (warning,) = watch.take()
        assert f"Damaged copies were read from {urls[1]} (1)" in warning
        assert "verify --repair" in warning and "does not answer" not in warning
        assert not store_safe(jet.store.status()).is_well
        assert store_safe(jet.store.status()).numbers["damaged_copies"] == 1
        assert elsewhere.store.map("chunks").get_all([*items]) == [*items.values()]
        assert not jet.store.is_safe(), "it is repaired, and there may be others"
        assert jet.store.verify(repair=True).is_whole
        watch.look()
        assert watch.take() == ["The store is safe again."]


def test_a_member_whose_file_is_damaged_is_a_warning(tmp_path: Path) -> None:
    urls = [f"file://{tmp_path}/{name}" for name in "abc"]
    with Jet(store=urls, backup_count=1) as jet:
        chunks = jet.store.map("chunks")
        items = {chunks.key(f"{n}"): b"chunk %d " % n * 50 for n in range(20)}
        chunks.put_all(items)
        of_b = [key for key in items if jet.store.table.replicas[key.partition][0] == urls[1]]
    spoil_page_of(tmp_path / "b", items[of_b[0]])
    with Jet(store=urls, backup_count=1) as jet:
        watch = StoreWatch(jet.store)
        assert jet.store.map("chunks").get_all([*items]) == [*items.values()]
        watch.look()
        (warning,) = watch.take()
        assert f"Damaged copies were read from {urls[1]}" in warning, "it answers, and cannot read"
        assert not jet.store.verify().is_undamaged and not jet.store.is_safe()
    spoil_first_pages(tmp_path / "b")
    with Jet(store=urls, backup_count=1) as jet:
        watch = StoreWatch(jet.store)
        watch.look()
        (warning,) = watch.take()
        assert f"{urls[1]} does not answer" in warning, "nothing of it can be opened"
        assert jet.store.repair().left == [urls[1]]
        watch.look()
        assert watch.take() == ["The store is safe again."]

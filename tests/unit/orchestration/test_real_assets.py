"""Changes made to assets after `jet_assets` count: keys, freshness, code versions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest

from dagster_jet import (
    Jet,
    JetResource,
    Pipeline,
    build_jet_asset_checks,
    build_jet_observation_sensor,
    build_jet_source_assets,
    jet_assets,
)
from dagster_jet.orchestration.asset_reports import AssetReports
from dagster_jet.orchestration.defined_pipeline import assets_in
from dagster_jet.orchestration.reported_assets import asset_reports

from .recorded_job import RecordedJob

REVENUE = dg.AssetKey(["prod", "shop", "revenue"])
REVENUE_OUT = dg.AssetKey(["prod", "shop", "revenue_out"])


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def code_location(pipeline: Pipeline, asked: list[AssetReports], store: Path) -> dg.Definitions:
    """A module of assets, loaded with a prefix, and then given a freshness policy."""

    @jet_assets(pipeline=pipeline)
    def stream(context):
        op = context.op_execution_context
        asked.append(asset_reports(pipeline, op.assets_def, context.instance))
        yield from ()

    module: Any = ModuleType("assets")
    module.stream, module.sources = stream, build_jet_source_assets(pipeline)
    policy = dg.FreshnessPolicy.time_window(fail_window=timedelta(minutes=10))
    loaded = dg.map_asset_specs(
        lambda spec: (
            dg.apply_freshness_policy(spec, policy).replace_attributes(code_version="7")
            if spec.key == REVENUE_OUT
            else spec
        ),
        dg.load_assets_from_modules([module], key_prefix="prod"),
    )
    checks: Any = ModuleType("checks")
    checks.checks = build_jet_asset_checks(stream)
    return dg.Definitions(
        assets=loaded,
        asset_checks=dg.load_asset_checks_from_modules([checks], asset_key_prefix="prod"),
        jobs=[dg.define_asset_job("checks", dg.AssetSelection.all_asset_checks())],
        sensors=[build_jet_observation_sensor(stream)],
        resources={"jet": JetResource(store=[f"file://{store}"], backup_count=0)},
    )


def test_keys_freshness_and_code_versions_are_those_of_the_end(
    pipeline: Pipeline, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """Failed before: with a key prefix rows were committed, and nothing was reported."""
    asked: list[AssetReports] = []
    definitions = code_location(pipeline, asked, tmp_path)
    job = definitions.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance).success
    (reports,) = asked
    by_key = {asset.key: asset for asset in reports.assets}
    assert set(by_key) == {
        dg.AssetKey(["prod", "shop", name])
        for name in ("bad_orders", "revenue", "revenue_out", "large_out")
    }
    out = by_key[REVENUE_OUT]
    assert (out.code_version, out.freshness_seconds) == ("7", 600)
    assert out.stage_inputs == (REVENUE,)
    (source,) = reports.sources.values()
    assert source in by_key[REVENUE].outside_inputs


def test_assets_that_are_none_of_the_pipeline_are_an_error(
    pipeline: Pipeline, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    @dg.asset
    def other(context, jet: JetResource):
        yield from jet.run(context=context, pipeline=pipeline)

    with pytest.raises(dg.Failure, match="other is a stage or a sink of the pipeline"):
        dg.materialize(
            [other],
            instance=instance,
            resources={"jet": JetResource(store=[f"file://{tmp_path}"], backup_count=0)},
        )


def test_ticks_and_checks_take_the_keys_of_the_code_location(
    pipeline: Pipeline, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    definitions = code_location(pipeline, [], tmp_path / "store")
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        RecordedJob(jet).commits(7, {"revenue_out": 5, "large_out": 9, "bad_orders": 0})
    repository = definitions.get_repository_def()
    found = assets_in(repository, "shop")
    assert found is not None and REVENUE_OUT in found.keys
    assert assets_in(repository, "elsewhere") is None and assets_in(None, "shop") is None
    sensor = repository.get_sensor_def("shop_observations")
    with dg.build_sensor_context(
        instance=instance, definitions=definitions, resources=definitions.resources
    ) as context:
        data = sensor.evaluate_tick(context)
    assert REVENUE_OUT in {event.asset_key for event in data.asset_events}
    checks = definitions.resolve_job_def("checks").execute_in_process(instance=instance)
    assert {e.asset_key for e in checks.get_asset_check_evaluations()} <= {*found.keys}
    assert len(checks.get_asset_check_evaluations()) == 19

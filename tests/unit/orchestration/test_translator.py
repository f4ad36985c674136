"""Stages as assets: keys, kinds, groups, schema, lineage; and what a translator may change."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from dagster_jet import (
    DagsterJetTranslator,
    Pipeline,
    build_jet_asset_specs,
    build_jet_source_assets,
    sinks,
    sources,
)
from dagster_jet.orchestration.asset_specs import stage_specs
from dagster_jet.orchestration.translator import JetStageData


def keys(specs: list[dg.AssetSpec]) -> set[str]:
    return {spec.key.to_user_string() for spec in specs}


def test_stateful_stages_and_sinks_are_assets_and_sources_are_external(pipeline: Pipeline) -> None:
    assert keys(build_jet_asset_specs(pipeline)) == {
        "shop/bad_orders",
        "shop/revenue",
        "shop/revenue_out",
        "shop/large_out",
    }
    (source,) = build_jet_source_assets(pipeline)
    assert source.key == dg.AssetKey(["shop", "orders"])
    assert not source.skippable


def test_dependencies_are_the_pipelines_edges(pipeline: Pipeline) -> None:
    edges = {
        name: [dep.asset_key.path[-1] for dep in spec.deps]
        for name, spec in stage_specs(pipeline).items()
    }
    assert edges == {
        "orders": [],
        "bad_orders": ["orders"],
        "revenue": ["orders"],
        "revenue_out": ["revenue"],
        "large_out": ["orders"],
    }


def test_every_stage_may_be_skipped_and_has_the_pipelines_code_version(pipeline: Pipeline) -> None:
    specs = build_jet_asset_specs(pipeline)
    assert all(spec.skippable for spec in specs)
    assert {spec.code_version for spec in specs} == {f"jet-{pipeline.graph.fingerprint()}"}


def test_kinds_group_place_and_columns(pipeline: Pipeline) -> None:
    specs = stage_specs(pipeline)
    assert specs["revenue_out"].kinds == {"spark", "jet", "parquet"}
    assert specs["revenue"].kinds == {"spark", "jet"}
    assert specs["orders"].group_name == "shop"
    assert specs["large_out"].metadata["dagster/uri"] == "file:///out/large"
    schema = specs["orders"].metadata["dagster/column_schema"]
    assert [(c.name, c.type) for c in schema.columns] == [
        ("id", "long"),
        ("at", "timestamp"),
        ("eur", "double"),
    ]
    rejected = specs["bad_orders"].metadata["dagster/column_schema"]
    assert [c.name for c in rejected.columns] == ["source", "position", "reason", "raw"]
    assert "total = sum(eur)" in (specs["revenue"].description or "")


CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    "group_name": ({"group_name": "sales"}, lambda spec: spec.group_name == "sales"),
    "owners": ({"owners": ["team:sales"]}, lambda spec: spec.owners == ["team:sales"]),
    "tags": ({"tags": {"tier": "1"}}, lambda spec: spec.tags["tier"] == "1"),
    "kinds": ({"kinds": {"duckdb"}}, lambda spec: "duckdb" in spec.kinds),
    "description": ({"description": "x"}, lambda spec: spec.description == "x"),
    "code_version": ({"code_version": "7"}, lambda spec: spec.code_version == "7"),
    "automation": (
        {"automation_condition": dg.AutomationCondition.eager()},
        lambda spec: spec.automation_condition is not None,
    ),
}


@pytest.mark.parametrize("attribute", CHANGES)
def test_a_translator_may_change_any_attribute(pipeline: Pipeline, attribute: str) -> None:
    changes, holds = CHANGES[attribute]

    class Changed(DagsterJetTranslator):
        def get_asset_spec(self, data: JetStageData) -> dg.AssetSpec:
            return super().get_asset_spec(data).replace_attributes(**changes)

    assert all(holds(spec) for spec in build_jet_asset_specs(pipeline, Changed()))


def test_changed_keys_keep_the_lineage_whole(pipeline: Pipeline) -> None:
    class Prefixed(DagsterJetTranslator):
        def get_asset_spec(self, data: JetStageData) -> dg.AssetSpec:
            spec = super().get_asset_spec(data)
            own = ["warehouse"] if data.stage == "orders" else []
            return spec.replace_attributes(key=dg.AssetKey(["eu", data.stage]), deps=own)

    specs = stage_specs(pipeline, Prefixed())
    assert [dep.asset_key for dep in specs["revenue_out"].deps] == [dg.AssetKey(["eu", "revenue"])]
    assert [dep.asset_key for dep in specs["orders"].deps] == [dg.AssetKey("warehouse")]


def test_a_table_that_is_an_asset_is_upstream_of_what_it_enriches():
    p = Pipeline("enriched")
    rows = p.read_from(sources.files("in", format="json", schema="k string"), name="rows")
    airports = sources.table("dim/airports.parquet", asset="dim/airports")
    unknown = sources.table("dim/other.parquet")
    stage = rows.enrich(airports, on="k").enrich(unknown, on="k")
    stage.write_to(sinks.files("out", format="json"), name="out")
    keys = {dep.asset_key for dep in stage_specs(p)["out"].deps}
    assert keys == {dg.AssetKey(["enriched", "rows"]), dg.AssetKey(["dim", "airports"])}

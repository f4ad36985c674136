"""Stages as assets: keys, kinds, groups, schema, lineage; and what a translator may change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_jet import (
    DagsterJetTranslator,
    Pipeline,
    build_jet_asset_specs,
    build_jet_source_assets,
    jet_assets,
    sinks,
    sources,
    tables,
    windows,
)
from dagster_jet import aggregates as agg
from dagster_jet.orchestration.asset_specs import stage_specs
from dagster_jet.orchestration.openlineage_sensor import dataset_name
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


def test_every_stage_may_be_skipped_and_has_its_own_code_version(pipeline: Pipeline) -> None:
    specs = build_jet_asset_specs(pipeline)
    assert all(spec.skippable for spec in specs)
    assert {spec.key.path[1]: spec.code_version for spec in specs} == {
        name: f"jet-{pipeline.graph.definition(name)}"
        for name in ("bad_orders", "revenue", "revenue_out", "large_out")
    }


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


@pytest.mark.parametrize(
    ("window", "said"),
    [
        (windows.tumbling("1 hour"), "tumbling, 1 hour"),
        (windows.tumbling("1 day", offset="6 hours"), "tumbling, 1 day, shifted by 6 hours"),
        (windows.sliding("90 seconds", "10 seconds"), "sliding, 90 seconds every 10 seconds"),
        (windows.session("1500 ms"), "sessions, 1500 ms apart"),
    ],
)
def test_a_window_is_described_in_words(window: windows.Window, said: str) -> None:
    p = Pipeline("shop")
    rows = p.read_from(
        sources.files("/in", format="json", schema="at timestamp"), name="rows"
    ).with_timestamps("at")
    counted = rows.window(window).aggregate(n=agg.count(), name="counted")
    counted.write_to(sinks.files("/out", format="json"), name="out")
    assert f"- window: {said}\n" in (stage_specs(p)["counted"].description or "")


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (sinks.files("/out", format="json"), "exactly once, unless the job asks for less"),
        (sinks.files("/out", format="json", guarantee="at-least-once"), "at least once"),
        (sinks.files("/out", format="json", guarantee="none"), "There is no guarantee"),
        (sinks.console(), "at least once"),
    ],
)
def test_a_sink_is_described_with_its_own_guarantee(sink: Any, said: str) -> None:
    p = Pipeline("shop")
    rows = p.read_from(sources.files("/in", format="json", schema="id long"), name="rows")
    rows.write_to(sink, name="out")
    assert said in (stage_specs(p)["out"].description or "")


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
    airports = tables.files("dim/airports.parquet", asset="dim/airports")
    unknown = tables.files("dim/other.parquet")
    stage = rows.enrich(airports, on="k").enrich(unknown, on="k")
    stage.write_to(sinks.files("out", format="json"), name="out")
    keys = {dep.asset_key for dep in stage_specs(p)["out"].deps}
    assert keys == {dg.AssetKey(["enriched", "rows"]), dg.AssetKey(["dim", "airports"])}


def copy_of(source: Any, out: str, name: str = "copy") -> Pipeline:
    p = Pipeline(name)
    p.read_from(source, name="rows").write_to(sinks.files(out, format="json"), name="out")
    return p


@pytest.mark.parametrize(
    "source",
    [
        lambda **asset: sources.files("/in", format="json", schema="id long", **asset),
        lambda **asset: sources.kafka("h:1", topics=["t"], schema="id long", **asset),
        lambda **asset: sources.postgres_changes(
            "postgresql://h/d", slot="s", publication="p", **asset
        ),
        lambda **asset: sources.sql("postgresql://h/d", table="t", column="id", **asset),
        lambda **asset: sources.rabbitmq("amqp://h", queue="q", schema="id long", **asset),
        lambda **asset: sources.sqs("https://h/1/q", schema="id long", **asset),
    ],
    ids=["files", "kafka", "postgres_changes", "sql", "rabbitmq", "sqs"],
)
def test_a_source_that_is_an_asset_stands_for_it(source: Any) -> None:
    p = copy_of(source(asset="raw/flights"), "/out")
    assert [dep.asset_key for dep in stage_specs(p)["out"].deps] == [
        dg.AssetKey(["raw", "flights"])
    ]
    assert build_jet_source_assets(p) == [], "others define it"


@pytest.mark.parametrize("path", ["/first/out", "/first/out/", "/first/out/*.json"])
def test_a_source_that_reads_anothers_sink_is_linked_by_its_path(path: str):
    first = copy_of(sources.files("/in", format="json", schema="id long"), "/first/out", "first")

    @jet_assets(pipeline=first)
    def first_assets():
        yield from ()

    second = copy_of(sources.files(path, format="json", schema="id long"), "/second/out", "second")
    (spec,) = build_jet_asset_specs(second, upstream=[first_assets])
    assert [dep.asset_key for dep in spec.deps] == [dg.AssetKey(["first", "out"])]
    assert build_jet_source_assets(second, upstream=[first_assets]) == []
    assert len(build_jet_source_assets(second)) == 1


@pytest.mark.parametrize(("read", "is_linked"), [("main", True), ("audit", False)])
def test_a_source_is_linked_to_the_sink_of_its_iceberg_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str, is_linked: bool
) -> None:
    rows = sources.files("/in", format="json", schema="id long")
    first = Pipeline("first")
    written = sinks.iceberg("lake", "shop.orders")
    first.read_from(rows, name="rows").write_to(written, name="out")
    monkeypatch.chdir(tmp_path)

    @jet_assets(pipeline=first)
    def first_assets():
        yield from ()

    monkeypatch.chdir("/")  # the table was named by the folder of the process before
    second = copy_of(sources.iceberg("lake", "shop.orders", branch=read), "/out", "second")
    upstream = [first_assets]
    (spec,) = build_jet_asset_specs(second, upstream=upstream)
    its_own = dg.AssetKey(["second", "rows"])
    assert [dep.asset_key for dep in spec.deps] == [
        dg.AssetKey(["first", "out"]) if is_linked else its_own
    ]
    uri = first_assets.metadata_by_key[dg.AssetKey(["first", "out"])]["dagster/uri"]
    assert uri == "iceberg://lake/shop.orders"
    names = [dataset_name(one.describe()) for one in (written, tables.iceberg("lake", "a.b"))]
    assert names == [("iceberg://lake", "shop.orders"), ("iceberg://lake", "a.b")]


def test_columns_that_only_a_running_job_knows_do_not_hinder_definitions():
    # Failed before: the definitions of such a pipeline could not be loaded.
    changes = sources.postgres_changes("postgresql://me@host/db", slot="s", publication="p")
    specs = stage_specs(copy_of(changes, "/out"))
    assert "dagster/column_schema" not in specs["rows"].metadata


def test_what_people_read_is_in_their_units() -> None:
    p = Pipeline("shop")
    rows = p.read_from(
        sources.files("/in", format="json", schema="k string, at timestamp"), name="rows"
    ).with_timestamps("at")
    once = rows.deduplicate(on="k", within="36 hours", name="once")
    for name, window in (
        ("days", windows.tumbling("1 day", offset="6 hours")),
        ("hours", windows.sliding("1 hour", slide="10 minutes")),
        ("visits", windows.session("90 seconds")),
    ):
        counted = once.group_by("k").window(window).aggregate(n=agg.count(), name=name)
        counted.write_to(sinks.files(f"/{name}", format="json"), name=f"{name}_out")
    text = {spec.key.path[1]: spec.description for spec in build_jet_asset_specs(p)}
    assert "within: 36 hours" in str(text["once"])
    assert "window: tumbling, 1 day, shifted by 6 hours" in str(text["days"])
    assert "window: sliding, 1 hour every 10 minutes" in str(text["hours"])
    assert "window: sessions, 90 seconds apart" in str(text["visits"])
    assert not any("_ms=" in str(each) for each in text.values())

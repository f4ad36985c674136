"""Checks and assets behind a stream in one run: "Materialize all", schedules, backfills. Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_jet import JetResource, Pipeline, build_jet_asset_checks, jet_assets, sinks, sources

from .tiny import committed_rows, jet_resource, put_file

OUT = dg.AssetKey(["copies", "out"])
REPORT = dg.AssetKey("report")


def copies(folder: Path) -> Pipeline:
    p = Pipeline("copies")
    rows = p.read_from(
        sources.files(str(folder / "in"), format="json", schema="k string, v double"), name="rows"
    )
    rows.write_to(sinks.files(str(folder / "out"), format="json"), name="out")
    return p


def run(folder: Path, instance: dg.DagsterInstance, **options: Any) -> dg.ExecuteInProcessResult:
    """The stream, its checks, and an asset that reads what the stream has committed."""

    def stream(context, jet):
        yield from jet.run(context=context)

    stream.__annotations__["jet"] = JetResource
    assets = jet_assets(pipeline=copies(folder))(stream)

    @dg.asset(deps=[OUT])
    def report() -> dg.MaterializeResult[None]:
        return dg.MaterializeResult(metadata={"rows": len(committed_rows(folder / "out"))})

    return dg.materialize(
        [assets, report, build_jet_asset_checks(assets)],
        resources={"jet": jet_resource(folder)},
        instance=instance,
        **options,
    )


def materialized(result: dg.ExecuteInProcessResult) -> Counter[dg.AssetKey]:
    return Counter(event.asset_key for event in result.get_asset_materialization_events())


def has_run(result: dg.ExecuteInProcessResult, rows: int) -> bool:
    """Whether the checks and the asset behind the stream have run, the latter with all rows."""
    evaluated = {e.check_name: e.passed for e in result.get_asset_check_evaluations()}
    found = [
        e.materialization.metadata["rows"].value
        for e in result.get_asset_materialization_events()
        if e.asset_key == REPORT
    ]
    return found == [rows] and evaluated["committed"] and evaluated["alive"]


def test_what_stands_behind_a_bounded_run_runs_in_it(tmp_path: Path) -> None:
    """Failed before: the run was green, and checks and report were skipped."""
    with dg.DagsterInstance.ephemeral() as instance:
        (tmp_path / "in").mkdir()
        nothing = run(tmp_path, instance)
        assert nothing.success
        assert not materialized(nothing), "nothing is committed, so there is nothing to read"

        put_file(tmp_path, 0)
        first = run(tmp_path, instance)
        assert has_run(first, rows=60)
        assert materialized(first)[OUT] >= 1

        again = run(tmp_path, instance)
        assert has_run(again, rows=60)
        assert materialized(again) == {REPORT: 1}, "the stream has no news, and says so"

        backfill = run(tmp_path, instance, tags={"dagster/backfill": "b"})
        assert has_run(backfill, rows=60)
        assert materialized(backfill) == {OUT: 1, REPORT: 1}, "a backfill waits for it"
        versions = {
            event.asset_key: event.materialization.tags["dagster/data_version"]
            for result in (first, backfill)
            for event in result.get_asset_materialization_events()
            if event.asset_key == OUT
        }
        (version,) = {versions[OUT]}
        newest = instance.get_latest_data_version_record(OUT)
        assert newest is not None
        assert (newest.event_log_entry.tags or {})["dagster/data_version"] == version

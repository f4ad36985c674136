"""A stream inside `dg.materialize`: from files to Dagster's events and committed rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_jet import build_jet_source_assets

from .tiny import committed_rows, jet_resource, put_file, tiny, tiny_assets


def materialize(folder: Path, until: str, **options: Any) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [tiny_assets(folder), *build_jet_source_assets(tiny(folder))],
        resources={"jet": jet_resource(folder)},
        run_config={"ops": {"tiny": {"config": {"until": until}}}},
        **options,
    )


def numbers(result: dg.ExecuteInProcessResult, asset: str) -> list[Mapping[str, Any]]:
    return [
        {key: value.value for key, value in event.materialization.metadata.items()}
        for event in result.get_asset_materialization_events()
        if event.asset_key == dg.AssetKey(["tiny", asset])
    ]


def test_drained_then_completed(tmp_path: Path) -> None:
    put_file(tmp_path, 0)
    put_file(tmp_path, 1)
    first = materialize(tmp_path, "drained")
    assert first.success
    last = numbers(first, "copy_out")[-1]
    assert last["dagster/row_count"] == 120
    assert last["rows_read"] == 120
    assert last["details"]["execution"] == 1

    put_file(tmp_path, 2)
    second = materialize(tmp_path, "completed")
    restored, *_, final = numbers(second, "copy_out")
    assert restored["restored"] is True
    assert restored["dagster/row_count"] == 120, "what the first run had committed"
    assert final["dagster/row_count"] == 180
    assert final["details"]["execution"] == 2

    hours = committed_rows(tmp_path / "per_hour")
    assert len(hours) == 9, "three keys, three hours; windows were open across the runs"
    assert {row["n"] for row in hours} == {20}
    assert len(committed_rows(tmp_path / "copy")) == 180


def test_a_source_that_does_not_exist_is_a_failure_with_a_cure(tmp_path: Path) -> None:
    with pytest.raises(dg.Failure, match="does not exist"):
        materialize(tmp_path, "drained")
    result = materialize(tmp_path, "drained", raise_on_error=False)
    assert not result.success


def test_in_an_op_the_pipeline_is_named(tmp_path: Path) -> None:
    put_file(tmp_path, 0)

    @dg.op(required_resource_keys={"jet"})
    def stream(context):  # type: ignore[no-untyped-def]
        yield from context.resources.jet.run(
            context=context,
            pipeline=tiny(tmp_path),
            until="completed",
            config={"guarantee": "exactly-once"},
        )
        yield dg.Output(None)

    @dg.job(resource_defs={"jet": jet_resource(tmp_path)})
    def stream_job() -> None:
        stream()

    result = stream_job.execute_in_process()
    materialized = {event.asset_key for event in result.get_asset_materialization_events()}
    assert materialized == {
        dg.AssetKey(["tiny", name]) for name in ("per_hour", "per_hour_out", "copy_out")
    }

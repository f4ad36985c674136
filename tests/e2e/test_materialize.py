"""A stream inside `dg.materialize`: from files to Dagster's events and committed rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_jet import Jet, JetResource, build_jet_source_assets
from dagster_jet.ownership.record_keeper import read_record

from .tiny import SPARK, committed_rows, jet_resource, put_file, tiny, tiny_assets

PAGE = Path(__file__).parents[2] / "docs" / "dagster.md"


def materialize(
    folder: Path,
    until: str,
    window: str = "1 hour",
    initial_snapshot: int | str | None = None,
    **options: Any,
) -> dg.ExecuteInProcessResult:
    back = {} if initial_snapshot is None else {"initial_snapshot": initial_snapshot}
    return dg.materialize(
        [tiny_assets(folder, window), *build_jet_source_assets(tiny(folder))],
        resources={"jet": jet_resource(folder)},
        run_config={"ops": {"tiny": {"config": {"until": until, **back}}}},
        **options,
    )


def numbers(
    result: dg.ExecuteInProcessResult, asset: str, pipeline: str = "tiny"
) -> list[Mapping[str, Any]]:
    return [
        {key: value.value for key, value in event.materialization.metadata.items()}
        for event in result.get_asset_materialization_events()
        if event.asset_key == dg.AssetKey([pipeline, asset])
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
    shows_its_columns(first)

    changed = materialize(tmp_path, "drained", window="2 hours", raise_on_error=False)
    (failed,) = [e.step_failure_data for e in changed.all_events if e.is_step_failure]
    assert failed.user_failure_data is not None
    sentence = failed.user_failure_data.description
    assert "stage 'per_hour'" in sentence and len(sentence.splitlines()) == 1, sentence

    put_file(tmp_path, 2)
    second = materialize(tmp_path, "completed")
    restored, *_, final = numbers(second, "copy_out")
    assert restored["restored"] is True
    assert restored["dagster/row_count"] == 120, "what the first run had committed"
    assert final["dagster/row_count"] == 180
    assert final["details"]["execution"] == 3, "the one that was refused is counted"

    hours = committed_rows(tmp_path / "per_hour")
    assert len(hours) == 9, "three keys, three hours; windows were open across the runs"
    assert {row["n"] for row in hours} == {20}
    assert len(committed_rows(tmp_path / "copy")) == 180


def shows_its_columns(result: dg.ExecuteInProcessResult) -> None:
    """Schema and lineage, from the plan that Spark has analysed, on every materialization."""
    hours = numbers(result, "per_hour")
    for facts in hours:
        columns = {c.name: c.type for c in facts["dagster/column_schema"].columns}
        assert columns == {
            "k": "string", "window_start": "timestamp", "window_end": "timestamp",
            "n": "bigint", "total": "double",
        }  # fmt: skip
        deps = facts["dagster/column_lineage"].deps_by_column
        source = dg.AssetKey(["tiny", "events"])
        assert deps["total"] == [dg.TableColumnDep(source, "v")]
        assert deps["window_end"] == [dg.TableColumnDep(source, "at")]
        assert "n" not in deps, "of no column"
    deps = numbers(result, "per_hour_out")[-1]["dagster/column_lineage"].deps_by_column
    assert deps["n"] == [dg.TableColumnDep(dg.AssetKey(["tiny", "per_hour"]), "n")]


def test_a_launch_goes_back_once_and_the_next_one_says_so(tmp_path: Path) -> None:
    put_file(tmp_path, 0)
    materialize(tmp_path, "drained")
    with dg.DagsterInstance.ephemeral() as instance:
        with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
            record = read_record(jet.store, "tiny")
        assert record is not None
        newest = record.snapshots[0].snapshot_id
        runs = [
            materialize(tmp_path, "drained", initial_snapshot=wanted, instance=instance)
            for wanted in (newest, str(newest))
        ]
        said = [
            [e.user_message for e in instance.all_logs(run.run_id) if "was applied" in e.message]
            for run in runs
        ]
        refused = materialize(
            tmp_path, "drained", initial_snapshot="", instance=instance, raise_on_error=False
        )
    assert said[0] == [] and len(said[1]) == 1, said
    assert f"initial_snapshot {newest} was applied already by execution 2" in said[1][0]
    (failed,) = [e.step_failure_data for e in refused.all_events if e.is_step_failure]
    assert failed.user_failure_data is not None
    assert "initial_snapshot: expected the id" in failed.user_failure_data.description
    assert len(committed_rows(tmp_path / "copy")) == 60


def test_a_source_that_does_not_exist_is_a_failure_with_a_cure(tmp_path: Path) -> None:
    with pytest.raises(dg.Failure, match="does not exist"):
        materialize(tmp_path, "drained")
    result = materialize(tmp_path, "drained", raise_on_error=False)
    assert not result.success


def test_in_an_op_the_pipeline_is_named(tmp_path: Path) -> None:
    put_file(tmp_path, 0)

    @dg.op(required_resource_keys={"jet"})
    def stream(context):
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


def test_the_first_definitions_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the page's definitions with a bound on the input; `dagster dev` does the rest."""
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    short = code[1].replace("count=1_000_000, rate=1_000", "count=50_000")
    exec(compile(short, str(PAGE), "exec", dont_inherit=True), names)
    dg.Definitions.validate_loadable(names["defs"])
    result = dg.materialize(
        [names["auction_assets"]],
        resources={
            "jet": JetResource(store=[f"file://{tmp_path}/jet"], backup_count=0, spark_config=SPARK)
        },
    )
    rows = committed_rows(tmp_path / "highest")
    assert [row["bids"] for row in rows] == [9_200] * len(rows)
    (last,) = numbers(result, "highest_out", "auctions")[-1:]
    assert last["dagster/row_count"] == len(rows) >= 4, "the last window is open: drained"

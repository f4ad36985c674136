"""Maintenance of lake tables as Dagster runs it; no Spark."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import deltalake
import pyarrow as pa
import pytest

from dagster_jet import (
    JetResource,
    Pipeline,
    build_jet_lake_maintenance,
    jet_assets,
    sinks,
    sources,
)
from dagster_jet.errors import ConfigurationError

FILES = 6


@pytest.fixture
def table(tmp_path: Path) -> str:
    made = tmp_path / "late"
    deltalake.DeltaTable.create(made, pa.schema([("id", pa.int64())]))
    for number in range(FILES):
        rows = pa.table({"id": pa.array([number], pa.int64())})
        deltalake.write_deltalake(made, rows, mode="append")
    return str(made)


def definitions(tmp_path: Path, sink: Any, **options: Any) -> dg.Definitions:
    p = Pipeline("shop")
    rows = p.read_from(sources.files("/in", format="json", schema="id long"), name="rows")
    rows.write_to(sink, name="late")

    @jet_assets(pipeline=p, group_name="sales")
    def assets(context: dg.AssetExecutionContext, jet: JetResource) -> Iterator[Any]:
        yield from jet.run(context=context)

    own = dg.Definitions(
        assets=[assets],
        resources={"jet": JetResource(store=[f"file://{tmp_path}/store"], backup_count=0)},
    )
    return dg.Definitions.merge(own, build_jet_lake_maintenance(assets, **options))


def test_a_run_compacts_the_table_and_then_checks_it(tmp_path: Path, table: str) -> None:
    defs = definitions(tmp_path, sinks.delta(table), max_small_files=2)
    with dg.DagsterInstance.ephemeral() as instance:
        alone = dg.define_asset_job("alone", dg.AssetSelection.all_asset_checks())
        red = dg.Definitions.merge(defs, dg.Definitions(jobs=[alone])).resolve_job_def("alone")
        (found,) = red.execute_in_process(instance=instance).get_asset_check_evaluations()
        assert not found.passed and found.severity is dg.AssetCheckSeverity.WARN
        assert "5 of 6 files are smaller than 32 MB" in str(found.description)
        assert "Let the maintenance run more often" in str(found.description)
        job = defs.resolve_job_def("shop_lake_maintenance")
        done = job.execute_in_process(instance=instance)
    (found,) = done.get_asset_check_evaluations()
    assert found.passed
    (made,) = done.get_asset_materialization_events()
    assert made.asset_key == dg.AssetKey(["shop", "late_maintenance"])
    assert made.materialization.metadata["files_replaced"].value == FILES
    assert len(deltalake.DeltaTable(table).file_uris()) == 1
    assert defs.resolve_schedule_def("shop_lake_maintenance_schedule").cron_schedule == "0 3 * * *"


def test_the_check_fails_as_an_error_by_word(tmp_path: Path, table: str) -> None:
    error = dg.AssetCheckSeverity.ERROR
    defs = definitions(tmp_path, sinks.delta(table), max_small_files=2, severity=error)
    alone = dg.define_asset_job("alone", dg.AssetSelection.all_asset_checks())
    job = dg.Definitions.merge(defs, dg.Definitions(jobs=[alone])).resolve_job_def("alone")
    (found,) = job.execute_in_process().get_asset_check_evaluations()
    assert not found.passed and found.severity is error


def test_a_table_that_forgets_too_fast_fails_the_run(tmp_path: Path, table: str) -> None:
    defs = definitions(tmp_path, sinks.delta(table), longest_outage="8 days")
    job = defs.resolve_job_def("shop_lake_maintenance")
    done = job.execute_in_process(raise_on_error=False)
    assert not done.success
    (failed,) = [one for one in done.all_events if one.is_step_failure]
    said = failed.step_failure_data.user_failure_data.description
    assert "keeps files of the past for 7 days, and an outage may last 8 days" in said
    assert "delta.deletedFileRetentionDuration" in said
    assert len(deltalake.DeltaTable(table).file_uris()) == FILES


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    defs = definitions(tmp_path, sinks.delta(f"{tmp_path}/none"))
    alone = dg.define_asset_job("alone", dg.AssetSelection.all_asset_checks())
    job = dg.Definitions.merge(defs, dg.Definitions(jobs=[alone])).resolve_job_def("alone")
    done = job.execute_in_process(raise_on_error=False)
    (failed,) = [one for one in done.all_events if one.is_step_failure]
    said = failed.step_failure_data.user_failure_data.description
    assert "there is no table" in said and "Start the job, which creates it" in said


def test_a_pipeline_without_a_lake_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no sink of the pipeline is a table"):
        definitions(tmp_path, sinks.files(f"{tmp_path}/out", format="json"))

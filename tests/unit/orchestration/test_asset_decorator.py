"""`@jet_assets`, `build_jet_job`, and the definitions they add up to."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from dagster_jet import (
    JetResource,
    Pipeline,
    build_jet_job,
    build_jet_schedule,
    build_jet_source_assets,
    build_jet_supervisor_sensor,
    jet_assets,
    sinks,
    sources,
)
from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration.asset_job import pipeline_of
from dagster_jet.orchestration.event_iterator import JetEventIterator


def shop_assets(pipeline: Pipeline) -> dg.AssetsDefinition:
    @jet_assets(pipeline=pipeline, op_tags={"team": "sales"}, pool="spark")
    def assets(context):
        context.log.info(str(context.op_execution_context.op_config))
        yield dg.AssetMaterialization(["shop", "revenue"])
        yield dg.AssetMaterialization(["shop", "revenue"])

    return assets


def test_one_op_named_after_the_pipeline(pipeline: Pipeline) -> None:
    assets = shop_assets(pipeline)
    assert assets.op.name == "shop"
    assert assets.op.tags["team"] == "sales"
    assert not assets.can_subset
    assert pipeline_of(assets) is pipeline


def test_group_name_wins_over_the_translator(pipeline: Pipeline) -> None:
    @jet_assets(pipeline=pipeline, group_name="sales", name="sell")
    def assets():
        yield from ()

    assert {spec.group_name for spec in assets.specs} == {"sales"}
    assert assets.op.name == "sell"


def test_a_run_may_end_with_some_assets_reported_twice_and_others_never(
    pipeline: Pipeline,
) -> None:
    result = dg.materialize(
        [shop_assets(pipeline), *build_jet_source_assets(pipeline)],
        run_config={"ops": {"shop": {"config": {"until": "drained"}}}},
    )
    assert result.success
    assert len(result.get_asset_materialization_events()) == 2


def test_a_function_that_runs_nothing_is_an_error(pipeline: Pipeline, tmp_path: Path) -> None:
    """Failed before: the step was green, and other assets were computed after it."""

    @jet_assets(pipeline=pipeline)
    def assets(context, jet: JetResource):
        jet.run(context=context)

    resource = JetResource(store=[f"file://{tmp_path}/store"], backup_count=0)
    result = dg.materialize([assets], resources={"jet": resource}, raise_on_error=False)
    assert not result.success
    (event,) = result.get_step_failure_events()
    said = event.step_failure_data.user_failure_data
    assert said is not None and said.description is not None
    assert "job 'shop': the function 'assets' of its assets returned no events" in said.description
    assert "yield from jet.run(context=context)" in said.description


def test_a_function_may_return_the_events(pipeline: Pipeline) -> None:
    """Failed before: Dagster took the iterator for the value of an asset, and nothing ran."""

    @jet_assets(pipeline=pipeline)
    def assets(context):
        return JetEventIterator(dg.AssetMaterialization(["shop", name]) for name in ("revenue",))

    result = dg.materialize([assets, *build_jet_source_assets(pipeline)])
    assert result.success and len(result.get_asset_materialization_events()) == 1


def test_run_config_is_checked(pipeline: Pipeline) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError, match="untill"):
        dg.materialize(
            [shop_assets(pipeline)],
            run_config={"ops": {"shop": {"config": {"untill": "drained"}}}},
        )


def test_a_function_with_a_config_of_its_own_keeps_it(pipeline: Pipeline) -> None:
    class Own(dg.Config):
        until: str = "drained"
        speed: int = 3

    seen = []

    # Not annotated in this module's string form: Dagster reads the class from the function.
    def assets(config):
        seen.append(config.speed)
        yield dg.AssetMaterialization(["shop", "revenue"])

    assets.__annotations__["config"] = Own
    dg.materialize([jet_assets(pipeline=pipeline)(assets)])
    assert seen == [3]


def test_the_job_is_fit_for_days(pipeline: Pipeline) -> None:
    assets = shop_assets(pipeline)
    definitions = dg.Definitions(
        assets=[assets, *build_jet_source_assets(pipeline)],
        jobs=[build_jet_job(assets, tags={"team": "sales"})],
    )
    job = definitions.resolve_job_def("shop_job")
    assert job.executor_def is dg.in_process_executor
    assert job.run_tags["dagster/max_runtime"] == "0"
    assert job.run_tags["dagster_jet/pipeline"] == "shop"
    assert job.run_tags["dagster_jet/kind"] == "stream"
    assert job.run_tags["team"] == "sales"


def test_a_retry_policy_has_steps_run_in_processes_of_their_own(pipeline: Pipeline) -> None:
    @jet_assets(pipeline=pipeline, retry_policy=dg.RetryPolicy(max_retries=3))
    def assets():
        yield from ()

    job = dg.Definitions([assets], jobs=[build_jet_job(assets)]).resolve_job_def("shop_job")
    assert job.executor_def is dg.multiprocess_executor
    with pytest.raises(ConfigurationError, match="retry a cancelled run"):
        build_jet_job(assets, executor_def=dg.in_process_executor)


def test_a_job_for_other_assets_is_refused() -> None:
    @dg.asset
    def plain() -> None: ...

    with pytest.raises(ConfigurationError, match="carry no pipeline"):
        build_jet_job(plain)


def test_what_a_pipeline_may_be_called_becomes_a_name_that_dagster_takes() -> None:
    p = Pipeline("airport-delays.v2")
    rows = p.read_from(sources.files("/in", format="json", schema="id long"), name="rows")
    rows.write_to(sinks.files("/out", format="json"), name="out")

    @jet_assets(pipeline=p)
    def assets():
        yield from ()

    job = build_jet_job(assets)
    sensor = build_jet_supervisor_sensor(job=job, pipeline=p)
    definitions = dg.Definitions(
        assets=[assets, *build_jet_source_assets(p)],
        jobs=[job],
        sensors=[sensor],
        resources={"jet": JetResource(store=["file:///nowhere/a"], backup_count=0)},
    )
    assert assets.op.name == "airport_delays_v2"
    assert definitions.resolve_job_def("airport_delays_v2_job")
    assert sensor.name == "airport_delays_v2_supervisor"
    assert {spec.key.path[0] for spec in assets.specs} == {"airport-delays.v2"}


def test_assets_have_owners_tags_and_lead_to_the_code(pipeline: Pipeline) -> None:
    @jet_assets(pipeline=pipeline, owners=["team:sales"], tags={"tier": "1"})
    def assets():
        yield from ()

    for spec in assets.specs:
        assert spec.owners == ["team:sales"] and spec.tags["tier"] == "1"
        (here,) = spec.metadata["dagster/code_references"].code_references
        assert here.file_path == __file__ and here.label == "assets"
        shown = dg.MetadataValue.text(spec.metadata["dagster_jet/pipeline"])
        assert shown.value == "shop", "and not [Pipeline] (unserializable)"


def test_a_job_for_a_list_of_assets_is_refused(pipeline: Pipeline) -> None:
    with pytest.raises(ConfigurationError, match="not list"):
        build_jet_job([shop_assets(pipeline)])


def test_a_source_that_dagster_cannot_take_is_named(pipeline: Pipeline) -> None:
    p = Pipeline("shop")
    rows = p.read_from(sources.files("/in", format="json", schema="id long"), name="käse")
    rows.write_to(sinks.files("/out", format="json"), name="out")
    with pytest.raises(ConfigurationError, match="the asset 'shop/käse' cannot be an input"):
        shop_assets(p)


def test_until_of_a_schedule_is_read_at_load(pipeline: Pipeline) -> None:
    with pytest.raises(ConfigurationError, match="'draned' is neither"):
        build_jet_schedule(shop_assets(pipeline), cron_schedule="@daily", until="draned")

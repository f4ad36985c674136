"""Every error is one sentence at the place where people look first; no Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_jet import (
    JetResource,
    Pipeline,
    build_jet_control_job,
    build_jet_job,
    build_jet_schedule,
    build_jet_snapshot_sensor,
    build_jet_supervisor_sensor,
    jet_assets,
    sinks,
    sources,
)
from dagster_jet.errors import ConfigurationError, PipelineError
from dagster_jet.orchestration.tick import JetTickError


def assets_of(pipeline: Pipeline) -> dg.AssetsDefinition:
    # Not annotated in this module's string form: Dagster reads the class from the function.
    def stream(context, jet):
        yield from jet.run(context=context)

    stream.__annotations__["jet"] = JetResource
    return jet_assets(pipeline=pipeline)(stream)


def definitions(*assets: dg.AssetsDefinition, **more: Any) -> dg.Definitions:
    resources = {"jet": JetResource(store=["file:///nowhere/a"], backup_count=0)}
    return dg.Definitions(assets=[*assets], resources=resources, **more)


def sentences(error: BaseException | None) -> list[str]:
    """An error's message, and those of what has caused it."""
    found = []
    while error is not None:
        found.append(str(error))
        error = error.__cause__
    return found


def test_a_part_of_the_assets(pipeline: Pipeline) -> None:
    part = dg.define_asset_job("part", ["shop/revenue_out"])
    with pytest.raises(dg.DagsterInvalidDefinitionError) as caught:
        definitions(assets_of(pipeline), jobs=[part]).resolve_job_def("part")
    (why,) = [text for text in sentences(caught.value) if "contains asset keys" in text]
    assert why.startswith("When building job, the AssetsDefinition 'shop' contains asset keys")
    assert "required_multi_asset_neighbors" in why, "the cure"


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (
            lambda a: definitions(a, jobs=[build_jet_job(a), build_jet_job(a)]),
            "Duplicate definition found for unresolved job 'shop_job'",
        ),
        (
            lambda a: definitions(
                a, sensors=[build_jet_supervisor_sensor(job="nope", pipeline="shop")]
            ),
            'targets job "nope" which was not found in this repository',
        ),
    ],
    ids=["two jobs of one name", "a sensor of an unknown job"],
)
def test_where_definitions_are_loaded(
    pipeline: Pipeline, build: Callable[[dg.AssetsDefinition], dg.Definitions], sentence: str
) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=sentence):
        build(assets_of(pipeline)).get_repository_def()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda _: build_jet_supervisor_sensor(job="j", pipeline=""),
            "'' is not a valid pipeline name",
        ),
        (
            lambda _: build_jet_supervisor_sensor(job="j", pipeline=None),
            "pipeline: expected a Pipeline or its name, not NoneType",
        ),
        (lambda _: build_jet_control_job(""), "'' is not a valid pipeline name"),
        (
            lambda _: build_jet_snapshot_sensor(pipeline="", job="j"),
            "'' is not a valid pipeline name",
        ),
        (lambda p: jet_assets(pipeline=p, name=""), "name: it is empty. Give a name, .*'shop'"),
        (lambda p: build_jet_job(assets_of(p), name=""), "name: it is empty"),
        (lambda p: build_jet_control_job(p, name=""), "name: it is empty"),
        (
            lambda p: build_jet_supervisor_sensor(job="j", pipeline=p, jet=""),
            "jet: expected a JetResource or its key in the definitions, not ''",
        ),
        (
            lambda p: build_jet_control_job(p, jet=None),
            "jet: expected a JetResource or its key in the definitions, not None",
        ),
    ],
)
def test_names_that_name_nothing(
    pipeline: Pipeline, build: Callable[[Pipeline], object], said: str
) -> None:
    """Failed before: a job of no name was supervised, and an empty name was the default."""
    with pytest.raises(ConfigurationError, match=said):
        build(pipeline)


def test_two_pipelines_of_one_name(pipeline: Pipeline) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="Duplicate asset key"):
        definitions(assets_of(pipeline), assets_of(pipeline)).get_repository_def()


def test_a_pipeline_that_does_not_build() -> None:
    p = Pipeline("half")
    p.read_from(sources.files("/in", format="json", schema="id long"), name="rows")
    with pytest.raises(
        PipelineError, match=r"job 'half': the pipeline has no sink\. Call write_to"
    ):
        assets_of(p)


def run(assets: dg.AssetsDefinition, resource: JetResource, **config: Any) -> list[dg.DagsterEvent]:
    result = dg.materialize(
        [assets],
        resources={"jet": resource},
        run_config={"ops": {assets.op.name: {"config": config}}},
        raise_on_error=False,
    )
    assert not result.success
    return list(result.all_events)


def first_shown(events: list[dg.DagsterEvent]) -> str:
    """Text that the UI shows above a failed step's stack."""
    (data,) = [e.step_failure_data for e in events if e.is_step_failure]
    assert data.user_failure_data is not None
    return str(data.user_failure_data.description)


def test_a_run_that_cannot_begin(
    pipeline: Pipeline, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    assets = assets_of(pipeline)
    here = JetResource(store=[f"file://{tmp_path}/store"], backup_count=0)
    assert first_shown(run(assets, here, until="drainedd")).startswith(
        'until: \'drainedd\' is neither "drained", "completed", "stopped" nor a duration.'
    )
    away = JetResource(store=[f"file://{tmp_path}/gone/store"], backup_count=0)
    assert first_shown(run(assets, away, until="drained")).startswith(
        "a new store needs all of its members"
    )


def test_a_setting_from_the_environment(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known in the run only: Dagster shows it as the resource's failure."""
    monkeypatch.setenv("JET_INTERVAL", "5 parsecs")
    resource = JetResource(
        store=[f"file://{tmp_path}/store"],
        backup_count=0,
        snapshot_interval=dg.EnvVar("JET_INTERVAL"),
    )
    events = run(assets_of(pipeline), resource)
    (failed,) = [e for e in events if e.event_type is dg.DagsterEventType.RESOURCE_INIT_FAILURE]
    assert failed.engine_event_data.error is not None
    assert "'5 parsecs' is not a duration" in failed.engine_event_data.error.message


def test_a_store_that_the_daemon_cannot_reach(pipeline: Pipeline, tmp_path: Path) -> None:
    away = JetResource(store=[f"file://{tmp_path}/gone/store"], backup_count=0)
    assets = assets_of(pipeline)
    sensor = build_jet_supervisor_sensor(job=build_jet_job(assets), pipeline=pipeline, jet=away)
    schedule = build_jet_schedule(assets, cron_schedule="@daily", jet=away)
    with dg.DagsterInstance.ephemeral() as instance:
        with (
            dg.build_sensor_context(instance=instance) as context,
            pytest.raises(JetTickError, match="a new store needs all of its members") as caught,
        ):
            sensor.evaluate_tick(context)
        assert sentences(caught.value) == [str(caught.value)], "nothing around it"
        with (
            dg.build_schedule_context(instance=instance) as context,
            pytest.raises(JetTickError, match="a new store needs all of its members"),
        ):
            schedule.evaluate_tick(context)


def test_what_is_shown_of_assets_is_for_people(pipeline: Pipeline) -> None:
    more = pipeline.with_connectors(sinks={"large_out": sinks.files("/out/large", format="csv")})
    for spec in assets_of(more).specs:
        shown = dg.MetadataValue.text(spec.metadata["dagster_jet/pipeline"]).value
        assert shown == "shop"
        assert "object at 0x" not in f"{spec.description} {spec.metadata}"

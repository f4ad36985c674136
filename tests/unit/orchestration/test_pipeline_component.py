"""A pipeline as YAML: what it defines, what its scaffold writes, what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.testing.utils import (
    DefsFolderSandbox,
    component_defs,
    create_defs_folder_sandbox,
)

from dagster_jet import JetPipelineComponent, JetResource, Pipeline, sinks, sources, tables
from dagster_jet.connectors.generated.items import ItemsSource
from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration.component_settings import SupervisorSettings
from dagster_jet.orchestration.defined_pipeline import defined_in
from dagster_jet.orchestration.demo_mode import in_demo_mode

PIPELINE = """
from dagster_jet import Pipeline, sinks, sources


def shop(folder: str) -> Pipeline:
    p = Pipeline("shop")
    rows = p.read_from(sources.files(f"{folder}/in", format="json", schema="id long"), name="rows")
    rows.write_to(sinks.files(f"{folder}/out", format="json"), name="out")
    return p
"""
# Of what Dagster does itself with the definitions of a component.
pytestmark = pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning")
RESOURCE = {"store": ["file:///nowhere"], "backup_count": 0}


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as sandbox:
        yield sandbox


def loaded(
    sandbox: DefsFolderSandbox, attributes: Mapping[str, Any], code: str = PIPELINE
) -> dg.Definitions:
    path = sandbox.scaffold_component(
        component_cls=JetPipelineComponent,
        defs_yaml_contents={
            "type": "dagster_jet.JetPipelineComponent",
            "attributes": {"pipeline": "pipeline.py:shop", **attributes},
        },
    )
    (path / "pipeline.py").write_text(code, encoding="utf-8")
    with sandbox.load_component_and_build_defs(defs_path=path) as (component, definitions):
        assert isinstance(component, JetPipelineComponent)
        return definitions


def test_all_that_a_pipeline_needs(sandbox: DefsFolderSandbox) -> None:
    definitions = loaded(
        sandbox,
        {
            "arguments": {"folder": "/data"},
            "supervisor": "running",
            "group_name": "sales",
            "resource": RESOURCE,
        },
    )
    repository = definitions.get_repository_def()
    assert repository.has_job("shop_job") and repository.has_job("shop_control")
    (sensor,) = repository.sensor_defs
    assert sensor.name == "shop_supervisor"
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    (schedule,) = repository.schedule_defs
    assert schedule.name == "shop_checks_schedule", "checks turn red by themselves"
    assert schedule.cron_schedule == "*/30 * * * *"
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING, "as the supervisor"
    assert repository.has_job("shop_checks_job")
    graph = repository.asset_graph
    keys = {key.to_user_string() for key in graph.get_all_asset_keys()}
    assert keys == {"shop/rows", "shop/out"}
    assert graph.get(dg.AssetKey(["shop", "out"])).group_name == "sales"
    assert graph.asset_check_keys
    resource = definitions.resources["jet_shop"]
    assert isinstance(resource, JetResource) and list(resource.store) == RESOURCE["store"]


def test_a_schedule_instead_of_a_supervisor(sandbox: DefsFolderSandbox) -> None:
    attributes = {
        "arguments": {"folder": "/data"},
        "schedule": "0 * * * *",
        "checks": False,
        "control": False,
    }
    definitions = loaded(sandbox, {**attributes, "resource": RESOURCE})
    assert not definitions.get_repository_def().has_job("shop_control")
    repository = definitions.get_repository_def()
    assert not repository.sensor_defs and not repository.asset_graph.asset_check_keys
    (schedule,) = repository.schedule_defs
    assert schedule.cron_schedule == "0 * * * *"


def test_tables_of_a_lake_are_maintained(sandbox: DefsFolderSandbox) -> None:
    attributes = {
        "arguments": {"folder": "/data"},
        "resource": RESOURCE,
        "lake_maintenance": "0 3 * * *",
    }
    code = PIPELINE.replace('files(f"{folder}/out", format="json")', 'delta(f"{folder}/out")')
    repository = loaded(sandbox, attributes, code).get_repository_def()
    schedule = repository.get_schedule_def("shop_lake_maintenance_schedule")
    assert schedule.cron_schedule == "0 3 * * *"
    keys = {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()}
    assert "shop/out_maintenance" in keys


def test_settings_of_the_supervisor_and_of_the_checks(sandbox: DefsFolderSandbox) -> None:
    supervisor = {
        "status": "running",
        "minimum_interval_seconds": 45,
        "stuck_after_seconds": 60,
        "standby": True,
    }
    checks = {"schedule": "*/5 * * * *", "max_snapshot_age": "1 hour", "max_rejected_ratio": 0.5}
    attributes = {"arguments": {"folder": "/data"}, "supervisor": supervisor, "checks": checks}
    repository = loaded(sandbox, {**attributes, "resource": RESOURCE}).get_repository_def()
    sensor = repository.get_sensor_def("shop_supervisor")
    assert sensor.minimum_interval_seconds == 45
    assert sensor.metadata["dagster_jet/standby"].value is True
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert repository.get_schedule_def("shop_checks_schedule").cron_schedule == "*/5 * * * *"
    assert SupervisorSettings(**supervisor).given("stuck_after_seconds", "give_up_after") == {
        "stuck_after_seconds": 60
    }


@pytest.mark.parametrize("off", ["off", "'off'"])
def test_off_may_be_written_without_quotes(sandbox: DefsFolderSandbox, off: str) -> None:
    """YAML reads it as false. Failed before, although the page has it so."""
    lines = (f"supervisor: {off}", f"supervisor: {{follow_definition: {off}}}")
    for line, sensors in zip(lines, ([], ["shop_supervisor"]), strict=True):
        path = sandbox.scaffold_component(component_cls=JetPipelineComponent, defs_path="shop")
        file = path / "defs.yaml"
        before = file.read_text(encoding="utf-8")
        changed = before.replace("resource:", f"{line}\n  resource:\n    member_timeout: {off}")
        file.write_text(changed, encoding="utf-8")
        with sandbox.load_component_and_build_defs(defs_path=path) as (_, definitions):
            assert [s.name for s in definitions.get_repository_def().sensor_defs] == sensors
            assert definitions.resources["jet_shop"].member_timeout == "off"


def test_a_pipeline_that_is_off_has_checks_that_are_off(sandbox: DefsFolderSandbox) -> None:
    attributes = {"arguments": {"folder": "/data"}, "resource": RESOURCE}
    (schedule,) = loaded(sandbox, attributes).get_repository_def().schedule_defs
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    without = {**attributes, "checks": {"schedule": None}}
    assert not loaded(sandbox, without).get_repository_def().schedule_defs


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"checks": {"max_snapshot_age": "old"}}, "'old' is not a duration"),
        ({"checks": {"max_snapshot_ages": "1 hour"}}, "max_snapshot_ages"),
        ({"supervisor": {"interval": 45}}, "interval"),
        ({"freshness_policy": {"fail_window": "soon"}}, "'soon' is not a duration"),
        ({"hooks": ["pipeline.py:shop"]}, "is not a hook of Dagster"),
    ],
)
def test_a_setting_that_is_none_is_named(
    sandbox: DefsFolderSandbox, attributes: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(ComponentTreeException) as raised:
        loaded(sandbox, {"arguments": {"folder": "/data"}, **attributes})
    assert said in str(raised.value.__cause__)


def test_what_the_scaffold_writes_loads(sandbox: DefsFolderSandbox) -> None:
    path = sandbox.scaffold_component(component_cls=JetPipelineComponent, defs_path="fast-lane")
    assert sorted(p.name for p in path.iterdir()) == ["defs.yaml", "pipeline.py"]
    with sandbox.load_component_and_build_defs(defs_path=path) as (component, definitions):
        assert isinstance(component, JetPipelineComponent)
        assert definitions.get_repository_def().has_job("fast_lane_job")
        assert "{{" not in str(component.arguments), "the project's folder is filled in"


@pytest.mark.parametrize(
    ("name", "pipeline"),
    [
        ("sources", "pipeline_sources"),
        ("sinks", "pipeline_sinks"),
        ("Pipeline", "pipeline_Pipeline"),
        ("class", "pipeline_class"),
        ("my orders", "my_orders"),
        ("café", "caf_"),
    ],
)
def test_a_scaffold_of_any_name_loads(sandbox: DefsFolderSandbox, name: str, pipeline: str) -> None:
    """Failed before: the function hid an import, or was no name, or no part of an asset key."""
    path = sandbox.scaffold_component(component_cls=JetPipelineComponent, defs_path=name)
    with sandbox.load_component_and_build_defs(defs_path=path) as (_, definitions):
        assert definitions.get_repository_def().has_job(f"{pipeline}_job")


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"pipeline": "elsewhere.py:shop"}, "no file 'elsewhere.py' beside"),
        ({"pipeline": "pipeline.py:shoe"}, "has no 'shoe'"),
        ({}, "cannot be called without arguments: missing a required argument: 'folder'"),
        ({"pipeline": "nowhere.at_all:shop"}, "cannot be imported: No module named 'nowhere'"),
        ({"arguments": {"folder": "/data"}, "lake_maintenance": "0 3 * * *",
          "resource": RESOURCE}, "no sink of the pipeline is a table of Delta Lake or Iceberg"),
        ({"arguments": {"folder": "/data"}, "lake_maintenance": "0 3 * * *",
          "partitions": {"type": "static", "partition_keys": ["a"]}},
         "lake_maintenance: it is for"),
        ({"arguments": {"folder": "/data"}, "resource": {"store": ["file:///a"],
          "snapshot_interval": "5 parsecs"}}, "'5 parsecs' is not a duration"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    sandbox: DefsFolderSandbox, attributes: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(ComponentTreeException) as raised:
        loaded(sandbox, attributes)
    cause = raised.value.__cause__
    assert isinstance(cause, ConfigurationError) and said in str(cause)


def test_the_page_names_every_attribute_and_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "dagster.md").read_text(encoding="utf-8")
    (rows,) = re.findall(r"^\| attribute \|.*\n\|.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows.splitlines()]
    fields = JetPipelineComponent.model_fields
    assert [name.strip("`") for name, *_ in cells] == list(fields)
    properties = JetPipelineComponent.get_model_cls().model_json_schema()["properties"]
    for name, _, default in cells:
        field = fields[name.strip("`")]
        shown = properties[name.strip("`")]
        assert shown["description"] and shown["examples"], name
        if default.startswith("`"):
            value = field.default if isinstance(field.default, str) else json.dumps(field.default)
            assert default == f"`{value}`", name
        else:
            assert field.is_required() if not default else field.default is None, name


PARTITIONED = """
from pathlib import Path

import dagster as dg
from dagster_jet import Pipeline, Secret, sinks, sources


def shop(day: str, folder: str, word: Secret) -> Pipeline:
    assert word == Secret("SHOP_WORD")
    p = Pipeline("shop")
    rows = p.read_from(
        sources.kafka("nowhere:9092", topics=day, format="json", schema="id long, at timestamp, "
                      "city string, tags array<string>", options={"sasl.password": word}),
        name="rows",
    )
    rows.write_to(sinks.files(f"{folder}/{day}", format="json"), name="out")
    return p


@dg.failure_hook
def tell_us(context): ...
"""


def test_partitions_and_what_may_be_said_of_assets_and_op(sandbox: DefsFolderSandbox) -> None:
    """Failed before: the component had none of these."""
    attributes = {
        "arguments": {"folder": "/data", "word": "{{ secret.SHOP_WORD }}"},
        "partitions": {"type": "daily", "start_date": "2026-01-01"},
        "translation": {"key_prefix": "lake", "owners": ["team:{{ data.stage }}"]},
        "automation_condition": "{{ automation_condition.on_cron('@daily') }}",
        "freshness_policy": {"fail_window": "1 hour", "warn_window": "30 minutes"},
        "op": {"name": "days", "pool": "spark", "backfill_policy": {"type": "single_run"}},
        "retry_policy": {"max_retries": 4, "delay": 2, "backoff": "exponential"},
        "hooks": ["pipeline.py:tell_us"],
        "resource": {"store": ["{{ env.JET_STORE_OF_TEST }}"], "backup_count": 0},
    }
    definitions = loaded(sandbox, attributes, PARTITIONED)
    resource = definitions.resources["jet_shop_partition"]
    assert resource.store == ["env:JET_STORE_OF_TEST"], "a name, and not the value"
    repository = definitions.get_repository_def()
    assert not repository.has_sensor_def("shop_supervisor") and not repository.schedule_defs
    assert repository.has_job("shop_partitions_job")
    (assets,) = {id(a): a for a in repository.assets_defs_by_key.values()}.values()
    (spec,) = assets.specs
    assert spec.key == dg.AssetKey(["lake", "shop", "out"]) and spec.owners == ["team:out"]
    assert spec.automation_condition == dg.AutomationCondition.on_cron("@daily")
    hour, half = timedelta(hours=1), timedelta(minutes=30)
    assert spec.freshness_policy == dg.FreshnessPolicy.time_window(hour, half)
    assert assets.partitions_def == dg.DailyPartitionsDefinition("2026-01-01")
    assert assets.backfill_policy == dg.BackfillPolicy.single_run()
    assert (assets.op.name, assets.op.pool) == ("days", "spark")
    retries = dg.RetryPolicy(max_retries=4, delay=2, backoff=dg.Backoff.EXPONENTIAL)
    assert assets.op.retry_policy == retries
    assert [hook.name for hook in assets.hook_defs] == ["tell_us"]


@pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.PreviewWarning")
def test_each_has_the_resource_that_it_defines(
    sandbox: DefsFolderSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: Dagster refused two resources with the key 'jet', and a name of a variable was
    taken for the text."""
    monkeypatch.setenv("JET_NAMESPACE_OF_TEST", "of_bank")
    namespaces = {
        "eu/orders": "eu",
        "us/orders": "us",
        "shop": "JET_NAMESPACE_OF_TEST",
        "bank": "{{ env.JET_NAMESPACE_OF_TEST }}",
    }
    for path, namespace in namespaces.items():
        made = sandbox.scaffold_component(component_cls=JetPipelineComponent, defs_path=path)
        contents = yaml.safe_load((made / "defs.yaml").read_text(encoding="utf-8"))
        contents["attributes"]["resource"]["namespace"] = namespace
        (made / "defs.yaml").write_text(yaml.safe_dump(contents), encoding="utf-8")
    with sandbox.build_all_defs() as definitions:
        repository = definitions.get_repository_def()
    found = {key: type(jet.namespace) for key, jet in definitions.resources.items()}
    plain, from_environment = str, dg.EnvVar
    assert found == {
        "jet_eu_orders": plain,
        "jet_us_orders": plain,
        "jet_shop": plain,
        "jet_bank": from_environment,
    }
    for name in ("eu_orders", "us_orders", "shop", "bank"):
        for part in ("job", "control", "checks_job"):
            required = repository.get_job(f"{name}_{part}").required_resource_keys
            assert f"jet_{name}" in required and "jet" not in required
        sensor = repository.get_sensor_def(f"{name}_supervisor")
        assert sensor.required_resource_keys == {f"jet_{name}"}


@pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.PreviewWarning")
def test_a_stream_and_its_partitions_may_have_one_pipeline(sandbox: DefsFolderSandbox) -> None:
    partitions = {"type": "static", "partition_keys": ["mon"]}
    for path, more in {
        "live": {},
        "days": {"partitions": partitions, "translation": {"key_prefix": "days"}},
    }.items():
        made = sandbox.scaffold_component(
            component_cls=JetPipelineComponent,
            defs_path=path,
            defs_yaml_contents={
                "type": "dagster_jet.JetPipelineComponent",
                "attributes": {"pipeline": "pipeline.py:shop", "resource": RESOURCE, **more},
            },
        )
        code = PIPELINE.replace("folder: str", 'folder: str = "/data"')
        (made / "pipeline.py").write_text(code, encoding="utf-8")
    with sandbox.build_all_defs() as definitions:
        repository = definitions.get_repository_def()
    assert repository.has_job("shop_job") and repository.has_job("shop_partitions_job")
    assert sorted(definitions.resources) == ["jet_shop", "jet_shop_partition"]


@pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.PreviewWarning")
@pytest.mark.parametrize("paths", [("a-b", "a_b"), ("eu/orders", "us/orders")])
def test_two_with_one_name_in_dagster_are_both_named(
    sandbox: DefsFolderSandbox, paths: tuple[str, str]
) -> None:
    """Failed before with Dagster's "duplicate definition", which names neither."""
    for path in paths:
        made = sandbox.scaffold_component(component_cls=JetPipelineComponent, defs_path=path)
        code = (made / "pipeline.py").read_text(encoding="utf-8")
        name = Path(path).name
        code = re.sub(r'Pipeline\("\w+"\)', f'Pipeline("{name}")', code)
        (made / "pipeline.py").write_text(code, encoding="utf-8")
    with pytest.raises(ComponentTreeException) as raised, sandbox.build_all_defs():
        pass
    cause: BaseException | None = raised.value
    while cause is not None and not isinstance(cause, ConfigurationError):
        cause = cause.__cause__
    assert all(f"the component '{path}[0]' defines" in str(cause) for path in paths)
    assert all(f"{Path(path).name!r}" in str(cause) for path in paths)
    assert "Give one of the two pipelines another name" in str(cause)


def test_a_demo_needs_no_server(sandbox: DefsFolderSandbox) -> None:
    attributes = {
        "arguments": {"folder": "/data", "word": "{{ secret.SHOP_WORD }}"},
        "partitions": {"type": "static", "partition_keys": ["mon"]},
        "demo_mode": True,
    }
    definitions = loaded(sandbox, attributes, PARTITIONED)
    (store,) = definitions.resources["jet_shop_partition"].store
    assert store.startswith("file://") and store.endswith("/demo/store")
    assert Path(store.removeprefix("file://")).parent.is_dir()
    (assets,) = {
        id(a): a for a in definitions.get_repository_def().assets_defs_by_key.values()
    }.values()
    defined = defined_in(assets.metadata_by_key)
    assert defined is not None and defined.of_partition is not None
    pipeline = defined.of_partition("mon")
    (source,), (sink,) = pipeline.graph.sources, pipeline.graph.sinks
    assert sink.sink.describe()["path"].endswith("/demo/shop@mon/out")
    assert isinstance(source.source, ItemsSource)
    assert source.source.rate is None, "failed before: a partition read the first row, and ended"
    (odd,) = defined.of_partition("/../mon").graph.sinks
    place = Path(odd.sink.describe()["path"])
    assert place.parents[1].name == "demo", "failed before: the key led out of the demo's folder"
    assert "city string" in (source.source.row_schema() or "")


def test_what_a_demo_cannot_generate_is_named() -> None:
    p = Pipeline("shop")
    rows = p.read_from(sources.files("/in", format="json", schema="id long, x float"), name="rows")
    rows.enrich(tables.sql("sqlite:///x.db", table="t"), on="id").write_to(
        sinks.files("/out", format="json"), name="out"
    )
    with pytest.raises(ConfigurationError, match="the table is in a database"):
        in_demo_mode(p, "/demo")


def test_an_unknown_attribute_is_named_with_its_line(sandbox: DefsFolderSandbox) -> None:
    with pytest.raises(ComponentTreeException) as raised:
        loaded(sandbox, {"arguments": {"folder": "/data"}, "supervisors": "running"})
    assert "supervisors" in str(raised.value.__cause__)


def test_a_subclass_runs_it_in_its_own_way(tmp_path: Path) -> None:
    ran = []

    class Own(JetPipelineComponent):
        def execute(self, context: dg.AssetExecutionContext, jet: JetResource) -> Any:
            ran.append(context.run_id)
            yield dg.AssetMaterialization(["shop", "out"])

    (tmp_path / "shop_for_a_component.py").write_text(PIPELINE, encoding="utf-8")
    component = Own(
        pipeline="shop_for_a_component:shop", arguments={"folder": "/data"}, resource=RESOURCE
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        definitions = component_defs(component=component)
    result = definitions.resolve_job_def("shop_job").execute_in_process(
        run_config={"ops": {"shop": {"config": {"until": "drained"}}}}
    )
    assert result.success and len(ran) == 1

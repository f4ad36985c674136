"""Errors shown in Dagster's UI, asked for over GraphQL; no Spark."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.workspace.load_target import PythonFileTarget
from dagster_webserver.webserver import DagsterWebserver

from tests.long import long

from .code_server import loaded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # starlette wants another HTTP client than dagster brings
    from starlette.testclient import TestClient

STACK_LINES_MAX = 20
"""Most lines of stack above our sentence. Dagster's own loader has four frames, of two or three
lines each."""

HALF = """
p = Pipeline("half")
p.read_from(sources.files("/in", format="json", schema="id long"), name="rows")

@jet_assets(pipeline=p)
def half(context: dg.AssetExecutionContext, jet: JetResource):
    yield from jet.run(context=context)

defs = dg.Definitions(assets=[half])
"""
SHOP = """
p = Pipeline("shop")
rows = p.read_from(sources.files("/in", format="json", schema="id long"), name="rows")
rows.write_to(sinks.files("/out", format="json"), name="out")

@jet_assets(pipeline=p)
def shop(context: dg.AssetExecutionContext, jet: JetResource):
    yield from jet.run(context=context)

job = build_jet_job(shop)
"""
TWICE = """
jet = JetResource(store=["file:///nowhere/at/all"], backup_count=0)
defs = dg.Definitions(assets=[shop], jobs=[job, build_jet_job(shop)], resources={"jet": jet})
"""
WHOLE = """
defs = dg.Definitions(
    assets=[shop],
    jobs=[job, build_jet_control_job("shopp", jet="here")],
    sensors=[build_jet_supervisor_sensor(job=job, pipeline=p)],
    resources={
        "jet": JetResource(store=["file:///nowhere/at/all"], backup_count=0),
        "here": JetResource(store=["file://FOLDER/store"], backup_count=0),
    },
)
"""
IMPORTS = """\
import dagster as dg

from dagster_jet import (
    JetResource, Pipeline, build_jet_control_job, build_jet_job, build_jet_supervisor_sensor,
    jet_assets, sinks, sources,
)
"""

PYTHON_ERROR = """
... on PythonError { message stack errorChain { error { message } } }
"""
LOCATION = f"""
{{ workspaceOrError {{ ... on Workspace {{ locationEntries {{
  locationOrLoadError {{ __typename {PYTHON_ERROR} }}
}} }} }} }}
"""
TICK = """
mutation($sensor: SensorSelector!) { sensorDryRun(selectorData: $sensor, cursor: null) {
  ... on DryRunInstigationTick { evaluationResult { error { message stack errorChain {
    error { message }
  } } } }
} }
"""
LAUNCH = f"""
mutation($run: ExecutionParams!) {{ launchRun(executionParams: $run) {{
  __typename
  ... on RunConfigValidationInvalid {{ errors {{ message }} }}
  ... on LaunchRunSuccess {{ run {{ runId }} }}
  {PYTHON_ERROR}
}} }}
"""
REPOSITORY = {"repositoryName": "__repository__", "repositoryLocationName": "jet"}
AT_ONCE = {
    "run_coordinator": {
        "module": "dagster._core.run_coordinator",
        "class": "DefaultRunCoordinator",
    }
}
PATIENCE_SECONDS = 120

# What is asked for is also a warning of the process that asks.
pytestmark = pytest.mark.filterwarnings("ignore:Error loading repository location")


class Ui:
    """GraphQL queries behind the pages of one code location."""

    def __init__(self, client: TestClient, instance: dg.DagsterInstance) -> None:
        self.client, self.instance = client, instance

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        body = {"query": query, "variables": variables}
        answer: dict[str, Any] = self.client.post("/graphql", json=body).json()
        assert "errors" not in answer, answer
        return answer["data"]

    def location(self) -> dict[str, Any]:
        (entry,) = self.ask(LOCATION)["workspaceOrError"]["locationEntries"]
        return entry["locationOrLoadError"]

    def launch(self, job: str, config: dict[str, Any]) -> dict[str, Any]:
        selector = {**REPOSITORY, "pipelineName": job}
        run = {"selector": selector, "runConfigData": json.dumps(config), "mode": "default"}
        return self.ask(LAUNCH, run=run)["launchRun"]


@contextmanager
def shown(folder: Path, text: str) -> Iterator[Ui]:
    """The UI of a file of definitions."""
    (folder / "definitions.py").write_text(
        IMPORTS + text.replace("FOLDER", str(folder)), encoding="utf-8"
    )
    target = PythonFileTarget(
        python_file=str(folder / "definitions.py"),
        attribute=None,
        working_directory=str(folder),
        location_name="jet",
    )
    (folder / "home").mkdir()
    with (
        dg.instance_for_test(AT_ONCE, temp_dir=str(folder / "home")) as instance,
        loaded(instance, target) as context,
    ):
        yield Ui(TestClient(DagsterWebserver(context).create_asgi_app()), instance)


def lines(stack: list[str]) -> int:
    return sum(len(frame.splitlines()) for frame in stack)


@long
def test_a_pipeline_that_does_not_build(tmp_path: Path) -> None:
    """Dagster puts an error of its own above every other one that a file raises."""
    with shown(tmp_path, HALF) as ui:
        error = ui.location()
    assert "Error occurred during the loading of Dagster definitions" in error["message"]
    assert lines(error["stack"]) <= STACK_LINES_MAX
    (cause,) = error["errorChain"]
    assert cause["error"]["message"].strip() == (
        "dagster_jet.errors.PipelineError: job 'half': the pipeline has no sink. Call write_to()."
    )


@long
def test_two_jobs_of_one_name(tmp_path: Path) -> None:
    with shown(tmp_path, SHOP + TWICE) as ui:
        error = ui.location()
    assert (
        error["message"]
        .strip()
        .endswith("Duplicate definition found for unresolved job 'shop_job'")
    )
    assert error["errorChain"] == []


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    with shown(tmp_path_factory.mktemp("project"), SHOP + WHOLE) as ui:
        assert ui.location()["__typename"] == "RepositoryLocation"
        yield ui


def test_a_store_that_a_tick_cannot_reach(ui: Ui) -> None:
    sensor = {**REPOSITORY, "sensorName": "shop_supervisor"}
    error = ui.ask(TICK, sensor=sensor)["sensorDryRun"]["evaluationResult"]["error"]
    (sentence,) = error["message"].strip().splitlines()
    assert sentence.startswith("dagster_jet.orchestration.tick.JetTickError: a new store needs all")
    assert "the folder /nowhere/at does not exist" in sentence and "Mount it" in sentence
    assert error["errorChain"] == [] and lines(error["stack"]) <= STACK_LINES_MAX


@pytest.mark.parametrize(
    ("job", "config", "sentence"),
    [
        (
            "shop_job",
            {"shop": {"config": {"untill": "drained"}}},
            'Received unexpected config entry "untill" at path root:ops:shop:config. '
            'Expected: "{ accept_loss?: Bool dropped_state?: [String] if_running?: JetIfRunning '
            "initial_snapshot?: Any refused_to_dead_letters?: Bool renamed?: { } "
            'repeat_output?: Bool standby?: Bool until?: String }".',
        ),
        (
            "shopp_control",
            {"ask_shopp": {"config": {"action": "stop"}}},
            "Value at path root:ops:ask_shopp:config:action not in enum type JetAction got stop",
        ),
    ],
    ids=["a setting that there is not", "an action that there is not"],
)
def test_run_config_that_there_is_not(
    ui: Ui, job: str, config: dict[str, Any], sentence: str
) -> None:
    answer = ui.launch(job, {"ops": config})
    assert answer["__typename"] == "RunConfigValidationInvalid"
    assert [error["message"] for error in answer["errors"]] == [sentence]


@long
def test_the_form_of_a_job_that_nobody_knows(ui: Ui) -> None:
    answer = ui.launch("shopp_control", {"ops": {"ask_shopp": {"config": {"action": "suspend"}}}})
    assert answer["__typename"] == "LaunchRunSuccess", answer
    run_id = answer["run"]["runId"]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (run := ui.instance.get_run_by_id(run_id)).is_finished:
        assert time.monotonic() < deadline, run
        time.sleep(0.1)
    (failed,) = [
        entry.dagster_event.step_failure_data
        for entry in ui.instance.all_logs(run_id)
        if entry.dagster_event is not None and entry.dagster_event.is_step_failure
    ]
    assert failed.user_failure_data is not None
    assert failed.user_failure_data.description == (
        "job 'shopp': cannot suspend: the job is unknown. Start it first."
    )

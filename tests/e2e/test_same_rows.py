"""One pipeline, started by plain code, a schedule, the component and the UI: the same rows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.workspace.load_target import PythonFileTarget
from dagster.components.testing.utils import component_defs
from dagster_webserver.webserver import DagsterWebserver

from dagster_jet import JetPipelineComponent
from tests.long import long

from .code_server import loaded
from .run_worker import REPOSITORY, TIMEOUT_SECONDS
from .test_drained_schedule import scheduled_run
from .test_materialize import materialize
from .test_partitions import of_hours, rows
from .tiny import put_file, settings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # starlette wants another HTTP client than dagster brings
    from starlette.testclient import TestClient

RUN_CONFIG = {"ops": {"tiny": {"config": {"until": "drained"}}}}
DEFINITIONS = """
from pathlib import Path

from tests.e2e.tiny import tiny_definitions

defs = tiny_definitions(Path({folder!r}))
"""
LAUNCH = """
mutation($params: ExecutionParams!) {
  launchPipelineExecution(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""


def by_plain_code(folder: Path) -> None:
    assert materialize(folder, "drained").success


def by_a_schedule(folder: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert scheduled_run(folder, instance).success


def by_the_component(folder: Path) -> None:
    component = JetPipelineComponent(
        pipeline="tests.e2e.tiny:tiny",
        arguments={"folder": str(folder)},
        resource=settings(folder),
    )
    job = component_defs(component=component).resolve_job_def("tiny_job")
    assert job.execute_in_process(run_config=RUN_CONFIG).success


def by_the_ui(folder: Path) -> None:
    """Launches a run as the launchpad's button does, with a code server and a run worker."""
    (folder / "defs.py").write_text(DEFINITIONS.format(folder=str(folder)), encoding="utf-8")
    target = PythonFileTarget(
        python_file=str(folder / "defs.py"),
        attribute=None,
        working_directory=str(REPOSITORY),
        location_name="tiny",
    )
    (folder / "home").mkdir()
    # Without a daemon, which would take it out of the queue.
    at_once = {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}
    with (
        dg.instance_for_test(
            {"run_coordinator": at_once}, temp_dir=str(folder / "home")
        ) as instance,
        loaded(instance, target) as context,
    ):
        client = TestClient(DagsterWebserver(context).create_asgi_app())
        selector = {
            "repositoryName": "__repository__",
            "repositoryLocationName": "tiny",
            "pipelineName": "tiny_job",
        }
        params = {"selector": selector, "runConfigData": RUN_CONFIG}
        answer: dict[str, Any] = client.post(
            "/graphql", json={"query": LAUNCH, "variables": {"params": params}}
        ).json()
        launched = answer["data"]["launchPipelineExecution"]
        assert launched["__typename"] == "LaunchRunSuccess", answer
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            run = instance.get_run_by_id(launched["run"]["runId"])
            assert run is not None and time.monotonic() < deadline
            if run.is_finished:
                break
            time.sleep(0.1)
        assert run.status is dg.DagsterRunStatus.SUCCESS


@pytest.mark.parametrize(
    "start",
    [by_plain_code, by_a_schedule, by_the_component, pytest.param(by_the_ui, marks=long)],
)
def test_the_same_rows(tmp_path: Path, start: Callable[[Path], None]) -> None:
    for number in range(3):
        put_file(tmp_path, number)
    start(tmp_path)
    copied, _ = of_hours(tmp_path, 3)
    _, per_hour = of_hours(tmp_path, 2)
    assert rows(tmp_path / "copy") == copied
    assert rows(tmp_path / "per_hour") == per_hour, "the last hour is open: drained"

"""Lineage of the demo's definitions in the browser, asked for over GraphQL."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.workspace.load_target import PythonFileTarget
from dagster_webserver.webserver import DagsterWebserver

from .code_server import loaded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # starlette wants another HTTP client than dagster brings
    from starlette.testclient import TestClient

REPOSITORY = Path(__file__).parents[2]

QUERY = """
{
  assetNodes {
    assetKey { path }
    groupName
    kinds
    isMaterializable
    dependencyKeys { path }
    jobNames
  }
  sensorsOrError(repositorySelector: {
    repositoryName: "__repository__", repositoryLocationName: "jet"
  }) { ... on Sensors { results { name targets { pipelineName } } } }
}
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    target = PythonFileTarget(
        python_file=str(REPOSITORY / "definitions.py"),
        attribute=None,
        working_directory=str(REPOSITORY),
        location_name="jet",
    )
    home = str(tmp_path_factory.mktemp("home"))
    with (
        dg.instance_for_test(temp_dir=home) as instance,
        loaded(instance, target) as context,
    ):
        yield TestClient(DagsterWebserver(context).create_asgi_app())


def test_lineage_of_the_demo(client: TestClient) -> None:
    answer: dict[str, Any] = client.post("/graphql", json={"query": QUERY}).json()
    assert "errors" not in answer
    nodes = {
        node["assetKey"]["path"][-1]: {
            "materializable": node["isMaterializable"],
            "from": [key["path"][-1] for key in node["dependencyKeys"]],
            "kinds": sorted(node["kinds"]),
        }
        for node in answer["data"]["assetNodes"]
    }
    assert nodes == {
        "flights": {"materializable": False, "from": [], "kinds": ["jet", "json", "spark"]},
        "bad_rows": {
            "materializable": True, "from": ["flights"], "kinds": ["jet", "json", "spark"],
        },
        "hourly_delays": {
            "materializable": True,
            "from": ["flights", "airlines", "weather"],
            "kinds": ["jet", "spark"],
        },
        "hourly_out": {
            "materializable": True, "from": ["hourly_delays"], "kinds": ["jet", "parquet", "spark"],
        },
        "badly_delayed_out": {
            "materializable": True,
            "from": ["flights", "airlines", "weather"],
            "kinds": ["jet", "json", "spark"],
        },
        "airlines": {"materializable": False, "from": [], "kinds": ["csv"]},
        "weather": {"materializable": False, "from": [], "kinds": ["csv"]},
    }  # fmt: skip
    assert {node["groupName"] for node in answer["data"]["assetNodes"]} == {"airport_delays"}
    (sensor,) = answer["data"]["sensorsOrError"]["results"]
    assert sensor["name"] == "airport_delays_supervisor"
    assert sensor["targets"] == [{"pipelineName": "airport_delays_job"}]

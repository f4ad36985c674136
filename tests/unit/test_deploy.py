"""The files of `deploy/`: they load, agree with one another, and name what exists.

No container is built here. Instance settings are loaded by tests/e2e/test_dagster_on_postgres.py.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import dagster as dg
import pytest
import yaml
from dagster._cli import create_dagster_cli
from dagster._core.workspace.config_schema import process_workspace_config
from dagster._daemon.cli import create_dagster_daemon_cli
from dagster_webserver.cli import dagster_webserver

from dagster_jet import JetResource

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
COMMANDS = {
    "dagster": create_dagster_cli(),
    "dagster-daemon": create_dagster_daemon_cli(),
    "dagster-webserver": dagster_webserver,
}


def read(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
    return loaded


SERVICES = read("compose.yaml")["services"]
ENVIRONMENT = SERVICES["code"]["environment"]


def accept(words: list[str]) -> dict[str, Any]:
    """Parses a command line as its program does. Returns the options."""
    command: click.Command = COMMANDS[words.pop(0)]
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    return command.make_context(command.name, words).params


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)


def test_what_the_image_copies_and_installs_exists() -> None:
    sources = [word for line in instructions("COPY") for word in line.split()[:-1]]
    assert len(sources) >= 8
    assert [name for name in sources if not (ROOT / name).exists()] == []
    ((extra,),) = (
        re.findall(r'"/src\[(\w+)\]"', line) for line in instructions("RUN") if "/src[" in line
    )
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"\n{extra} = [" in project, "an extra"
    python = re.findall(r"^FROM python:(3\.\d+)-", DOCKERFILE, re.MULTILINE)
    assert python == ["3.11"] and "openjdk-17" in DOCKERFILE, "what the tests run on"


def test_the_image_serves_the_definitions() -> None:
    (command,) = instructions("CMD")
    options = accept(json.loads(command))
    assert options["module_name"] == "definitions" and options["port"] == 4000
    (server,) = (one["grpc_server"] for one in read("workspace.yaml")["load_from"])
    assert process_workspace_config(read("workspace.yaml")).success
    assert server["port"] == options["port"] and server["host"] in SERVICES


def test_the_definitions_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JET_STORE", ENVIRONMENT["JET_STORE"])
    spec = importlib.util.spec_from_file_location("deployed", DEPLOY / "definitions.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    repository = module.defs.get_repository_def()
    (sensor,) = repository.sensor_defs
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert repository.has_job("auctions_job")
    jet = module.defs.resources["jet"]
    assert isinstance(jet, JetResource) and len(jet.store) == 3


def test_the_services_name_what_exists() -> None:
    compose = read("compose.yaml")
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", ())) <= SERVICES.keys(), name
        volumes = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        assert volumes <= compose["volumes"].keys(), name
        assert service["image"] == "jet" or ":" in service["image"], "a tag"
        if service["image"] == "jet" and "command" in service:
            place = "/dagster_home/workspace.yaml"  # in the image
            here = [str(DEPLOY / "workspace.yaml") if w == place else w for w in service["command"]]
            assert here != service["command"] and accept(here)["workspace"], name
    assert SERVICES["code"]["build"]["dockerfile"] == "deploy/Dockerfile"
    hosts = {urlsplit(url).hostname for url in ENVIRONMENT["JET_STORE"].split()}
    assert len(hosts) == 3 and hosts | {ENVIRONMENT["DAGSTER_POSTGRES_HOST"]} <= SERVICES.keys()
    stop_s = int(SERVICES["code"]["stop_grace_period"].removesuffix("s"))
    assert stop_s > JetResource.model_fields["drain_budget_seconds"].default


def test_every_variable_that_is_read_is_set() -> None:
    read_by_yaml = set(re.findall(r"env: (\w+)", (DEPLOY / "dagster.yaml").read_text("utf-8")))
    code = (DEPLOY / "definitions.py").read_text(encoding="utf-8")
    assert len(read_by_yaml) == 5
    assert read_by_yaml | set(re.findall(r'environ\["(\w+)"\]', code)) == ENVIRONMENT.keys()
    (user,) = read("values.yaml")["dagster-user-deployments"]["deployments"]
    named = {one["name"] for one in user["env"]}
    assert named == set(re.findall(r'environ(?:\.get)?[\[(]"(\w+)"', code))


def test_the_chart_gets_the_settings_of_the_instance() -> None:
    """Names and values as in Dagster's chart; camel case there, snake case in `dagster.yaml`."""
    values, instance = read("values.yaml"), read("dagster.yaml")
    daemon = values["dagsterDaemon"]
    queue = daemon["runCoordinator"]["config"]["queuedRunCoordinator"]
    assert snake(queue) == instance["concurrency"]["runs"]
    assert snake(daemon["runMonitoring"]) == instance["run_monitoring"]
    assert snake(daemon["sensors"]) == instance["sensors"]
    kept = values["retention"]
    assert (
        kept["schedule"]["purgeAfterDays"] == instance["retention"]["schedule"]["purge_after_days"]
    )
    ticks = instance["retention"]["sensor"]["purge_after_days"]
    assert {k: v for k, v in kept["sensor"]["purgeAfterDays"].items() if v >= 0} == ticks
    assert values["postgresql"]["postgresqlScheme"] == "postgresql+psycopg2"
    (user,) = values["dagster-user-deployments"]["deployments"]
    (command,) = instructions("CMD")
    assert " ".join(user["dagsterApiGrpcArgs"]) in shlex.join(json.loads(command))
    assert user["port"] == 4000


def snake(values: dict[str, Any]) -> dict[str, Any]:
    return {
        re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", key): each for key, each in values.items()
    }


def test_the_sensor_of_the_page_reports_a_red_check_once() -> None:
    page = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")
    (code,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        if "red_checks" in block
    )
    names: dict[str, Any] = {"dg": dg}
    exec(compile(code, "production.md", "exec", dont_inherit=True), names)

    @dg.asset_check(asset="flights", name="alive")
    def alive() -> dg.AssetCheckResult:
        raise NotImplementedError

    repository = dg.Definitions(
        assets=[dg.AssetSpec("flights")], asset_checks=[alive], sensors=[names["red_checks"]]
    ).get_repository_def()
    cursor, said = None, []
    with dg.DagsterInstance.ephemeral() as instance:
        for passed in (False, False, True, False):
            instance.report_runless_asset_event(
                dg.AssetCheckEvaluation(
                    asset_key=dg.AssetKey("flights"), check_name="alive", passed=passed, metadata={}
                )
            )
            with dg.build_sensor_context(
                instance, cursor=cursor, repository_def=repository
            ) as tick:
                cursor = names["red_checks"].evaluate_tick(tick).cursor
            said.append(cursor)
    assert said == ['["flights alive"]', '["flights alive"]', "[]", '["flights alive"]']

"""`dagster-jet --version`, and what `dagster-jet run` refuses before Spark is started."""

from __future__ import annotations

import inspect
from dataclasses import fields
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dagster_jet.cli import app
from dagster_jet.cli.run_command import parameters_of, run
from dagster_jet.start_options import StartOptions


def test_the_version() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0
    assert shown.stdout == f"dagster-jet {metadata.version('dagster-jet')}\n"


def test_a_pipeline_that_is_not_there_and_a_store_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"DAGSTER_JET_STORE": f"file://{tmp_path}/store"}
    wrong = CliRunner().invoke(
        app, ["run", "nowhere:flights", "--parameter", "15"], env=environment
    )
    assert wrong.exit_code == 2 and "--parameter: expected NAME=VALUE" in wrong.stderr
    missing = CliRunner().invoke(app, ["run", "nowhere:flights"], env=environment)
    assert missing.exit_code == 2 and "cannot be imported" in missing.stderr
    file = CliRunner().invoke(app, ["run", "json.py:loads"], env=environment)
    assert "'json.py'. Name a module on Python's path" in file.stderr
    (tmp_path / "circular.py").write_text("from circular import PIPELINE", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    circular = CliRunner().invoke(app, ["run", "circular:PIPELINE"], env=environment)
    assert "circular import" in circular.stderr and "Python's path" not in circular.stderr
    assert not (tmp_path / "store").exists()


def test_each_option_of_a_start_is_one_of_the_command() -> None:
    options = {field.name for field in fields(StartOptions)}
    assert options <= set(inspect.signature(run).parameters)


def test_parameters_are_json_or_text() -> None:
    given = ["limit=15", "rate=0.5", "name=a=b", 'hosts=["a"]', "token=env:TOKEN", "on=true"]
    assert parameters_of(given) == {
        "limit": 15, "rate": 0.5, "name": "a=b", "hosts": ["a"], "token": "env:TOKEN", "on": True,
    }  # fmt: skip

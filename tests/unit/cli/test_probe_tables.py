"""`dagster-jet probe` of tables in a lake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
from typer.testing import CliRunner

from dagster_jet.cli import app
from tests.unit.connectors.delta_table import SCHEMA
from tests.unit.connectors.iceberg_rows import NAME, options_at
from tests.unit.connectors.iceberg_table import Table


def probed(*given: str) -> tuple[int, Any]:
    ended = CliRunner().invoke(app, ["probe", *given, "--json"])
    return ended.exit_code, json.loads(ended.stdout) if ended.exit_code < 2 else ended.output


def answers(document: Any) -> list[str]:
    return [one["verdict"] for one in document["answers"]]


def test_a_delta_table(tmp_path: Path) -> None:
    url, properties = f"delta+file://{tmp_path}/table", {"delta.enableDeletionVectors": "true"}
    code, found = probed(url)
    assert code == 0 and answers(found) == ["yes"] and not (tmp_path / "table").exists()
    assert "a start creates it" in found["answers"][0]["meaning"]
    deltalake.DeltaTable.create(f"{tmp_path}/table", SCHEMA)
    assert probed(url)[0] == 0
    deltalake.DeltaTable.create(
        f"{tmp_path}/table", SCHEMA, mode="overwrite", configuration=properties
    )
    code, found = probed(url)
    assert code == 1 and answers(found) == ["yes", "no"]
    assert "the feature 'deletionVectors'" in found["answers"][1]["meaning"]
    assert [one.name for one in (tmp_path / "table").iterdir()] == ["_delta_log"]
    assert probed("delta+gs://bucket/table")[0] == 2


def test_an_iceberg_table(tmp_path: Path) -> None:
    Table(tmp_path)
    options = [f"--option={name}={value}" for name, value in options_at(tmp_path).items()]
    code, found = probed(f"iceberg://lake/{NAME}", *options)
    assert code == 0 and answers(found) == ["yes", "yes"]
    code, found = probed("iceberg://lake/space.another", *options)
    assert code == 0 and answers(found) == ["yes"]
    assert probed("iceberg://lake/table", *options)[0] == 2

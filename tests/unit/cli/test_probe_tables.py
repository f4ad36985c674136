"""`dagster-jet probe` of tables in a lake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import deltalake
import pytest
from typer.testing import CliRunner

from dagster_jet import sinks
from dagster_jet.cli import app
from dagster_jet.connectors.delta.log_folder import options_of
from dagster_jet.connectors.lake.data_folder import data_folder
from tests.servers.proxy import Proxy
from tests.unit.connectors.delta_table import SCHEMA
from tests.unit.connectors.iceberg_rows import NAME, options_at
from tests.unit.connectors.iceberg_table import Table
from tests.unit.connectors.s3_folder import S3Folder
from tests.unit.connectors.s3_folder import s3 as s3
from tests.unit.connectors.s3_folder import server as server

KEY = "a-key-that-is-not-shown"
ONCE = "Does it refuse to create a version twice?"


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


@pytest.fixture
def reached(s3: S3Folder, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words by which the probe reaches moto's bucket. It finds no keys by itself."""
    assert s3.client is not None, "it is made with the keys of the environment"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LAKE_ID", "id")
    monkeypatch.setenv("LAKE_KEY", KEY)
    options = {
        "endpoint_url": s3.server.endpoint_url,
        "region": "us-east-1",
        "access_key_id": "env:LAKE_ID",
        "secret_access_key": "env:LAKE_KEY",
    }
    return [f"--storage-option={name}={value}" for name, value in options.items()]


def test_a_delta_table_in_a_bucket(s3: S3Folder, reached: list[str]) -> None:
    code, found = probed(f"delta+{s3.url}", *reached)
    assert code == 0 and answers(found) == ["yes", "yes"], found
    assert found["answers"][0]["question"] == ONCE and not s3.every_name()
    options = dict(one.removeprefix("--storage-option=").split("=", 1) for one in reached)
    sink = sinks.delta(s3.url, storage_options=options)
    opened = options_of(data_folder(s3.url, sink.storage_options))
    deltalake.DeltaTable.create(s3.url, SCHEMA, storage_options=dict(opened))
    before = s3.every_name()
    code, found = probed(f"delta+{s3.url}", *reached)
    assert code == 0 and answers(found) == ["yes", "yes", "yes"], found
    assert s3.every_name() == before and not s3.uploads(), "it leaves nothing"
    assert KEY not in json.dumps(found)


def test_a_bucket_that_creates_twice(s3: S3Folder, reached: list[str]) -> None:
    s3.server.ignore("PUT If-None-Match")
    with Proxy(urlsplit(s3.server.endpoint_url).port or 0) as other:  # asked once per server
        endpoint = f"--storage-option=endpoint_url=http://127.0.0.1:{other.port}"
        code, found = probed(f"delta+{s3.url}", *reached[1:], endpoint)
    once = {one["question"]: one for one in found["answers"]}[ONCE]
    assert code == 1 and once["verdict"] == "no"
    assert "ignores If-None-Match of PUT" in once["meaning"]
    assert "conditional writes" in once["cure"]


def test_an_iceberg_table_in_a_bucket(tmp_path: Path, s3: S3Folder, reached: list[str]) -> None:
    place: Any = {**options_at(tmp_path), "warehouse": s3.url}
    options = dict(one.removeprefix("--storage-option=").split("=", 1) for one in reached)
    made = sinks.iceberg("lake", NAME, catalog_options=place, storage_options=options)
    made._of_rows.append(SCHEMA)
    made.claim_place("j", "out")
    before = s3.every_name()
    catalog = [f"--option={name}={value}" for name, value in place.items()]
    code, found = probed(f"iceberg://lake/{NAME}", *catalog, *reached)
    assert code == 0 and answers(found) == ["yes", "yes"], found
    assert s3.every_name() == before and KEY not in json.dumps(found)


@pytest.mark.parametrize("url", ["delta+s3://bucket/table", "iceberg://lake/space.rows"])
def test_a_key_that_is_written_out_is_refused(url: str) -> None:
    keys = [f"--storage-option={name}={KEY}" for name in ("access_key_id", "secret_access_key")]
    code, said = probed(url, *keys)
    assert code == 2 and "access_key_id is given in plain text" in said and KEY not in said
    code, said = probed(url, "--storage-option=region")
    assert code == 2 and "--storage-option: 'region' has no value" in said

"""Readers that nobody here wrote, of tables in a bucket of moto's server: appended and merged,
partitioned, of both formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import sinks
from dagster_jet.connectors.delta.columns import columns_of_rows
from dagster_jet.connectors.delta.log_folder import options_of
from dagster_jet.connectors.lake.data_folder import data_folder
from tests.integration import polars_reader
from tests.long import long_but_for
from tests.servers import duckdb_reader
from tests.unit.connectors import iceberg_table
from tests.unit.connectors.delta_table import SCHEMA, by, commit, rows, stage
from tests.unit.connectors.iceberg_rows import NAME, options_at
from tests.unit.connectors.s3_folder import S3Folder
from tests.unit.connectors.s3_folder import s3 as s3
from tests.unit.connectors.s3_folder import server as server

Read = Callable[[], list[dict[str, Any]]]
MODES: dict[str, Any] = {"append": {"partition_by": "day"}, "upsert": {"key": "id"}}
IDS = {"append": [1, 2, 2, 3], "upsert": [1, 2, 3]}


def made(sink: Any) -> Any:
    sink.check("j", "out", is_new_job=True)
    sink._of_rows.append(columns_of_rows(SCHEMA) if "delta" in sink.describe()["kind"] else SCHEMA)
    sink.claim_place("j", "out")
    return sink.at_start("j", "out", on_one_host=False)


@pytest.mark.parametrize("mode", long_but_for(MODES, "upsert"))
def test_delta_lake(s3: S3Folder, mode: str) -> None:
    sink = made(sinks.delta(s3.url, mode=mode, storage_options=s3.storage_options, **MODES[mode]))
    for epoch, batch in enumerate((rows(1, 2), rows(2, 3)), 1):
        commit(sink, stage(sink, batch, epoch=epoch))
    options = options_of(data_folder(s3.url, sink.storage_options))
    read_by(
        lambda: duckdb_reader.delta_rows(s3.url, s3.server.endpoint_url),
        lambda: polars_reader.delta_rows(s3.url, options),
        mode=mode,
    )


@pytest.mark.parametrize("mode", long_but_for(MODES, "append"))
def test_iceberg(s3: S3Folder, tmp_path: Path, mode: str) -> None:
    catalog: Any = {**options_at(tmp_path), "warehouse": s3.url}
    place: dict[str, Any] = {"catalog_options": catalog, "storage_options": s3.storage_options}
    sink = made(sinks.iceberg("lake", NAME, mode=mode, **place, **MODES[mode]))
    for epoch, batch in enumerate((rows(1, 2), rows(2, 3)), 1):
        iceberg_table.commit(sink, stage(sink, batch, epoch=epoch), by())
    with closing(sink._catalog()) as opened:
        found = opened.load_table(NAME)
        (metadata := tmp_path / "rows.metadata.json").write_text(found.metadata.model_dump_json())
    properties = {"s3.endpoint": s3.server.endpoint_url, "s3.region": "us-east-1"}
    read_by(
        lambda: duckdb_reader.iceberg_rows(metadata, s3.server.endpoint_url),
        lambda: polars_reader.iceberg_rows(metadata, properties),
        mode=mode,
    )


def read_by(*readers: Read, mode: str) -> None:
    wanted = Counter((row["id"], row["text"], row["day"]) for row in rows(*IDS[mode]).to_pylist())
    for read in readers:
        assert Counter((row["id"], row["text"], row["day"]) for row in read()) == wanted

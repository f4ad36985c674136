"""Dagster and the terminal show, for lake tables, the versions read and written, and the columns
and their origins."""

# No `from __future__ import annotations`: Dagster reads the context's annotation at run time.
import json
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import deltalake
import pyarrow as pa
from typer.testing import CliRunner

from dagster_jet import (
    JetResource,
    Pipeline,
    build_jet_asset_specs,
    jet_assets,
    sinks,
    sources,
    tables,
)
from dagster_jet.cli import app
from tests.servers import duckdb_reader
from tests.unit.connectors.iceberg_rows import NAME, metadata_of, options_at
from tests.unit.connectors.iceberg_table import Table as IcebergTable

from .test_materialize import numbers
from .tiny import jet_resource, put_file


def enriched(folder: Path) -> Pipeline:
    p, place = Pipeline("enriched"), options_at(folder)
    schema = "k string, at timestamp, v double"
    events = p.read_from(sources.files(f"{folder}/in", format="json", schema=schema), name="events")
    names = tables.delta(f"{folder}/names", asset="dim/names")
    ranks = tables.iceberg("lake", NAME, catalog_options=place, asset="dim/ranks")
    found = events.enrich(names, on="k", name="named").enrich(ranks, on="k", name="ranked")
    rows = found.select("k", "name", "rank", "v * 2 AS twice")
    rows.write_to(sinks.delta(f"{folder}/out"), name="delta_out")
    table = sinks.iceberg("lake", "space.out", catalog_options=place)
    rows.write_to(table, name="iceberg_out")
    return p


def materialized(folder: Path) -> dg.ExecuteInProcessResult:
    @jet_assets(pipeline=enriched(folder))
    def stream(context: dg.AssetExecutionContext, jet: JetResource):
        yield from jet.run(context=context)

    config = {"ops": {"enriched": {"config": {"until": "drained"}}}}
    return dg.materialize([stream], resources={"jet": jet_resource(folder)}, run_config=config)


def test_kinds_say_the_format(tmp_path: Path) -> None:
    kinds = {spec.key.path[-1]: spec.kinds for spec in build_jet_asset_specs(enriched(tmp_path))}
    assert kinds["delta_out"] == {"spark", "jet", "delta"}
    assert kinds["iceberg_out"] == {"spark", "jet", "iceberg"}


def shown(folder: Path, *words: str) -> str:
    environment = {"DAGSTER_JET_STORE": f"file://{folder}/store", "COLUMNS": "300"}
    said = CliRunner().invoke(app, ["snapshots", "enriched", "show", *words], env=environment)
    assert said.exit_code == 0, said.stderr
    return said.stdout


def test_versions_and_columns_are_shown(tmp_path: Path) -> None:
    keys = [f"k{n}" for n in range(3)]
    for text in ("old", "new"):
        rows = pa.table({"k": keys, "name": [text] * 3})
        deltalake.write_deltalake(tmp_path / "names", rows, mode="overwrite")
    ranks = pa.table({"k": keys, "rank": pa.array([1, 2, 3], pa.int64())})
    with IcebergTable(tmp_path, ranks.schema).opened() as table:
        table.append(ranks)
    snapshot = metadata_of(tmp_path)["current-snapshot-id"]
    put_file(tmp_path, 0)
    result = materialized(tmp_path)

    last = {name: numbers(result, name, "enriched")[-1] for name in ("delta_out", "iceberg_out")}
    for facts in last.values():
        versions = facts["details"]["tables"]
        assert versions["named"]["version"] == 1 and versions["ranked"]["snapshot"] == snapshot
        assert versions["named"]["path"] == f"{tmp_path}/names"
        assert versions["ranked"]["path"] == f"iceberg://lake/{NAME}"
        _has_columns(facts)
    written = deltalake.DeltaTable(tmp_path / "out")
    assert last["delta_out"]["details"]["output"]["table_version"] == written.version()
    output = last["iceberg_out"]["details"]["output"]
    metadata = metadata_of(tmp_path, "space.out")
    assert output["snapshot_id"] == str(metadata["current-snapshot-id"])
    assert output["metadata_location"].startswith(f"{metadata['location']}/metadata/")

    expected = Counter((f"k{i % 3}", "new", i % 3 + 1, 2.0 * i) for i in range(60))
    for facts in last.values():
        rows = duckdb_reader.rows_of(facts["time_travel"])
        assert Counter((r["k"], r["name"], r["rank"], r["twice"]) for r in rows) == expected
        assert Path(facts["table_history"].removeprefix("file://")).exists()
        assert not {"time_travel", "table_history"} & facts["details"]["output"].keys()

    id = str(last["delta_out"]["snapshot"])
    noted = json.loads(shown(tmp_path, id, "--json"))["tables"]
    assert noted["named"]["version"]["version"] == 1
    assert noted["ranked"]["version"]["snapshot"] == snapshot
    assert noted["named"]["table"]["path"] == f"{tmp_path}/names"
    said = shown(tmp_path, id)
    (of_delta,) = [line for line in said.splitlines() if "named" in line]
    (of_iceberg,) = [line for line in said.splitlines() if "ranked" in line]
    assert '"kind": "delta"' in of_delta and '"version": 1' in of_delta
    assert f"{snapshot}" in of_iceberg, "long paths wrap; --json has them"


def _has_columns(facts: Any) -> None:
    columns = {c.name: c.type for c in facts["dagster/column_schema"].columns}
    assert columns == {"k": "string", "name": "string", "rank": "bigint", "twice": "double"}
    deps = facts["dagster/column_lineage"].deps_by_column
    source = dg.AssetKey(["enriched", "events"])
    assert deps == {
        "k": [dg.TableColumnDep(source, "k")],
        "name": [dg.TableColumnDep(dg.AssetKey(["dim", "names"]), "name")],
        "rank": [dg.TableColumnDep(dg.AssetKey(["dim", "ranks"]), "rank")],
        "twice": [dg.TableColumnDep(source, "v")],
    }

"""The REST catalog of the tests goes on with its tables after a SIGKILL."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from tests.long import long
from tests.servers import iceberg_catalog, launch, stop


@long  # only `make soak` kills it
def test_a_catalog_that_is_killed_goes_on_with_its_tables(tmp_path: Path) -> None:
    port, snapshots = None, []
    for number in range(3):
        told = iceberg_catalog.prepared(tmp_path, port=port, state=tmp_path / "state.json")
        server = launch("iceberg", tmp_path, told)
        port = int(server.facts["port"])
        with closing(load_catalog("lake", **iceberg_catalog.RestCatalog(port).options)) as catalog:
            if number == 0:
                catalog.create_namespace("space")
                rows = pa.table({"id": [0]})
                catalog.create_table("space.other", rows.schema)
                catalog.create_table("space.rows", rows.schema)
            table = catalog.load_table("space.rows")
            assert [one.snapshot_id for one in table.snapshots()] == snapshots
            table.append(pa.table({"id": [number]}))
            snapshots = [one.snapshot_id for one in table.snapshots()]
            found = table.scan().to_arrow().column("id").to_pylist()
            assert sorted(found) == list(range(number + 1))
            assert not catalog.load_table("space.other").snapshots()
        stop(server, signal.SIGKILL)

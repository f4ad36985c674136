"""Reads the lake tables of a job at one cut."""

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog


def read_cut(epochs: str, job: str, **catalog_options: Any) -> dict[str, pa.Table]:
    """Returns the rows of each sink that has committed any, all up to the same epoch."""
    rows = {}
    for at in DeltaTable(epochs).to_pyarrow_table(filters=[("job", "=", job)]).to_pylist():
        if at["version"] is not None:
            table = DeltaTable(at["table"], version=at["version"])
            rows[at["sink"]] = table.to_pyarrow_table()
        elif at["snapshot_id"] is not None:
            catalog = load_catalog(at["catalog"], **catalog_options)
            table = catalog.load_table(at["table"])
            rows[at["sink"]] = table.scan(snapshot_id=at["snapshot_id"]).to_arrow()
    return rows

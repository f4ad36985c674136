"""The judge of `make demo LAKE=1`, on real tables, with a small dataset."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from pyiceberg.catalog import load_catalog

from demo.oracle import Verdict, check_lake_outputs
from pipelines.airport_delays.into_lake import BADLY_DELAYED, CATALOG, HOURLY, catalog_options
from tests.e2e import test_demo_oracle as files

_HOURLY = pa.schema(
    {
        "origin": pa.string(),
        "window_start": pa.timestamp("us", "UTC"),
        "window_end": pa.timestamp("us", "UTC"),
        "n": pa.int64(),
        "mean": pa.float64(),
        "worst": pa.float64(),
    }
)
_BADLY_DELAYED = pa.schema(
    {
        "at": pa.timestamp("us", "UTC"),
        **dict.fromkeys(("airline", "carrier", "origin", "dest"), pa.string()),
        "flight": pa.int32(),
        **dict.fromkeys(("delay", "temp", "wind_speed", "precip", "visib"), pa.float64()),
    }
)


class Outputs(files.Outputs):
    """Lake tables, and the file of bad rows, of a demo job's sinks."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lake = folder / "lake"
        self.lake.mkdir()
        deltalake.DeltaTable.create(self.lake / HOURLY, _HOURLY, partition_by=["origin"])
        with closing(load_catalog(CATALOG, **catalog_options(str(self.lake)))) as catalog:
            catalog.create_namespace("flights")
            catalog.create_table(BADLY_DELAYED, _BADLY_DELAYED)

    def write_right(self) -> None:
        self.json("bad_rows", [self.bad])
        self.add_hourly(*files.HOURLY)
        self.add_badly_delayed(files.BADLY)

    def add_hourly(self, *rows: dict[str, Any]) -> None:
        found = pa.Table.from_pylist(list(rows), _HOURLY)
        deltalake.write_deltalake(self.lake / HOURLY, found, mode="append")

    def add_badly_delayed(self, row: dict[str, Any]) -> None:
        at = datetime.fromisoformat(row["at"].removesuffix("Z")).replace(tzinfo=timezone.utc)
        rows = pa.Table.from_pylist([{**row, "at": at}], _BADLY_DELAYED)
        with closing(load_catalog(CATALOG, **catalog_options(str(self.lake)))) as catalog:
            catalog.load_table(BADLY_DELAYED).append(rows)

    def check(self) -> Verdict:
        csv, inbox, out = (self.folder / name for name in ("csv", "inbox", "out"))
        return check_lake_outputs(csv, inbox, self.lake, out)


def test_what_is_wrong_in_a_table_is_found(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path)
    assert [(o.name, o.missing) for o in outputs.check().outputs] == [
        ("hourly", 2), ("badly_delayed", 1), ("bad_rows", 1),
    ]  # fmt: skip
    outputs.write_right()
    assert outputs.check().is_exact, outputs.check()
    deltalake.DeltaTable(outputs.lake / HOURLY).optimize.compact()
    assert outputs.check().is_exact, "the files that were compacted count no more"

    outputs.add_badly_delayed(files.BADLY)
    assert outputs.verdict("badly_delayed").duplicates == 1
    outputs.add_hourly({**files.HOURLY[0], "worst": 89.0})
    found = outputs.verdict("hourly")
    assert (found.missing, found.wrong, found.duplicates) == (0, 1, 0)

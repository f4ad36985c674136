"""The rows that are read, and those that were written, by readers that nobody here wrote."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

from benchmarks.kafka_race.answer import Verdict, of_rows
from benchmarks.kafka_race.messages import Messages
from benchmarks.lake_race.flink import metadata_of
from benchmarks.lake_race.order import Order
from benchmarks.lake_race.ours import TABLE, catalog_at
from benchmarks.oracle import committed_files
from benchmarks.race.data import put_file

ROWS_PER_FILE = 20_000
_COLUMNS = ["n", "k", "ts", "v"]


def write_files(messages: Messages, folder: Path) -> Path:
    """Writes JSON lines; names and modification times have the rows' order."""
    folder.mkdir()
    texts, number = messages.texts(), 0
    while lines := list(islice(texts, ROWS_PER_FILE)):
        text = "\n".join(lines) + "\n"
        put_file(folder / f"{number:06d}.json", text, 1_700_000_000 + number)
        number += 1
    return folder


def verdict(order: Order, messages: Messages) -> Verdict:
    """Compares what is committed, by the output's own rules, with what was read, as multisets."""
    if order.engine == "lake" and order.case == "files":
        written = deltalake.DeltaTable(order.out).to_pyarrow_table()
    elif order.engine == "lake":
        with closing(load_catalog("lake", **catalog_at(order.folder))) as catalog:
            written = catalog.load_table(TABLE).scan().to_arrow()
    elif order.engine == "flink":
        written = StaticTable.from_metadata(str(metadata_of(order.out))).scan().to_arrow()
    else:
        engine = "peer" if order.engine == "peer" else "ours"
        files = committed_files(engine, Path(order.out))
        written = pa.concat_tables(pq.ParquetFile(path).read() for path in files)
    return of_rows(messages, written.select(_COLUMNS))

"""The stream as files: JSON lines or Parquet, the same bytes for the same model."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from dagster_jet.connectors.generated.nexmark.event import Event, arrivals
from dagster_jet.connectors.generated.nexmark.model import Model
from dagster_jet.connectors.generated.nexmark.schema import arrow_schema

Format = Literal["json", "parquet"]


def write_files(
    model: Model,
    folder: Path,
    per_file: int,
    format: Format = "json",
    files: range | None = None,
) -> None:
    """The whole stream as files of `per_file` events, in order of name and modification time.

    Args:
        files: numbers of the files to write; all without it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(-(-model.events // per_file)) if files is None else files:
        first = file * per_file
        rows = list(arrivals(model, first, min(first + per_file, model.events)))
        path = folder / f"{file:06d}.{format}"
        hidden = folder / f".{path.name}"
        if format == "json":
            hidden.write_text("".join(f"{json.dumps(with_iso(row))}\n" for row in rows), "utf-8")
        else:
            _write_parquet(hidden, rows)
        seconds = model.time_ms(0) // 1000 + file
        os.utime(hidden, (seconds, seconds))
        hidden.rename(path)


def with_iso(row: Event) -> Event:
    """Rows with times as text, as JSON has no others."""
    row = {**row, "date_time": _iso(row["date_time"])}
    if row["auction"] is not None:
        row["auction"] = {**row["auction"], "expires": _iso(row["auction"]["expires"])}
    return row


def _iso(time_ms: int) -> str:
    seconds, ms = divmod(time_ms, 1000)
    time = datetime.fromtimestamp(seconds, timezone.utc)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"


def _write_parquet(path: Path, rows: list[Event]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows, arrow_schema()), path)

"""Expected output, computed from the input files; shares no line with the engine.

Rows are tuples, outputs are multisets (`Counter`): a row too many or too few both show.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

Row = tuple[Any, ...]
Rows = Counter[Row]


def input_rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of all JSON-lines files of a folder."""
    rows = []
    for path in sorted(folder.iterdir()):
        rows += [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return rows


def windowed(
    rows: Iterable[dict[str, Any]], size_ms: int, *, time: str = "ts", n: str = "", total: str = "v"
) -> Rows:
    """Tumbling windows by key `k`: (k, start, end, rows or sum of `n`, sum of `total`)."""
    counted: Counter[tuple[str, int]] = Counter()
    summed: Counter[tuple[str, int]] = Counter()
    for row in rows:
        start = row[time] - row[time] % size_ms
        counted[row["k"], start] += row[n] if n else 1
        summed[row["k"], start] += row[total]
    return Counter((k, s, s + size_ms, c, summed[k, s]) for (k, s), c in counted.items())


def committed(folder: Path, columns: Sequence[str]) -> Rows:
    """The rows of a files sink, read as its two kinds of readers do; both must see the same."""
    listed = {
        path.name
        for path in (folder.iterdir() if folder.exists() else [])
        if path.is_file() and not path.name.startswith((".", "_"))
    }
    named = Counter(part["name"] for part in parts_of(folder))
    assert not [name for name, times in named.items() if times > 1], f"in two epochs: {named}"
    assert set(named) == listed, f"{folder}: by manifest {sorted(named)}, by listing {listed}"
    return by_manifest(folder, columns)


def by_manifest(folder: Path, columns: Sequence[str]) -> Rows:
    """Rows as a reader sees them that goes by `_epochs/*.json`."""
    rows: Rows = Counter()
    for part in parts_of(folder):
        found = rows_of(folder / part["name"], columns)
        assert len(found) == part["rows"], f"{part['name']}: {len(found)} rows, not {part}"
        rows.update(found)
    return rows


def parts_of(folder: Path) -> list[dict[str, Any]]:
    manifests = sorted((folder / "_epochs").glob("*.json"))
    return [part for m in manifests for part in json.loads(m.read_text("utf-8"))["files"]]


def visible_files(folder: Path) -> dict[str, bytes]:
    """Every byte that a reader of an output folder can see; hidden names are in the making."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(p.startswith(".") for p in path.relative_to(folder).parts)
    }


def difference(found: Rows, expected: Rows) -> str:
    """Empty when equal, else what is missing and what is too much."""
    missing, extra = expected - found, found - expected
    if not missing and not extra:
        return ""
    return (
        f"{missing.total()} missing, {extra.total()} too many of {expected.total()}: "
        f"missing {sorted(missing, key=repr)[:3]}, too many {sorted(extra, key=repr)[:3]}"
    )


def rows_of(path: Path, columns: Sequence[str]) -> list[Row]:
    """The rows of one JSON, CSV or Parquet file."""
    if path.suffix == ".parquet":
        rows = pq.read_table(path).to_pylist()
    elif path.suffix == ".csv":
        with open(path, encoding="utf-8", newline="") as file:
            rows = [{k: _number(v) for k, v in row.items()} for row in csv.DictReader(file)]
    else:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [tuple(_plain(name, row[name]) for name in columns) for row in rows]


def _number(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _plain(name: str, value: Any) -> Any:
    """Converts times to milliseconds since 1970, whatever the format wrote."""
    if name in ("window_start", "window_end"):
        if isinstance(value, str):
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        if value.tzinfo is None:
            value = value.replace(tzinfo=timezone.utc)
        return round(value.timestamp() * 1000)
    return tuple(value) if isinstance(value, list) else value

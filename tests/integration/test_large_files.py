"""One file that is too large for an epoch: cut by byte ranges, killed on the way, read once.

The driver dies by SIGKILL between the decision and the commit; the restart cuts elsewhere. What was
committed is compared with the rows that were written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dagster_jet import JobConfig, JobStatus
from dagster_jet.events import EpochCompleted
from tests.long import long

from . import large_file_child, oracle
from .world import World

ROWS = 240_000
OUTPUTS = {"rows": ("id", "name", "price", "at"), "counts": ("window_start", "n")}


class LargeFileWorld(World):
    driver = staticmethod(large_file_child.main)


@pytest.fixture
def world(world: World) -> LargeFileWorld:
    return LargeFileWorld(world.folder, world.fail_points, world.spark)


def write_json(path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows():
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_csv(path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("id,ts,name,price,at\n")
        for row in rows():
            file.write(f'{row["id"]},{row["ts"]},"{row["name"]}",{row["price"]},{row["at"]}\n')


def write_parquet(path: Path) -> None:
    lines = path.with_suffix(".lines")
    write_json(lines)
    columns = "id: 'BIGINT', ts: 'BIGINT', name: 'VARCHAR', price: 'DECIMAL(9, 2)'"
    columns += """, "at": 'TIMESTAMPTZ', tags: 'VARCHAR[]'"""
    duckdb.sql(
        f"COPY (FROM read_json('{lines}', columns={{{columns}}})) TO '{path}' "
        "(FORMAT parquet, ROW_GROUP_SIZE 4096, COMPRESSION uncompressed)"
    )
    lines.unlink()


def rows() -> Iterator[dict[str, Any]]:
    """Lines of many lengths, some of them long, in letters of more than one byte."""
    for n in range(ROWS):
        second = n // 2000
        yield {
            "id": n,
            "ts": n // 2,
            "name": ["größe", "", "日本語", "a, b"][n % 4] * (n % 7 if n % 5000 else 5000),
            "price": f"{n % 1000}.{n % 100:02}",
            "at": f"2024-01-01T00:{second // 60:02}:{second % 60:02}Z",
            "tags": ["x"] * (n % 3),
        }


def committed(world: World, output: str) -> oracle.Rows:
    return oracle.committed(world.folder / "out" / output, OUTPUTS[output])


@pytest.mark.parametrize(
    ("format", "write"),
    [
        pytest.param("json", write_json, marks=long),
        ("csv", write_csv),
        pytest.param("parquet", write_parquet, marks=long),
    ],
)
def test_a_large_file_is_read_once_by_executions_that_cut_elsewhere(
    world: LargeFileWorld, format: str, write: Callable[[Path], None]
) -> None:
    (world.folder / "in").mkdir()
    write(world.folder / "in" / f"large.{format}")
    world.run_child("record.snapshot.after:2=kill", format=format)
    config = {**large_file_child.CONFIG, "max_items_per_epoch": 41_000}
    with world.jet() as jet:
        job = large_file_child.job(format, world.folder)
        result = jet.run(job, JobConfig(**config), until="completed", on_event=world.see)
        assert result.status is JobStatus.COMPLETED
        assert jet.job(f"large_{format}").consumed_files("rows") == (
            f"{world.folder}/in/large.{format}",
        )
    epochs = [event.rows for event in world.events_of(EpochCompleted) if event.rows]
    assert len(epochs) > 1 and max(epochs) < ROWS / 2, epochs

    found: Counter[Any] = Counter()
    for (id, name, price, at), times in committed(world, "rows").items():
        found[id, name or "", str(price), f"{at:%Y-%m-%dT%H:%M:%SZ}"] += times
    assert found == Counter((r["id"], r["name"], r["price"], r["at"]) for r in rows())
    counts = committed(world, "counts")
    assert counts.total() == ROWS / 2 / large_file_child.WINDOW_MS
    assert all(n == 2 * large_file_child.WINDOW_MS for _, n in counts)

"""Rows that only pass through: our writer in a Python task against Spark's own, one session.

Ours is what an epoch does: the JVM renders lines, a task writes them, syncs the file and takes its
checksum. Spark's own writer has its file committer; then somebody has to sync
and to sum the files: `_finish` does in this process, in parallel, what a commit would need.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.data import SCHEMA, Dataset
from benchmarks.jet_query import open_jet
from benchmarks.ratios import ratio
from benchmarks.thread_cpu import cpu_ms
from dagster_jet.connectors.files.checksum import file_checksum
from dagster_jet.connectors.files.files_sink import FilesSink
from dagster_jet.spark.tasks.barrier import ACK_SCHEMA, Barrier
from dagster_jet.spark.tasks.sink_task import SinkTask
from dagster_jet.spark.tasks.stage_input import OwnSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PER_FILE = 20_000


@dataclass(frozen=True)
class Measured:
    """One writer, once."""

    rows_per_s: float
    cpu_s_per_m: float


def run(folder: Path, *, files: int, rounds: int, console: Console) -> dict[str, Any]:
    """Runs, for each format, rounds of both writers, the first in an order drawn at random."""
    source = Dataset(files, PER_FILE, rows_per_ms=10).write(folder / "data")
    draw, result = random.Random(3), {}
    table = Table("format", "rows/s, ours : Spark's", "CPU, ours : Spark's", title="pass-through")
    with open_jet(folder) as jet:
        session = jet.session()
        for format_ in ("json", "parquet"):
            writers = {"ours": _ours, "Spark's": _sparks}
            measured: list[dict[str, Measured]] = []
            for number in range(rounds + 1):  # the first warms up
                order = list(writers)
                draw.shuffle(order)
                once = {n: _measure(writers[n], session, source, folder, format_) for n in order}
                if number:
                    measured.append(once)
                    console.print(f"{format_}, round {number}: {once}")
            figures = {
                name: str(
                    ratio(*([[getattr(m[side], name)] for m in measured] for side in writers))
                )
                for name in ("rows_per_s", "cpu_s_per_m")
            }
            table.add_row(format_, figures["rows_per_s"], figures["cpu_s_per_m"])
            result[format_] = {**figures, "rounds": [str(once) for once in measured]}
    console.print(table)
    return result


def _measure(
    writer: Callable[[DataFrame, FilesSink, Path], None],
    session: SparkSession,
    source: Path,
    folder: Path,
    format_: str,
) -> Measured:
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    rows = session.read.schema(SCHEMA).json(str(source))
    before, began = sum(cpu_ms().values()), time.monotonic()
    writer(rows, FilesSink(str(out), format_), out)
    seconds, cpu = time.monotonic() - began, (sum(cpu_ms().values()) - before) / 1000
    count = session.read.format("text" if format_ == "json" else format_)
    written = count.option("recursiveFileLookup", "true").load(str(out)).count()
    wanted = rows.count()
    if written != wanted:
        raise AssertionError(f"{written} rows of {wanted} were written")
    return Measured(wanted / seconds, 1e6 * cpu / wanted)


def _ours(rows: DataFrame, sink: FilesSink, out: Path) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    barrier = Barrier("race", 0, 1, 1, None, str(out.parent / "tasks"), 271, None)
    task = SinkTask(barrier, (OwnSink("out", sink),))
    (out / ".staging" / "race" / "out").mkdir(parents=True)  # as a start of the job does
    # Spark's listing passes over hidden folders: it is to count what was staged.
    acks = sink.render(rows).mapInArrow(task, from_arrow_schema(ACK_SCHEMA)).collect()
    assert acks
    (out / ".staging").rename(out / "staged")


def _sparks(rows: DataFrame, sink: FilesSink, out: Path) -> None:
    rows.write.format(sink.format).save(str(out))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(_finish, _parts(out)))


def _parts(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("part-*") if path.is_file())


def _finish(path: Path) -> int:
    """Durable, and known by its content."""
    summed = file_checksum(path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return summed

"""C1: two sources, two sinks, killed again and again. Rows are counted, no time is measured.

Each kill waits for a commit of the first sink, so that it falls between the commits of both sinks
wherever they are two.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb

from benchmarks.race import committed
from benchmarks.race.backlog import TimeOutError
from benchmarks.race.committed import Commits
from benchmarks.race.contestants import Contestant
from benchmarks.race.data import LAG_MS, open_views
from benchmarks.race.engine_process import EngineProcess
from benchmarks.race.environments import Environment
from benchmarks.race.order import Order
from benchmarks.race.pace import Pace, Replayer

RATE = 4_000
QUIET_S = 5.0
SINKS = ("rows", "counts")


class AppendedFiles(committed.VisibleFiles):
    """Spark's batch writer in append mode: files have their names once their job is committed."""

    def _log(self) -> set[str]:
        return {name for name in super()._log() if name.startswith("part-")}


JET = Contestant("jet", "dagster_jet", "jet_two_sinks", "exactly once")
SPARK_BY_BATCH = Contestant(
    "spark_by_batch",
    "Structured Streaming, foreachBatch, a folder per batch",
    "spark_two_sinks",
    "idempotent writes",
    sweep=({"write": "by batch"},),
    commits=committed.TriggerFolders,
)
SPARK_APPEND = Contestant(
    "spark_append",
    "Structured Streaming, foreachBatch, append",
    "spark_two_sinks",
    "as Spark's guide writes it",
    sweep=({"write": "append"},),
    commits=AppendedFiles,
)
CONTESTANTS = (JET, SPARK_BY_BATCH, SPARK_APPEND)


@dataclass(frozen=True)
class Difference:
    """Difference between two sinks and the rows they must have, in rows."""

    expected: int
    lost: int
    """Missing in a sink, both sinks added up."""
    doubled: int
    """Rows that are there once too often, both sinks added up."""
    diverged: int
    """Bids that are in one sink more often than in the other."""
    miscounted: int
    """Places of an auction that no bid has, or two: what the state has lost or doubled."""


@dataclass(frozen=True)
class TwoSinks:
    """One engine's result."""

    engine: str
    label: str
    kills: int
    final: Difference
    apart_after_kills: list[int]
    """Bids that were in one sink only, after each kill, before the restart."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run_two_sinks(
    contestant: Contestant,
    environment: Environment,
    cache: Path,
    folder: Path,
    kills: int,
    seconds_between: float,
    seed: int = 11,
) -> TwoSinks:
    """Raises: EngineFailedError, TimeOutError."""
    pace = Pace(RATE, seconds_between * (kills + 1))
    source = pace.write(cache)
    shutil.rmtree(folder, ignore_errors=True)
    output = folder / "out"
    replayers = []
    for place, name in enumerate("ab"):
        (folder / "all" / name).mkdir(parents=True)
        for path in sorted(source.glob("*.json"))[place::2]:
            os.link(path, folder / "all" / name / path.name)
        (folder / "in" / name).mkdir(parents=True)
    for name in "ab":
        replayers.append(Replayer(folder / "all" / name, folder / "in" / name, period_s=0.2))
    settings = dict(contestant.sweep[0])
    order = Order("c1", str(folder / "in"), str(output), str(folder / "state"), LAG_MS, settings)
    watches = {sink: contestant.commits(output / sink) for sink in SINKS}
    moments = random.Random(seed)
    apart: list[int] = []
    process: EngineProcess | None = None
    try:
        for life in range(kills + 1):
            process = EngineProcess(contestant, environment, order, folder / f"log-{life}.txt")
            if life == kills:
                break
            end = replayers[0].started_at + seconds_between * (life + 1) + 2 * moments.random()
            _wait(process, lambda end=end: time.time() > end, end + 5)
            _wait_for_commit(process, contestant.commits(output / SINKS[0]))
            process.kill()
            apart.append(compare(watches, source, pace.events).diverged)
        wanted = _bids(source, pace.events)
        _wait_quiet(process, watches, replayers[0].ends_at, wanted)
    finally:
        if process is not None:
            process.kill()
        for replayer in replayers:
            replayer.stop()
    final = compare(watches, source, pace.events)
    shutil.rmtree(folder, ignore_errors=True)
    return TwoSinks(contestant.name, contestant.label, kills, final, apart)


def _wait(
    process: EngineProcess, done: Callable[[], bool], deadline: float, pause_s: float = 0.05
) -> None:
    while not done():
        process.check()
        if time.time() > deadline:
            raise TimeOutError("two sinks: the input was not read in time")
        time.sleep(pause_s)


def _wait_for_commit(process: EngineProcess, sink: Commits) -> None:
    """Waits until the sink commits its next rows."""
    sink.new()
    _wait(process, lambda: bool(sink.new()), time.time() + 180, pause_s=0.001)


def _wait_quiet(
    process: EngineProcess, watches: dict[str, Commits], input_ends_at: float, wanted: int
) -> None:
    """Waits until the input has ended, both sinks have as many rows as they must, and no more
    come."""
    known = {sink: (0, time.time()) for sink in SINKS}

    def done() -> bool:
        for sink, watch in watches.items():
            rows = sum(_lines(path) for path in watch.files())
            if rows != known[sink][0]:
                known[sink] = (rows, time.time())
        still = min(time.time() - since for _, since in known.values())
        enough = all(rows >= wanted for rows, _ in known.values())
        time.sleep(0.5)
        return time.time() > input_ends_at and enough and still > QUIET_S

    _wait(process, done, input_ends_at + 120)


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _bids(source: Path, events: int) -> int:
    with duckdb.connect() as db:
        open_views(db, source, events)
        return int(db.execute("SELECT count(*) FROM bid").fetchall()[0][0])


def compare(watches: dict[str, Commits], source: Path, events: int) -> Difference:
    """Row by row: the bids of the input, the rows of one sink, the places of the other."""
    with duckdb.connect() as db:
        open_views(db, source, events)
        files = {sink: watch.files() for sink, watch in watches.items()}
        return difference(db, files["rows"], files["counts"], events)


def difference(
    db: duckdb.DuckDBPyConnection, rows: Sequence[Path], counts: Sequence[Path], events: int
) -> Difference:
    """Compares like `compare`, over views that are open."""
    for sink, files in (("rows", rows), ("counts", counts)):
        filled = [str(path) for path in files if path.stat().st_size]
        columns = "{auction: 'BIGINT', number: 'BIGINT', n: 'BIGINT'}"
        reader = f"read_json({filled}, columns = {columns}, format = 'newline_delimited')"
        nothing = "SELECT 0::BIGINT AS auction, 0::BIGINT AS number, 0::BIGINT AS n WHERE false"
        rows_of = f"SELECT * FROM {reader} WHERE number < {events}" if filled else nothing
        db.execute(f"CREATE TABLE {sink} AS {rows_of}")

    def count(sql: str) -> int:
        return int(db.execute(f"SELECT count(*) FROM ({sql})").fetchall()[0][0])

    def missing(these: str, those: str) -> int:
        return count(f"SELECT number FROM {these} EXCEPT ALL SELECT number FROM {those}")

    return Difference(
        expected=count("FROM bid"),
        lost=sum(missing("bid", sink) for sink in SINKS),
        doubled=sum(missing(sink, "bid") for sink in SINKS),
        diverged=missing("rows", "counts") + missing("counts", "rows"),
        miscounted=count(
            "SELECT auction, n FROM counts EXCEPT ALL SELECT auction, "
            "row_number() OVER (PARTITION BY auction) AS n FROM bid"
        ),
    )

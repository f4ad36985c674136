"""One engine, one query, all input there from the start: checked, then measured."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb

from benchmarks.interleaved import cpu_loop_ms
from benchmarks.race.contestants import Contestant
from benchmarks.race.data import LAG_MS, SENTINELS, Stream
from benchmarks.race.engine_process import EngineProcess, Meter
from benchmarks.race.environments import Environment
from benchmarks.race.measures import rates
from benchmarks.race.observer import Observer, Seen, write_pieces
from benchmarks.race.oracle import Verdict, WrongAnswerError, check, read_committed
from benchmarks.race.order import Order
from benchmarks.race.queries import QUERIES, Query

QUIET_S = 1.0
QUIET_OPEN_S = 4.0
"""Seconds without news after which the engine is done; longer for queries whose rows nobody can
count."""


@dataclass(frozen=True)
class Run:
    """The figures of one run; rates in events per second."""

    engine: str
    query: str
    settings: dict[str, Any]
    events: int
    first_row_s: float
    total: float
    steady: float
    marginal: float
    cpu_s_per_m: float
    """CPU-seconds per million events, of the whole tree, from its start to the last row."""
    cpu_s_per_m_steady: float
    """Likewise, from the first committed row on."""
    peak_mib: float
    written_mb: float
    rows: int
    commits: int
    loop_ms: float
    load: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class TimeOutError(Exception):
    """The engine did not come to the end of the input in time."""


def run_backlog(
    contestant: Contestant,
    environment: Environment,
    query: str,
    stream: Stream,
    cache: Path,
    folder: Path,
    settings: dict[str, Any],
    timeout_s: float = 240,
    cluster: Mapping[str, Any] | None = None,
) -> Run:
    """Runs until the answer is whole, kills, checks, measures; removes all it wrote.

    Args:
        cluster: `spark` and `members` of the order; None: all runs in the engine's own process.

    Raises:
        WrongAnswerError: its times do not count.
        TimeOutError, EngineFailedError: there are none.
    """
    source, answer = stream.write(cache), stream.answer(cache, query)
    loop_ms, load = cpu_loop_ms(), os.getloadavg()[0]
    shutil.rmtree(folder, ignore_errors=True)
    output = folder / "out"
    state = str(folder / "state")
    order = Order(query, str(source), str(output), state, LAG_MS, settings, **(cluster or {}))
    folder.mkdir(parents=True)
    process = EngineProcess(contestant, environment, order, folder / "log.txt")
    observer = Observer(contestant.watch(query, output))
    try:
        wait_for_end(process, observer, QUERIES[query], answer, time.time() + timeout_s)
    finally:
        process.kill()
        observer.stop()
    files = contestant.watch(query, output).files()
    verdict = check(QUERIES[query], answer, files, source, stream.events)
    if not verdict.is_exact:
        raise WrongAnswerError(f"{contestant.label}, {query}: {verdict}")
    progress = progress_of(observer.seen, QUERIES[query], stream, folder / "pieces")
    run = _measure(
        contestant, query, stream, settings, process.started_at, process.meter, progress, verdict,
        loop_ms, load,
    )  # fmt: skip
    shutil.rmtree(folder, ignore_errors=True)
    return run


def wait_for_end(
    process: EngineProcess, observer: Observer, query: Query, answer: Path, deadline: float
) -> None:
    """Waits until all rows of the answer were seen, and no more come for a while."""
    rows = duckdb.execute(f"SELECT count(*) FROM '{answer}'").fetchall()[0][0]
    if query.sentinel_rows and not query.is_open:
        rows += SENTINELS
    quiet_s = QUIET_OPEN_S if query.is_open else QUIET_S

    def is_whole() -> bool:
        at_end = observer.has_sentinel or not query.sentinel_rows
        return at_end and observer.rows >= rows and time.time() - observer.last > quiet_s

    while not is_whole():
        process.check()
        observer.check()
        if time.time() > deadline:
            raise TimeOutError(f"{observer.rows} of {rows} rows of {query.name} were committed")
        time.sleep(0.02)


def progress_of(
    seen: list[Seen], query: Query, stream: Stream, folder: Path
) -> list[tuple[float, float]]:
    """(time, events passed) of each look, by the newest event time that its rows show."""
    start_ms = stream.model.time_ms(0)
    per_ms = stream.model.events_per_second / 1000
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        if not read_committed(db, query, write_pieces(seen, folder)):
            return []
        found = db.execute(
            f"SELECT regexp_extract(filename, '([0-9]+).json$', 1)::INT, max(progress) "
            f"FROM (SELECT filename, {query.progress} AS progress FROM committed) "
            "GROUP BY ALL ORDER BY 1"
        ).fetchall()
    return [(seen[place].at, (passed_ms - start_ms) * per_ms) for place, passed_ms in found]


def _measure(
    contestant: Contestant,
    query: str,
    stream: Stream,
    settings: dict[str, Any],
    started_at: float,
    meter: Meter,
    progress: list[tuple[float, float]],
    verdict: Verdict,
    loop_ms: float,
    load: float,
) -> Run:
    events = stream.events
    found = rates(started_at, progress, events)
    first, last = meter.at(progress[0][0]), meter.at(progress[-1][0])
    steady_events = max(1.0, events - min(progress[0][1], events))
    return Run(
        engine=contestant.name,
        query=query,
        settings=settings,
        events=events,
        first_row_s=found.first_row_s,
        total=found.total,
        steady=found.steady,
        marginal=found.marginal,
        cpu_s_per_m=1e6 * last.cpu_s / events,
        cpu_s_per_m_steady=1e6 * (last.cpu_s - first.cpu_s) / steady_events,
        peak_mib=meter.peak_mib,
        written_mb=last.written_mb,
        rows=verdict.committed,
        commits=len(progress),
        loop_ms=loop_ms,
        load=load,
    )

"""One engine at a steady pace, killed once: latency before, time to the first new row after."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import duckdb

from benchmarks.interleaved import cpu_loop_ms
from benchmarks.race.backlog import wait_for_end
from benchmarks.race.contestants import Contestant
from benchmarks.race.data import LAG_MS, open_views
from benchmarks.race.engine_process import EngineProcess
from benchmarks.race.environments import Environment
from benchmarks.race.measures import latencies, percentile
from benchmarks.race.observer import Observer, Seen, write_pieces
from benchmarks.race.oracle import compare, read_committed
from benchmarks.race.order import Order
from benchmarks.race.pace import Pace, Replayer
from benchmarks.race.queries import QUERIES, Query
from dagster_jet.connectors.generated.nexmark.schema import duckdb_types

# For each answer: the number of the file that lets it come, and the first look that found it. An
# engine that is at least once commits some answers twice; nobody waits for the second time.
_READY: dict[str, str] = {
    # A bid: the file it is in. Its text is random, so that it is found again by it.
    "q1": """
        SELECT r.file, min(c.filename) FROM committed c JOIN bids_read r
        ON c.extra = r.extra AND ms(c.date_time) = r.ms AND c.auction::BIGINT = r.auction
            AND c.bidder::BIGINT = r.bidder
        GROUP BY r.number, r.file
    """,
    # A window: the first file that shows that the watermark has passed its end.
    "q5": """
        SELECT (SELECT min(file) FROM files_read WHERE newest - $lag_ms >= c.window_ms),
            c.filename
        FROM (SELECT auction, ms(window_end) AS window_ms, min(filename) AS filename
            FROM committed GROUP BY ALL) c
    """,
}
QUERIES_AT_PACE = tuple(_READY)
_BEFORE_KILL_S = 3.0
"""Rows due so shortly before the kill wait for the restart, which has a figure of its own."""
_LAST_LOOK_S = 0.05


@dataclass(frozen=True)
class Schedule:
    """Seconds of the input's schedule; an engine is started when it begins."""

    warm_until_s: float = 60.0
    """Latencies count from here,"""
    kill_at_s: float = 120.0
    """to here. The engine is killed within the second after this."""
    ends_at_s: float = 150.0

    @classmethod
    def counting(cls, minutes: float) -> Schedule:
        """The same times before and after, `minutes` of latencies."""
        longer = cls()
        more = minutes * 60 - (longer.kill_at_s - longer.warm_until_s)
        return cls(longer.warm_until_s, longer.kill_at_s + more, longer.ends_at_s + more)


QUICK = Schedule(12.0, 20.0, 30.0)


@dataclass(frozen=True)
class Paced:
    """The figures of one run at a pace."""

    engine: str
    query: str
    settings: dict[str, Any]
    rate: int
    p50_s: float
    p95_s: float
    p99_s: float
    answers: int
    """Number of committed rows that the percentiles are of."""
    cold_start_s: float
    """Seconds from the start of the process to its first committed row."""
    recovery_s: float
    """Seconds from SIGKILL, which a restart follows at once, to the first new committed row."""
    expected: int
    lost: int
    doubled: int
    """Rows that are there once too often, or that there must not be."""
    cpu_share: float
    """Cores in use while latencies were taken."""
    loop_ms: float
    load: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run_paced(
    contestant: Contestant,
    environment: Environment,
    query: str,
    rate: int,
    schedule: Schedule,
    cache: Path,
    folder: Path,
    settings: dict[str, Any],
    seed: int = 7,
    standby: bool = False,
    cluster: Mapping[str, Any] | None = None,
) -> Paced:
    """Runs to the end of the schedule with one kill; wrong rows are counted, not raised.

    Args:
        standby: a second process waits before the first one is killed.
        cluster: `spark` and `members` of the order; None: all runs in the engine's own process.

    Raises: EngineFailedError, TimeOutError.
    """
    pace = Pace(rate, schedule.ends_at_s)
    source, answer = pace.write(cache), pace.stream.answer(cache, query)
    loop_ms, load = cpu_loop_ms(), os.getloadavg()[0]
    shutil.rmtree(folder, ignore_errors=True)
    output, inbox = folder / "out", folder / "in"
    inbox.mkdir(parents=True)
    state = str(folder / "state")
    order = Order(query, str(inbox), str(output), state, LAG_MS, settings, **(cluster or {}))
    observer = Observer(contestant.watch(query, output), period_s=0.01)
    replayer = Replayer(source, inbox)
    first = EngineProcess(contestant, environment, order, folder / "log-1.txt")
    second: EngineProcess | None = None
    try:
        if standby:
            time.sleep(schedule.warm_until_s / 2)
            waiting = replace(order, standby=True)
            second = EngineProcess(contestant, environment, waiting, folder / "log-2.txt")
        kill_at = replayer.started_at + schedule.kill_at_s + random.Random(seed).random()
        while time.time() < kill_at:
            first.check()
            observer.check()
            time.sleep(0.02)
        killed_at = first.kill()
        # What was committed in its last moments may not have been seen yet, and is not new.
        dead_at = time.time() + _LAST_LOOK_S
        if second is None:
            second = EngineProcess(contestant, environment, order, folder / "log-2.txt")
        deadline = replayer.ends_at + 120
        while time.time() < replayer.ends_at:
            second.check()
            time.sleep(0.05)
        wait_for_end(second, observer, QUERIES[query], answer, deadline)
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
        replayer.stop()
        observer.stop()
    warm, end = (replayer.started_at + s for s in (schedule.warm_until_s, schedule.kill_at_s))
    recovered_at = observer.first_after(dead_at)
    # Rows that a slow engine had not committed when it was killed count, with all their wait.
    found = emissions(QUERIES[query], observer.seen, source, folder / "pieces")
    waits = latencies(
        [(at, replayer.scheduled(file)) for at, file in found], warm, end - _BEFORE_KILL_S
    )
    with duckdb.connect() as db:
        open_views(db, source, pace.events)
        verdict = compare(db, QUERIES[query], answer, contestant.watch(query, output).files())
    before, after = first.meter.at(warm), first.meter.at(end)
    paced = Paced(
        engine=contestant.name,
        query=query,
        settings=settings,
        rate=rate,
        p50_s=percentile(waits, 0.50),
        p95_s=percentile(waits, 0.95),
        p99_s=percentile(waits, 0.99),
        answers=len(waits),
        cold_start_s=observer.seen[0].at - first.started_at,
        recovery_s=float("nan") if recovered_at is None else recovered_at - killed_at,
        expected=verdict.expected,
        lost=verdict.missing,
        doubled=verdict.extra,
        cpu_share=(after.cpu_s - before.cpu_s) / (end - warm),
        loop_ms=loop_ms,
        load=load,
    )
    shutil.rmtree(folder, ignore_errors=True)
    return paced


def emissions(
    query: Query, seen: Sequence[Seen], source: Path, folder: Path
) -> list[tuple[float, int]]:
    """(when a row was first seen, the file with the last event that it needs), of all rows."""
    types = ", ".join(f"{name}: '{type_}'" for name, type_ in duckdb_types().items())
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.execute(
            "CREATE TABLE events AS SELECT *, epoch_ms(date_time) AS ms, "
            "regexp_extract(filename, '([0-9]+).json$', 1)::INT AS file FROM "
            f"read_json('{source}/*.json', format = 'newline_delimited', columns = {{{types}}}, "
            "filename = true)"
        )
        db.execute(
            "CREATE TABLE bids_read AS SELECT number, file, ms, unnest(bid) FROM events "
            "WHERE event_type = 2"
        )
        db.execute(
            "CREATE TABLE files_read AS SELECT file, max(max(ms)) OVER (ORDER BY file) AS newest "
            "FROM events GROUP BY file"
        )
        if not read_committed(db, query, write_pieces(list(seen), folder)):
            return []
        ready = _READY[query.name]
        found = db.execute(ready, {"lag_ms": LAG_MS} if "$lag_ms" in ready else {}).fetchall()
    return [(seen[int(Path(name).stem)].at, file) for file, name in found if file is not None]

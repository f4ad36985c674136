"""Latency of a message at half load, until its result can be read."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import duckdb
import pyarrow as pa

from benchmarks.interleaved import cpu_loop_ms
from benchmarks.kafka_race import answer
from benchmarks.kafka_race.messages import CLOSING_KEY, LAG_MS, T0_MS, WINDOW_MS, Messages, Replay
from benchmarks.kafka_race.order import Order
from benchmarks.kafka_race.servers import Servers, committed_consumer
from benchmarks.metered_child import run_metered
from benchmarks.race.engine_process import Meter
from benchmarks.race.measures import latencies, percentile

_AFTER_S, _TIMEOUT_S = 10.0, 360


@dataclass(frozen=True)
class Schedule:
    """Seconds from the start of the engine's process, which is when the first message is due.

    Both engines take a minute and more until they have read what came while they started.
    """

    warm_until_s: float = 130.0
    ends_at_s: float = 190.0


QUICK = Schedule(12.0, 18.0)


@dataclass(frozen=True)
class Paced:
    """One engine at a pace. Rows that are wrong are counted, not raised: at least once, a row may
    come twice, and an engine that cannot keep the pace has not written all."""

    engine: str
    case: str
    per_second: int
    p50_s: float
    p99_s: float
    results: int
    """Number of results that the percentiles are of."""
    missing: int
    extra: int
    cpu_cores: float
    """CPU cores that the process tree uses while latencies are taken."""
    sender_late_s: float
    """The most that a message was sent late: it counts as the engine's latency, of either one."""
    loop_ms: float
    load: float


def run_paced(order: Order, per_second: int, schedule: Schedule, servers: Servers) -> Paced:
    """Raises: EngineFailedError."""
    messages = Messages(int(per_second * schedule.ends_at_s), per_second)
    source = servers.topic("paced")
    target = servers.topic("counts") if order.case == "window" else servers.table()
    folder = Path(order.folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    seconds = schedule.ends_at_s + _AFTER_S
    order = replace(order, source=source, target=target, seconds=seconds)
    loop_ms, load = cpu_loop_ms(), os.getloadavg()[0]
    reader = CommittedReader(servers.kafka, target) if order.case == "window" else None
    replay = Replay(messages, servers.kafka, source)
    try:
        meter = run_metered(
            "benchmarks.kafka_race.engine",
            asdict(order),
            folder / "order.json",
            Meter,
            who=f"{order.engine}, {order.case}, paced",
            timeout_s=_TIMEOUT_S,
        )
    finally:
        replay.stop()
        if reader is not None:
            reader.stop()
    started = replay.started_at
    if reader is not None:
        verdict = answer.of_topic(messages, [value for _, value in reader.found])
        waits = window_waits(reader.found, started)
    else:
        verdict = answer.of_table(messages, servers.database, target, folder)
        waits = table_waits(servers, target, started, per_second)
        servers.database.run(f"drop table {target}")
    warm, end = started + schedule.warm_until_s, started + schedule.ends_at_s
    taken = latencies(waits, warm, end)
    for topic in (source, *([target] if order.case == "window" else [])):
        servers.forget(topic)
    shutil.rmtree(folder)
    return Paced(
        engine=order.engine,
        case=order.case,
        per_second=per_second,
        p50_s=percentile(taken, 0.50),
        p99_s=percentile(taken, 0.99),
        results=len(taken),
        missing=verdict.missing,
        extra=verdict.extra,
        cpu_cores=(meter.at(end).cpu_s - meter.at(warm).cpu_s) / (end - warm),
        sender_late_s=replay.late_s,
        loop_ms=loop_ms,
        load=load,
    )


class CommittedReader:
    """Reads a topic while it grows, as a `read_committed` consumer, on a thread."""

    def __init__(self, servers: str, topic: str) -> None:
        self.found: list[tuple[float, bytes]] = []
        """Messages with the times at which they could be read."""
        self._consumer = committed_consumer(servers, topic, **{"enable.partition.eof": False})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            messages, now = self._consumer.consume(1_000, 0.01), time.time()
            good = [m for m in messages if m.error() is None]
            self.found += [(now, m.value()) for m in good]
        self._consumer.close()


def window_waits(
    found: Sequence[tuple[float, bytes]], started_at: float
) -> list[tuple[float, float]]:
    """(seen, due) of each window's row: due is when, by the schedule, the watermark passes its end.

    Event time runs as fast as the schedule, so that this is `WINDOW_MS + LAG_MS` after its start.
    """
    with duckdb.connect() as db:
        values = pa.array([value for _, value in found], pa.string())
        times = pa.array([at for at, _ in found], pa.float64())
        db.register("found", pa.table({"seen": times, "value": values}))
        return db.execute(
            """
            SELECT seen, $started + (epoch_ms(replace(value->>'window_start', 'Z', '')::TIMESTAMP)
                - $t0 + $wait) / 1000
            FROM (SELECT seen, value::JSON AS value FROM found) WHERE value->>'k' <> $closing
            """,
            {
                "started": started_at,
                "t0": T0_MS,
                "wait": WINDOW_MS + LAG_MS,
                "closing": CLOSING_KEY,
            },
        ).fetchall()


def table_waits(
    servers: Servers, table: str, started_at: float, per_second: int
) -> list[tuple[float, float]]:
    """(committed, due) of each row: the database's own note of when its transaction committed."""
    rows = servers.database.run(
        f"select extract(epoch from pg_xact_commit_timestamp(xmin))::float8, n from {table} "
        "where n >= 0"
    )
    return [(at, started_at + n / per_second) for at, n in rows]

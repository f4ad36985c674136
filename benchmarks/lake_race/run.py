"""The whole benchmark: rounds of all engines within a time, commits, and the page of it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.interleaved import cpu_loop_ms
from benchmarks.kafka_race.answer import demand
from benchmarks.kafka_race.backlog import Slot, measured
from benchmarks.kafka_race.messages import Messages
from benchmarks.kafka_race.order import Told
from benchmarks.kafka_race.report import slot_line
from benchmarks.kafka_race.run import Clock, as_after_a_first_run, conditions, write
from benchmarks.kafka_race.servers import Broker, PeerJars, peer_jars, started_broker
from benchmarks.lake_race import commits, report
from benchmarks.lake_race.flink_here import FLINK, ICEBERG, Flink, flink_here
from benchmarks.lake_race.order import CASES, ENGINES, Case, Engine, Order
from benchmarks.lake_race.rows import verdict, write_files
from benchmarks.metered_child import EngineFailedError, run_metered
from benchmarks.oracle import WrongOutputError
from benchmarks.race.engine_process import Meter
from benchmarks.race.report import put_between
from dagster_jet.errors import JetError

PARTS = ("rates", "commits")
_TIMEOUT_S = 120.0
_FAILURES = (EngineFailedError, WrongOutputError, JetError, subprocess.TimeoutExpired)


@dataclass(frozen=True)
class Sizes:
    """Numbers of rounds and rows."""

    messages: int = 2_000_000
    file_rows: int = 24_000_000
    """Ours commit 10 s of a backlog at once. With fewer rows most of them are in one commit, and
    there is no steady rate."""
    rounds: int = 5
    """Most rounds: as many as there is time for, and one at least."""
    versions: int = commits.VERSIONS
    files_trigger: int = 400_000
    kafka_trigger: int = 500_000
    """Rows of a trigger of the peer: the fastest of those that `race` and `kafka_race` have
    tried."""
    limit_s: float = 900.0
    """Time limit of the rates. The commits take two to three minutes."""


FULL = Sizes()
QUICK = Sizes(200_000, 200_000, 1, 300, 40_000, 50_000, 150.0)


@dataclass
class Race:
    """One run of it; what was measured so far is in `result`."""

    sizes: Sizes
    broker: Broker
    jars: PeerJars
    flink: Flink | None
    """None: it cannot be installed here."""
    folder: Path
    clock: Clock
    tell: Callable[[str], None]
    result: dict[str, Any]

    def run(self) -> None:
        """Rounds of all engines, in an order drawn at random, until the time is over."""
        messages = Messages(self.sizes.messages, 10_000)
        in_files = Messages(self.sizes.file_rows, 10_000)
        files = write_files(in_files, self.folder / "in")
        topic = self.broker.topic("rows")
        messages.fill(self.broker.kafka, topic)
        counts = f"{in_files.count:,} rows in files and {messages.count:,} in a topic"
        self.tell(f"{counts} are there; {self.clock.left_s:.0f} s left")
        sources = {"files": (str(files), in_files), "kafka": (topic, messages)}
        draw, took_s = random.Random(7), 0.0
        self.result["slots"] = []
        for number in range(self.sizes.rounds):
            if number and self.clock.left_s < 1.05 * took_s:
                return
            begun = time.monotonic()
            for case in CASES:
                slots, (source, rows) = [], sources[case]
                engines = [e for e in ENGINES[case] if e != "flink" or self.flink]
                for engine in draw.sample(engines, len(engines)):
                    order = self._order(engine, case, source)
                    python = self.flink.python if self.flink and engine == "flink" else None
                    slots.append(run_slot(order, rows, self.clock.left_s, python))
                    self.tell(slot_line(f"round {number + 1}", slots[-1]))
                self.result["slots"].append({"case": case, "slots": [asdict(s) for s in slots]})
            took_s = time.monotonic() - begun

    def _order(self, engine: Engine, case: Case, source: str) -> Order:
        is_peer, reads_files = engine == "peer", case == "files"
        trigger = self.sizes.files_trigger if reads_files else self.sizes.kafka_trigger
        return Order(
            engine=engine,
            case=case,
            source=source,
            servers=self.broker.kafka,
            folder=str(self.folder / "slot"),
            trigger_rows=trigger if is_peer else None,
            jars=self._jars(engine) if not reads_files else (),
        )

    def _jars(self, engine: Engine) -> tuple[str, ...]:
        if engine == "flink":
            assert self.flink is not None
            return self.flink.jars
        return self.jars.paths if engine == "peer" else ()


def run_slot(order: Order, messages: Messages, timeout_s: float, python: str | None = None) -> Slot:
    """Runs, checks, measures.

    Args:
        python: of the engine's environment; None: the project's.

    Raises:
        EngineFailedError, TimeoutExpired: it did not come to its end.
        WrongOutputError: a row is missing, or there twice.
    """
    folder, who = Path(order.folder), f"{order.case}, {order.engine}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    loop_ms, load = cpu_loop_ms(), os.getloadavg()[0]
    meter = run_metered(
        "benchmarks.lake_race.engine",
        asdict(order),
        folder / "order.json",
        Meter,
        who=who,
        timeout_s=max(_TIMEOUT_S, timeout_s),
        python=python or sys.executable,
    )
    found = verdict(order, messages)
    demand(found, who)
    told = Told.read(folder)
    return measured(order, messages, told, meter, found.expected, loop_ms, load)


def main(
    root: Path,
    folder: Path,
    *,
    quick: bool,
    parts: Sequence[str],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Runs the parts and writes the page of results, and the short table in the benchmarks' page.

    Args:
        root: of the repository: pages go to `benchmarks`, those of a quick run to
            `.cache/lake_race`.
        folder: for all that is not kept.

    Raises:
        NotInstalledError: a server or a jar cannot be had.
    Returns:
        All that is in the page; with "failed", if an engine has failed, or has lost or doubled a
        row.
    """
    sizes = QUICK if quick else FULL
    cache = root / ".cache" / "lake_race"
    as_after_a_first_run(root, cache)
    jars = peer_jars()
    measuring = conditions(jars, "deltalake", "pyiceberg", quick=quick)
    flink = flink_here(cache, tell) if "rates" in parts else None
    if flink is not None:
        measuring["versions"] |= {"flink": FLINK, "iceberg": ICEBERG}
    counts = {"rows": sizes.messages, "file_rows": sizes.file_rows}
    result: dict[str, Any] = {**counts, **measuring}
    try:
        if "rates" in parts:
            with started_broker() as broker:
                clock = Clock(sizes.limit_s)
                Race(sizes, broker, jars, flink, folder, clock, tell, result).run()
        if "commits" in parts:
            found = commits.run(folder / "commits", sizes.versions, tell)
            result["commits"] = [asdict(one) for one in found]
    except _FAILURES as error:
        result["failed"] = str(error)
    result["load_after"] = os.getloadavg()[0]
    target = cache if quick else root / "benchmarks" / "results"
    write(target, "lake", result, report.page(result), tell)
    if not quick:
        put_between(root / "benchmarks" / "README.md", "lake_race", report.short_table(result))
    return result

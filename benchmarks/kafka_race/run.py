"""The whole benchmark, within a time: servers, readers, backlog, half load, and the page of it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.interleaved import cpu_loop_ms
from benchmarks.kafka_race import paced, readers, report
from benchmarks.kafka_race.backlog import Slot, run_slot
from benchmarks.kafka_race.messages import Messages
from benchmarks.kafka_race.order import CASES, Case, Order
from benchmarks.kafka_race.servers import PeerJars, Servers, peer_jars, started
from benchmarks.metered_child import EngineFailedError
from benchmarks.oracle import WrongOutputError
from benchmarks.race.contestants import CONTESTANTS
from benchmarks.race.environments import prepare
from benchmarks.race.results import without_nan
from dagster_jet.spark.cluster import class_archive
from tests.servers.kafka import VERSION as BROKER

PARTS = ("readers", "backlog", "paced")
ENGINES = ("ours", "peer")
_AROUND_PACED_S = 45.0
"""Time that a paced run takes beside its schedule."""


@dataclass(frozen=True)
class Sizes:
    """Numbers of rounds; `limit_s` bounds them all."""

    messages: int = 2_000_000
    read: int = 500_000
    """Messages of a round of the readers."""
    rounds: int = 5
    """Most rounds: as many as there is time for, and one at least."""
    reader_rounds: int = 3
    triggers: tuple[int, ...] = (250_000, 500_000)
    """Values of the peer's trigger rows, tried in the first round; the faster one goes on."""
    schedule: paced.Schedule = field(default_factory=paced.Schedule)
    paced_cases: tuple[Case, ...] = CASES
    limit_s: float = 1_560.0


FULL = Sizes()
QUICK = Sizes(300_000, 100_000, 1, 1, (100_000,), paced.QUICK, ("table",), 180.0)


class Clock:
    """Time that is left."""

    def __init__(self, limit_s: float) -> None:
        self._until = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        return self._until - time.monotonic()


@dataclass
class Race:
    """One run of it; what was measured so far is in `result`."""

    sizes: Sizes
    servers: Servers
    jars: PeerJars
    folder: Path
    clock: Clock
    tell: Callable[[str], None]
    result: dict[str, Any]

    def run(self, messages: Messages, parts: Sequence[str]) -> None:
        topic = self.servers.topic("rows")
        messages.fill(self.servers.kafka, topic)
        self.tell(f"{messages.count:,} messages are in the topic; {self.clock.left_s:.0f} s left")
        if "readers" in parts:
            self.readers(topic)
        if "backlog" in parts or "paced" in parts:  # the pace is half of the rate
            runs = len(ENGINES) * len(self.sizes.paced_cases) if "paced" in parts else 0
            reserve_s = runs * (self.sizes.schedule.ends_at_s + _AROUND_PACED_S)
            self.backlog(topic, messages, reserve_s)
        if "paced" in parts:
            self.paced()

    def readers(self, topic: str) -> None:
        given = Messages(self.sizes.read, self.sizes.messages)
        self.result["readers"] = [
            asdict(one)
            for one in readers.run(
                self.servers.kafka,
                topic,
                given,
                self.folder,
                self.jars.paths,
                self.sizes.reader_rounds,
                self.tell,
            )
        ]

    def backlog(self, topic: str, messages: Messages, reserve_s: float) -> None:
        """Rounds of both engines, in an order drawn at random, until the time is needed."""
        draw, took_s = random.Random(7), 0.0
        best: dict[Case, int] = {}
        self.result["slots"] = []
        for number in range(self.sizes.rounds):
            if number and self.clock.left_s < took_s + reserve_s:
                return
            begun = time.monotonic()
            for case in CASES:
                triggers = (best[case],) if number else self.sizes.triggers
                runs = [("ours", None), *(("peer", trigger) for trigger in triggers)]
                draw.shuffle(runs)
                done = []
                for engine, trigger in runs:
                    order = self._order(engine, case, topic, trigger)
                    slot = run_slot(order, messages, self.servers, self.clock.left_s)
                    done.append(slot)
                    self.tell(report.slot_line(f"round {number + 1}", slot))
                if not number:
                    best[case] = fastest(done)
                chosen = [s for s in done if s.trigger_rows in (None, best[case])]
                self.result["slots"].append({"case": case, "slots": [asdict(s) for s in chosen]})
                if not number:
                    self.result.setdefault("tried", []).extend(asdict(s) for s in done)
            took_s = time.monotonic() - begun

    def paced(self) -> None:
        """Runs at half of the rate of the slower engine."""
        self.result["paced"] = []
        for case in self.sizes.paced_cases:
            per_second = half_of_slower(self.result["slots"], case)
            for engine in ENGINES:
                if self.clock.left_s < self.sizes.schedule.ends_at_s:
                    self.tell(f"{case}, {engine}, half load: no time is left")
                    continue
                order = self._order(engine, case, "", None)
                schedule = self.sizes.schedule
                one = paced.run_paced(order, per_second, schedule, self.servers)
                self.result["paced"].append(asdict(one))
                self.tell(report.paced_line(one))

    def _order(self, engine: str, case: Case, topic: str, trigger: int | None) -> Order:
        return Order(
            engine="ours" if engine == "ours" else "peer",
            case=case,
            servers=self.servers.kafka,
            source=topic,
            target="",
            database=self.servers.database.url,
            folder=str(self.folder / "slot"),
            trigger_rows=trigger,
            jars=() if engine == "ours" else self.jars.paths,
        )


def main(
    root: Path,
    folder: Path,
    *,
    quick: bool,
    parts: Sequence[str],
    messages: int | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Runs the parts and writes the page of results.

    Args:
        root: of the repository: pages go to `benchmarks/results`, those of a quick run to
            `.cache/kafka_race`.
        folder: for all that is not kept.
        messages: of the backlog, instead of the usual number.

    Raises:
        NotInstalledError: a server or a jar cannot be had.
    Returns:
        All that is in the page; with "failed", if an engine has failed, or has lost or doubled a
        row.
    """
    sizes = QUICK if quick else FULL
    clock = Clock(sizes.limit_s)
    given = Messages(messages or sizes.messages, 10_000)
    cache = root / ".cache" / "kafka_race"
    as_after_a_first_run(root, cache)
    jars = peer_jars()
    result = {"messages": given.count, **conditions(jars, "confluent-kafka", quick=quick)}
    with started() as servers:
        race = Race(sizes, servers, jars, folder, clock, tell, result)
        try:
            race.run(given, parts)
        except (EngineFailedError, WrongOutputError, subprocess.TimeoutExpired) as error:
            result["failed"] = str(error)
    result["load_after"] = os.getloadavg()[0]
    target = cache if quick else root / "benchmarks" / "results"
    write(target, "kafka", result, report.page(result), tell)
    return result


def conditions(jars: PeerJars, *libraries: str, quick: bool) -> dict[str, Any]:
    """Versions, and how the machine is before a run."""
    found = {name: version(name) for name in ("pyspark", *libraries)}
    return {
        "versions": {"connector": jars.connector, "kafka": BROKER, **found},
        "quick": quick,
        "loop_ms": cpu_loop_ms(),
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }


def write(
    target: Path, name: str, result: Mapping[str, Any], page: str, tell: Callable[[str], None]
) -> None:
    """Writes what was measured, as JSON and as a page."""
    target.mkdir(parents=True, exist_ok=True)
    (target / f"{name}.json").write_text(
        json.dumps(without_nan(result), indent=1) + "\n", encoding="utf-8"
    )
    (target / f"{name}.md").write_text(page, encoding="utf-8")
    tell(f"{target / f'{name}.md'} is written")


def as_after_a_first_run(root: Path, cache: Path) -> None:
    """Sees to what every user has then; the peer's sessions do not look at it."""
    os.environ.setdefault(class_archive.VARIABLE, str(root / ".cache"))
    archive = class_archive.for_this_machine()
    if archive is not None and not archive.is_there:
        prepare(CONTESTANTS["jet"], cache / "environments")


def fastest(slots: Sequence[Slot]) -> int:
    """The trigger with which the peer was fastest; a rate that could not be taken loses."""
    peers = [slot for slot in slots if slot.trigger_rows is not None]
    best = max(peers, key=lambda slot: slot.rows_per_s if slot.rows_per_s > 0 else 0.0)
    assert best.trigger_rows is not None
    return best.trigger_rows


def half_of_slower(rounds: Sequence[dict[str, Any]], case: str) -> int:
    """Messages per second: half of what the slower engine has managed from its start on, in the
    mean; to the hundred."""
    rates = {
        engine: [
            slot["whole_rows_per_s"] if not slot["rows_per_s"] > 0 else slot["rows_per_s"]
            for one in rounds
            if one["case"] == case
            for slot in one["slots"]
            if slot["engine"] == engine
        ]
        for engine in ENGINES
    }
    slower = min(sum(found) / len(found) for found in rates.values())
    return max(100, int(slower / 2 / 100) * 100)

"""All messages are there: how fast, and at what cost, are they in the sink?"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from benchmarks.interleaved import cpu_loop_ms
from benchmarks.kafka_race import answer
from benchmarks.kafka_race.messages import Messages
from benchmarks.kafka_race.order import Order, Told
from benchmarks.kafka_race.servers import Servers
from benchmarks.metered_child import run_metered
from benchmarks.race.engine_process import Meter

WARM_UP = 0.25
"""Share of the messages that only warm up; rates begin with the first commit at or after it."""
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Slot:
    """One engine, once; its output was right."""

    engine: str
    case: str
    trigger_rows: int | None
    rows_per_s: float
    """Rate from the commit that ends the warm-up to the last; nan: one commit had nearly all."""
    cpu_s_per_m: float
    """CPU-seconds per million messages of the process tree, in the same span."""
    whole_rows_per_s: float
    """All messages, from the start of the process to the last commit."""
    whole_cpu_s_per_m: float
    commits: int
    output_rows: int
    loop_ms: float
    load: float


class Raced(Protocol):
    """Result of a race."""

    @property
    def engine(self) -> str: ...

    @property
    def case(self) -> str: ...

    @property
    def trigger_rows(self) -> int | None: ...


def run_slot(order: Order, messages: Messages, servers: Servers, timeout_s: float) -> Slot:
    """Raises: EngineFailedError, TimeoutExpired; WrongOutputError: a row is missing, or there
    twice."""
    target = servers.topic("counts") if order.case == "window" else servers.table()
    folder = Path(order.folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    order = replace(order, target=target)
    loop_ms, load = cpu_loop_ms(), os.getloadavg()[0]
    meter = run_metered(
        "benchmarks.kafka_race.engine",
        asdict(order),
        folder / "order.json",
        Meter,
        who=f"{order.engine}, {order.case}",
        timeout_s=max(_TIMEOUT_S, timeout_s),
    )
    told = Told.read(folder)
    if order.case == "window":
        verdict = answer.of_topic(messages, servers.values(target))
        servers.forget(target)
    else:
        verdict = answer.of_table(messages, servers.database, target, folder)
        servers.database.run(f"drop table {target}")
    answer.demand(verdict, f"{order.engine}, {order.case}")
    shutil.rmtree(folder)
    return measured(order, messages, told, meter, verdict.expected, loop_ms, load)


def measured(
    order: Raced,
    messages: Messages,
    told: Told,
    meter: Meter,
    output_rows: int,
    loop_ms: float,
    load: float,
) -> Slot:
    """The figures of a run that is over."""
    first, last = span(told.commits, messages.count)
    rows, seconds = last[1] - first[1], last[0] - first[0]
    used, used_in_all = meter.at(first[0]).cpu_s, meter.at(last[0]).cpu_s
    is_enough = rows >= WARM_UP * messages.count and seconds > 0
    return Slot(
        engine=order.engine,
        case=order.case,
        trigger_rows=order.trigger_rows,
        rows_per_s=rows / seconds if is_enough else math.nan,
        cpu_s_per_m=1e6 * (used_in_all - used) / rows if is_enough else math.nan,
        whole_rows_per_s=messages.count / (last[0] - meter.times[0]),
        whole_cpu_s_per_m=1e6 * used_in_all / messages.count,
        commits=len(told.commits),
        output_rows=output_rows,
        loop_ms=loop_ms,
        load=load,
    )


def span(commits: Sequence[Sequence[float]], count: int) -> tuple[Sequence[float], Sequence[float]]:
    """The commit that ends the warm-up, and the first one that has all messages."""
    first = next(commit for commit in commits if commit[1] >= WARM_UP * count)
    last = next(commit for commit in commits if commit[1] >= count)
    return first, last

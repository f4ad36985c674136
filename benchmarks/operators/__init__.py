"""The stateful operators, each against its counterpart in Structured Streaming."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.case import Case
from benchmarks.operators import deduplicate, join, stateful_map, windows
from benchmarks.operators.streams import Streams

MILLION = 1_000_000


@dataclass(frozen=True)
class OperatorRace:
    """A case, its input, and what the ratio of rows per second should be at least."""

    case: Case
    data: Streams
    goal: float


OPERATORS = {
    race.case.name: race
    for race in (
        OperatorRace(windows.TUMBLING, Streams(4 * MILLION, keys=1000), 1.5),
        OperatorRace(windows.SLIDING, Streams(4 * MILLION, keys=1000), 1.5),
        # A key has a row every 2 s: sessions of about a dozen rows.
        OperatorRace(windows.SESSION, Streams(4 * MILLION, keys=20_000), 1.5),
        # About one partner for every row.
        OperatorRace(
            join.CASE,
            Streams(4 * MILLION, keys=50_000, names=(join.LEFT, join.RIGHT), rows_per_ms=5),
            1.0,
        ),
        OperatorRace(deduplicate.CASE, Streams(4 * MILLION, keys=0, repeated=0.2), 1.0),
        OperatorRace(stateful_map.CASE, Streams(4 * MILLION, keys=10_000), 1.5),
    )
}

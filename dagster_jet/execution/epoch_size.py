"""How many rows of each source the next epoch takes: decided from what the epochs before it took.

An epoch costs something however few rows it has, and something for every row. A job that *keeps up*
takes what is there, within its target. One that *catches up* takes epochs so large that what they
cost in any case is a small part, within a bound of their own. No clock and no I/O: what waits and
what was measured go in, sizes come out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_jet.connectors.contract import Lag
from dagster_jet.execution.epoch_cost import MeasuredEpochs

FIRST_ROWS = 50_000
FIRST_BYTES = 16 << 20
"""The first epoch, at most: it starts JVMs and workers up, and somebody waits for its rows."""

UNKNOWN_ROW_BYTES = 200.0
"""Of a source that does not say how much waits."""

OVERHEAD = 0.1
"""What an epoch costs in any case, as a part of one that catches up: larger ones gain little."""

_STEP = 4.0
"""From one epoch to the next. However much grows with the rows, it is then four times as much."""
_LESS = 0.7
"""Downwards, for the sake of the overhead alone: a small epoch loses more than a large one."""
_BACKLOG = 4
"""A job catches up when so many epochs of its target's size wait, until one takes what is there."""
_FAR_BEYOND = 4
"""The bound: what a first epoch may take before its rows are to blame."""
_WARMS_UP = 1.1
"""An epoch so much faster than any before it, per row, will be followed by faster ones."""
_GAIN = 3.0
"""At most so much faster, as far as anybody counts on it."""
_SPARED = 0.25
"""Of an epoch, for sources with little beside one with much: theirs need not wait for its end."""


@dataclass
class EpochSizer:
    """Of one execution."""

    target_ms: float
    """An epoch of a job that keeps up; twice what an epoch costs in any case, if that is more."""
    catch_up_ms: float
    """An epoch of a job that catches up, likewise."""
    source_rows_max: int | None
    """Of one source in one epoch."""
    bytes_max: float
    """Of all sources in one epoch, as they wait."""
    rows: float = FIRST_ROWS
    """The most rows of one epoch, as far as has been tried."""
    _measured: MeasuredEpochs = field(default_factory=MeasuredEpochs)
    _rate: float = 0.0
    """Rows per ms of the fastest epoch."""
    _is_cold: bool = True
    _catches_up: bool = False
    _is_full: bool = False
    """The epoch that runs is as large as it may be, and did not take all."""

    # --- before an epoch ------------------------------------------------------------------------

    def shares(self, waiting: Mapping[str, Lag]) -> dict[str, int]:
        """The most rows that the next epoch takes of each source, by what waits in it."""
        items = sum(lag.items for lag in waiting.values())
        row_bytes = sum(map(_bytes, waiting.values())) / max(1, items)
        room = self._room(items, row_bytes)
        # Where all fits in, no estimate of what waits is to hold a row back.
        shares = dict.fromkeys(waiting, room) if items <= room else _divided(room, waiting)
        most = self.source_rows_max
        if most is not None and max(shares.values(), default=0.0) > most:
            self._is_full = False  # more was to be had, and was not asked for
            shares = {name: min(share, most) for name, share in shares.items()}
        return {name: max(1, int(share)) for name, share in shares.items()}

    def _room(self, items: int, row_bytes: float) -> float:
        if self._is_cold and row_bytes:
            self.rows = min(self.rows, FIRST_BYTES / row_bytes)
        in_time = most = min(self.rows, self.bytes_max / row_bytes) if row_bytes else self.rows
        if (cost := self._measured.cost()) is not None:
            in_time = min(most, cost.rows_within(cost.bound(self.target_ms)))
        if items > _BACKLOG * in_time:
            self._catches_up = True
        elif items <= in_time:
            self._catches_up = False
        room = max(1.0, most if self._catches_up else in_time)
        self._is_full = items > room >= most
        return room

    # --- after it -------------------------------------------------------------------------------

    def learn(self, rows: int, duration_ms: float) -> None:
        """The epoch had `rows` rows and took so long."""
        if rows <= 0 or duration_ms <= 0:
            return
        bound_ms = max(self.catch_up_ms, self.target_ms)
        gain = self._gain(rows / duration_ms)
        if self._is_cold:
            self._is_cold = False
            self._learn_cold(rows, duration_ms, bound_ms)
            return
        self._measured.add(rows, duration_ms)
        if self._is_full or (rows > self.rows / 2 and duration_ms > bound_ms):
            self.rows = self._step(self._next(rows, duration_ms, bound_ms, gain), rows)

    def _gain(self, rate: float) -> float:
        """How much faster, per row, the next epoch may be: a job that warms up gets faster for a
        while, and its last epoch says by how much."""
        gain, self._rate = rate / (self._rate or rate), max(self._rate, rate)
        return min(gain, _GAIN) if gain > _WARMS_UP else 1.0

    def _learn_cold(self, rows: int, duration_ms: float, bound_ms: float) -> None:
        """What starts up with the first epoch would make every row look dear. Far beyond the bound
        it is the rows nevertheless; and so many more that even that would not get there are no
        risk."""
        far_ms = _FAR_BEYOND * bound_ms
        if duration_ms > far_ms:
            self.rows = self._step(rows * bound_ms / duration_ms, rows)
        elif self._is_full:
            self.rows = max(self.rows, self._step(rows * far_ms / duration_ms, rows))

    def _next(self, rows: int, duration_ms: float, bound_ms: float, gain: float) -> float:
        cost = self._measured.cost()
        if cost is None:
            return self._another_size(rows, duration_ms, bound_ms, gain)
        bound_ms = cost.bound(bound_ms)
        # Whatever a row costs, an epoch grows no faster than its rows; what was measured counts for
        # sizes that are not too far from those that were tried.
        safe = gain * rows * bound_ms / duration_ms
        if duration_ms < bound_ms:
            safe = max(safe, min(2.0 * rows, cost.rows_within(bound_ms)))
        wanted = max(cost.rows_at(OVERHEAD), cost.rows_within(cost.bound(self.target_ms)))
        return min(safe, max(wanted, _LESS * self.rows))

    def _another_size(self, rows: int, duration_ms: float, bound_ms: float, gain: float) -> float:
        """Where all epochs are alike, nobody knows what a row costs: this shows it."""
        # What waits comes in pieces, and less than one is not to be had: is it the rows at all?
        may_be = _FAR_BEYOND if self._measured.are_several else 2
        if rows > self.rows and duration_ms < may_be * bound_ms:
            return 2.0 * rows
        safe = gain * rows * bound_ms / duration_ms
        if safe > 1.5 * self.rows:
            return min((_STEP if gain > 1 else 2.0) * self.rows, safe)
        if self._measured.are_many:
            return 0.5 * self.rows
        # A job that warms up is near its bound for that reason, and soon will not be.
        return 1.5 * self.rows if duration_ms < bound_ms else min(self.rows, safe)

    def _step(self, wanted: float, taken: int) -> float:
        return max(1.0, min(max(self.rows, taken) * _STEP, max(self.rows / _STEP, wanted)))


def _bytes(lag: Lag) -> float:
    return UNKNOWN_ROW_BYTES * lag.items if lag.bytes is None else lag.bytes


def _divided(room: float, waiting: Mapping[str, Lag]) -> dict[str, float]:
    """A little for each, and of the rest the same part of what waits in each: event times stay
    together, so that little is kept open."""
    little = room * _SPARED / len(waiting)
    spared = {name: min(little, lag.items) for name, lag in waiting.items()}
    rest = {name: lag.items - spared[name] for name, lag in waiting.items()}
    part = (room - sum(spared.values())) / sum(rest.values())
    return {name: spared[name] + part * rest[name] for name in waiting}

"""Decides how many rows of each source the next epoch takes, from the durations of earlier epochs.

An epoch has a fixed cost and a cost per row. A job that *keeps up* takes all waiting input within
its target duration. A job that *catches up* takes epochs so large that the fixed cost is a small
share, within a separate bound. Backlogs and measured durations go in, sizes come out; no clock and
no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_jet.contract import Lag
from dagster_jet.execution.epoch_cost import MeasuredEpochs

FIRST_ROWS = 50_000
FIRST_BYTES = 16 << 20
"""Limits of the first epoch in rows and bytes: it also starts JVMs and workers, and its rows should
appear soon."""

UNKNOWN_ROW_BYTES = 200.0
"""Assumed bytes per row of a source that does not report its backlog's size."""

OVERHEAD = 0.1
"""Share of the fixed cost in an epoch that catches up; larger epochs gain little."""

_STEP = 4.0
"""Largest growth or shrink factor of the row limit from one epoch to the next."""
_LESS = 0.7
"""Smallest factor by which the overhead alone may shrink the limit; too small an epoch costs more
than too large a one."""
_BACKLOG = 4
"""A job catches up once this many epochs of target size wait, until one epoch takes all waiting
input."""
_FAR_BEYOND = 4
"""A cold first epoch is attributed to its rows only beyond this multiple of the bound."""
_WARMS_UP = 1.1
"""A per-row speed-up above this factor counts as JIT warm-up."""
_GAIN = 3.0
"""Cap on the speed-up extrapolated from warm-up."""
_SPARED = 0.25
"""Share of each epoch reserved for sources with a small backlog."""


@dataclass
class EpochSizer:
    """Sizes the epochs of one execution."""

    target_ms: float
    """Longest epoch in ms of a job that keeps up; twice the fixed cost if that is more."""
    catch_up_ms: float
    """Longest epoch in ms of a job that catches up; twice the fixed cost if that is more."""
    source_rows_max: int | None
    """Most rows of one source in one epoch."""
    bytes_max: float
    """Most bytes of all sources in one epoch, as they wait."""
    rows: float = FIRST_ROWS
    """Row limit of one epoch, as far as has been tried."""
    _measured: MeasuredEpochs = field(default_factory=MeasuredEpochs)
    _rate: float = 0.0
    """Rows per ms of the fastest epoch."""
    _is_cold: bool = True
    _catches_up: bool = False
    _is_full: bool = False
    """Whether the running epoch has reached the limit and left input."""

    # --- before an epoch ------------------------------------------------------------------------

    def shares(self, waiting: Mapping[str, Lag]) -> dict[str, int]:
        """Returns the row limit of each source for the next epoch, from the sources' backlogs."""
        items = sum(lag.items for lag in waiting.values())
        row_bytes = sum(map(_bytes, waiting.values())) / max(1, items)
        room = self._room(items, row_bytes)
        # If all fits in, an estimate of the backlog must not hold a row back.
        shares = dict.fromkeys(waiting, room) if items <= room else _divided(room, waiting)
        most = self.source_rows_max
        if most is not None and max(shares.values(), default=0.0) > most:
            self._is_full = False  # more input was available and was not requested
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
        """Learns from an epoch with this number of rows and this duration."""
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
            size = self._step(self._next(rows, duration_ms, bound_ms, gain), rows)
            # A source with gaps gives fewer rows than it was asked for. That is no reason to ask
            # for fewer: each epoch would be smaller than the one before.
            has_gaps = rows < self.rows / 2 and duration_ms < bound_ms
            self.rows = max(self.rows, size) if has_gaps else size

    def _gain(self, rate: float) -> float:
        """Returns the expected per-row speed-up of the next epoch: during warm-up it is that of the
        last epoch."""
        gain, self._rate = rate / (self._rate or rate), max(self._rate, rate)
        return min(gain, _GAIN) if gain > _WARMS_UP else 1.0

    def _learn_cold(self, rows: int, duration_ms: float, bound_ms: float) -> None:
        """Learns from the first epoch, whose start-up cost would make each row look expensive. Far
        beyond the bound the rows are the cause nevertheless. A growth that stays below the bound
        even at this cost is safe."""
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
        # An epoch's duration grows no faster than its rows; measurements only hold for sizes near
        # those that were tried.
        safe = gain * rows * bound_ms / duration_ms
        if duration_ms < bound_ms:
            safe = max(safe, min(2.0 * rows, cost.rows_within(bound_ms)))
        wanted = max(cost.rows_at(OVERHEAD), cost.rows_within(cost.bound(self.target_ms)))
        return min(safe, max(wanted, _LESS * self.rows))

    def _another_size(self, rows: int, duration_ms: float, bound_ms: float, gain: float) -> float:
        """Returns another size to try: epochs of equal size do not show the cost per row."""
        # Input may come in larger pieces than asked for: the rows may not be the cause.
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
    """Divides the room: a reserve for each source, and of the rest an equal share of each source's
    backlog, so that event times stay together and few windows stay open."""
    little = room * _SPARED / len(waiting)
    spared = {name: min(little, lag.items) for name, lag in waiting.items()}
    rest = {name: lag.items - spared[name] for name, lag in waiting.items()}
    part = (room - sum(spared.values())) / sum(rest.values())
    return {name: spared[name] + part * rest[name] for name in waiting}

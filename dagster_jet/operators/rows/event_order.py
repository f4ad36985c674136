"""Rows in order of key and event time, searched for many (key, time) pairs at once.

Used by operators that compare rows by distance in time. O(n log n) in numpy; Python per row only
where many rows of one key are close together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Literal

import numpy as np

from dagster_jet.operators.rows.sorting import distinct, order_by, search

_SPAN_MAX_MS = 1 << 31
"""Largest range of times in which a time's rank is its distance from the first, without search."""
PAIRS_MAX = 1 << 18
"""About so many pairs are in memory at once; more only for a single range."""


class Timeline:
    """Rows sorted by (key number, time); equal rows keep the given order."""

    def __init__(self, codes: np.ndarray, times: np.ndarray) -> None:
        """Takes key numbers from `key_codes` and as many int64 times in ms."""
        self.order = order_by(codes, times)
        """Row numbers, sorted."""
        self._codes = codes[self.order]
        self._times = times[self.order]
        # (key, time) as one sortable integer. Times become ranks first: keys x milliseconds could
        # overflow, keys x a short range or x distinct times cannot.
        self._first = int(times.min()) if len(times) else 0
        self._span = int(times.max()) - self._first + 1 if len(times) else 0
        self._instants: np.ndarray | None = None
        if self._span > _SPAN_MAX_MS:
            self._instants = distinct(times)
            self._span = len(self._instants)
        self._places = self._place(self._codes, self._times, "left")

    def between(
        self, codes: np.ndarray, first: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """For each key and closed interval of times: its rows are `order[start:stop]`."""
        start, stop = self._place(codes, first, "left"), self._place(codes, last, "right")
        return search(self._places, start), search(self._places, stop)

    def spaced(self, distance_ms: int) -> np.ndarray:
        """Selects per key its first row, then always the next row more than `distance_ms` later.

        Returns:
            Row numbers, in order of key and time.
        """
        count = len(self.order)
        if count == 0:
            return self.order
        starts = np.flatnonzero(np.diff(self._codes, prepend=self._codes[0] - 1))
        # For every row, the row that would be chosen after it; `count` if its key has no more.
        following = np.append(
            self.between(self._codes, self._times, self._times + distance_ms)[1], count
        )
        same_key = self._codes[np.minimum(following[:-1], count - 1)] == self._codes
        following[:-1][~same_key] = count
        # All rows reachable from the starts, by pointer doubling in log2(longest chain) rounds, so
        # that one key with many rows does not cost a round per row.
        chosen = np.zeros(count + 1, bool)
        chosen[starts] = True
        reached = starts
        while len(reached):
            ahead = following[np.flatnonzero(chosen)]
            reached = ahead[~chosen[ahead] & (ahead < count)]
            chosen[reached] = True
            following = following[following]
        return self.order[np.flatnonzero(chosen[:count])]

    def apart(self, distance_ms: int) -> np.ndarray:
        """Selects, one after the other in the given order, each row that is more than `distance_ms`
        away from all selected rows of its key.

        Returns:
            Row numbers, ascending.
        """
        count = len(self.order)
        if count == 0:
            return self.order
        begins = np.ones(count, bool)
        begins[1:] = (np.diff(self._codes) != 0) | (np.diff(self._times) > distance_ms)
        starts = np.flatnonzero(begins)
        stops = np.append(starts[1:], count)
        # Rows of a cluster are no further apart than `distance_ms` from the next one. Where all of
        # it are near one another the first one stays.
        chosen = np.minimum.reduceat(self.order, starts)
        is_wide = self._times[stops - 1] - self._times[starts] > distance_ms
        wide = zip(starts[is_wide].tolist(), stops[is_wide].tolist(), strict=True)
        several = [self._apart_one_by_one(start, stop, distance_ms) for start, stop in wide]
        return np.sort(np.concatenate([chosen[~is_wide], *several]))

    def _apart_one_by_one(self, start: int, stop: int, distance_ms: int) -> np.ndarray:
        numbers, times = self.order[start:stop], self._times[start:stop].tolist()
        given = np.argsort(numbers)
        selected: list[int] = []
        kept = np.zeros(len(times), bool)
        for place in given.tolist():
            time = times[place]
            near = bisect_left(selected, time - distance_ms)
            if near == len(selected) or selected[near] > time + distance_ms:
                selected.insert(near, time)
                kept[place] = True
        return numbers[kept]

    def _place(
        self, codes: np.ndarray, times: np.ndarray, side: Literal["left", "right"]
    ) -> np.ndarray:
        """Sort position of (key, time); "right": after all rows of that time."""
        if self._instants is not None:
            ranks = search(self._instants, times + (side == "right"))
        else:
            ranks = np.clip(times - (self._first - (side == "right")), 0, self._span)
        places: np.ndarray = codes * (self._span + 1) + ranks
        return places


def expand(starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Expands half-open ranges: for every number in them, the index of its range and the number."""
    counts = stops - starts
    which = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    numbers = np.arange(len(which)) + np.repeat(starts - (ends - counts), counts)
    return which, numbers


def portions(starts: np.ndarray, stops: np.ndarray) -> Iterator[slice]:
    """Cuts ranges into runs of ranges that `expand` to about `PAIRS_MAX` pairs; at least one."""
    ends = np.cumsum(stops - starts)
    total = int(ends[-1]) if len(ends) else 0
    cuts = distinct(np.searchsorted(ends, np.arange(PAIRS_MAX, total, PAIRS_MAX)))
    for begin, end in zip([0, *cuts], [*cuts, len(ends)], strict=True):
        yield slice(begin, end)

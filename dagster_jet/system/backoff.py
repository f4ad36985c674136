"""Pauses between attempts: exponential, with jitter; a bounded number, or until one succeeds.

Full jitter (a pause anywhere between nothing and the bound) spreads clients that failed at the same
moment best: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import SystemRandom

_random = SystemRandom()
"""Not the process's own generator: who has seeded that one gets the numbers that they expect, and
processes that were seeded alike do not wait in step."""


def jitter_s(bound_s: float) -> float:
    """Return a pause anywhere between nothing and the bound."""
    return _random.uniform(0, bound_s)


def attempts(
    attempts_max: int, *, base_s: float = 0.02, cap_s: float = 1.0, budget_s: float = 60.0
) -> Iterator[int]:
    """Yield the number of each attempt, from 0, pausing before all but the first.

    Args:
        attempts_max: how many at most.
        base_s: the bound of the first pause; doubled for each further one.
        cap_s: the largest bound.
        budget_s: no attempt begins later than this after the first.
    """
    begun = time.monotonic()
    for attempt in range(attempts_max):
        if attempt:
            time.sleep(jitter_s(min(cap_s, base_s * 2 ** (attempt - 1))))
            if time.monotonic() - begun > budget_s:
                return
        yield attempt


def give_way(attempt: int) -> None:
    """Pause after another process was faster at a register, so that not all claim it at once.

    Args:
        attempt: how many times that has happened before. The bound grows by 2 ms each time, up to
            42 ms: a rival's turn takes milliseconds.
    """
    time.sleep(jitter_s(0.002 * (1 + min(attempt, 20))))


@dataclass
class Backoff:
    """Of one call that is tried again until it succeeds. No tries are counted."""

    first_s: float
    max_s: float
    _bound_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._bound_s = self.first_s

    def next_s(self) -> float:
        """How long to wait now: from half the bound to all of it. Doubles the bound."""
        bound_s = self._bound_s
        self._bound_s = min(2 * bound_s, self.max_s)
        return _random.uniform(bound_s / 2, bound_s)

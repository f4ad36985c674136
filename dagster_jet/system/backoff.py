"""Pauses between attempts: exponential with jitter; a bounded number, or until success.

Full jitter (a random pause from 0 to the bound) spreads clients that failed together best:
https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import SystemRandom

_random = SystemRandom()
"""Separate from the process's generator: a user's seeded sequence stays unchanged, and processes
with equal seeds do not pause in step."""


def jitter_s(bound_s: float) -> float:
    """Return a random pause from 0 to the bound."""
    return _random.uniform(0, bound_s)


def attempts(
    attempts_max: int, *, base_s: float = 0.02, cap_s: float = 1.0, budget_s: float = 60.0
) -> Iterator[int]:
    """Yield the number of each attempt, from 0, pausing before all but the first.

    Args:
        attempts_max: largest number of attempts.
        base_s: bound of the first pause; doubles with each further one.
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
    """Pause after losing a race for a register, so that not all processes claim it at once.

    Args:
        attempt: number of races lost before. The bound grows by 2 ms each time, up to 42 ms: a
            competing claim takes milliseconds.
    """
    time.sleep(jitter_s(0.002 * (1 + min(attempt, 20))))


@dataclass
class Backoff:
    """Pauses of one call that is retried until it succeeds, without a limit of attempts."""

    first_s: float
    max_s: float
    _bound_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._bound_s = self.first_s

    def next_s(self) -> float:
        """Return the next pause: from half the bound to the bound. Doubles the bound."""
        bound_s = self._bound_s
        self._bound_s = min(2 * bound_s, self.max_s)
        return _random.uniform(bound_s / 2, bound_s)

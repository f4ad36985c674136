"""Pauses between attempts: exponential, with full jitter, a bounded number.

Full jitter (a pause anywhere between nothing and the bound) spreads clients that failed at the same
moment best: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator


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
            time.sleep(random.uniform(0, min(cap_s, base_s * 2 ** (attempt - 1))))
            if time.monotonic() - begun > budget_s:
                return
        yield attempt

"""Ask several members at once: a batch takes as long as the slowest member, not as all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dagster_jet.errors import StoreUnavailableError, StoreUnwritableError

T = TypeVar("T")

Failure = StoreUnavailableError | StoreUnwritableError
"""What a member's failure looks like; anything else is a fault of the caller and is raised."""

_THREADS = 16
_pool: ThreadPoolExecutor | None = None


def fan_out(calls: Mapping[str, Callable[[], T]]) -> tuple[dict[str, T], dict[str, Failure]]:
    """Run one call per member and wait for all of them.

    Calls must not fan out themselves: they would wait for the threads they occupy.

    Returns:
        The results and the failures, by member id.
    """
    results: dict[str, T] = {}
    failures: dict[str, Failure] = {}
    if len(calls) == 1:
        waiting: dict[str, Callable[[], T]] = dict(calls)
    else:
        pool = _threads()
        waiting = {member_id: pool.submit(call).result for member_id, call in calls.items()}
    for member_id, result in waiting.items():
        try:
            results[member_id] = result()
        except (StoreUnavailableError, StoreUnwritableError) as failure:
            failures[member_id] = failure
    return results, failures


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="jet-store")
    return _pool


def _forget_threads() -> None:
    global _pool
    _pool = None  # threads do not survive a fork; the child starts its own


os.register_at_fork(after_in_child=_forget_threads)

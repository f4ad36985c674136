"""Who holds a job, told apart from who merely held it: host, process and its start time."""

from __future__ import annotations

import os
import socket
import time

from dagster_jet.engine.process import is_alive, start_ticks
from dagster_jet.snapshot.record import Lease


def new_lease(owner: str, ttl_ms: int, run_id: str | None) -> Lease:
    """A lease of this process, renewed now."""
    pid = os.getpid()
    return Lease(
        owner=owner,
        host=socket.gethostname(),
        pid=pid,
        process_started_at_ms=start_ticks(pid) or 0,
        renewed_at_ms=wall_clock_ms(),
        ttl_ms=ttl_ms,
        run_id=run_id,
    )


def is_owner_alive(lease: Lease) -> bool | None:
    """Does the owning process exist? None: another host, nobody can tell from here.

    A stopped (SIGSTOP) process exists, yet does nothing: the lease's time decides about it.
    """
    if lease.host != socket.gethostname():
        return None
    return is_alive(lease.pid, lease.process_started_at_ms)


def looks_held(lease: Lease | None, now_ms: int) -> bool:
    """For people to read: no decision may compare two hosts' clocks, as this does."""
    if lease is None or lease.is_expired(now_ms):
        return False
    return is_owner_alive(lease) is not False


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000

"""Leases of job owners. A lease identifies a process by its id, its start time, and the boot and
PID namespace in which the id is valid."""

from __future__ import annotations

import os
import socket
import time

from dagster_jet.snapshot.record import Activity, Lease
from dagster_jet.system.process import is_alive, pid_scope, start_ticks


def new_lease(
    owner: str, ttl_ms: int, run_id: str | None, activity: Activity | None = None
) -> Lease:
    """Return a lease of this process, renewed now."""
    pid = os.getpid()
    return Lease(
        owner=owner,
        host=socket.gethostname(),
        pid=pid,
        process_started_at_ms=start_ticks(pid) or 0,
        renewed_at_ms=wall_clock_ms(),
        ttl_ms=ttl_ms,
        run_id=run_id,
        pid_scope=pid_scope(),
        activity=activity,
    )


def is_owner_alive(lease: Lease) -> bool | None:
    """Whether the owning process exists; None: unknown.

    It is unknown on another host, in a container with another PID namespace (also of the same
    name), and after a reboot: the lease's time to live then decides. It also decides about a
    stopped (SIGSTOP) process, which exists but does nothing.
    """
    if lease.host != socket.gethostname() or lease.pid_scope != pid_scope():
        return None
    return is_alive(lease.pid, lease.process_started_at_ms)


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000

"""Who holds a job, told apart from who merely held it: host, process and its start time."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from dagster_jet.snapshot.record import Lease


def new_lease(owner: str, ttl_ms: int, run_id: str | None) -> Lease:
    """A lease of this process, renewed now."""
    pid = os.getpid()
    return Lease(
        owner=owner,
        host=socket.gethostname(),
        pid=pid,
        process_started_at_ms=_process_start_ticks(pid) or 0,
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
    ticks = _process_start_ticks(lease.pid)
    if ticks is None:
        return False
    return lease.process_started_at_ms in (0, ticks)


def looks_held(lease: Lease | None, now_ms: int) -> bool:
    """For people to read: no decision may compare two hosts' clocks, as this does."""
    if lease is None or lease.is_expired(now_ms):
        return False
    return is_owner_alive(lease) is not False


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _process_start_ticks(pid: int) -> int | None:
    """When a process started, in the kernel's ticks; tells a reused pid from the old process.

    Zombies count as gone: they hold nothing any more.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        return 0
    return None if fields[0] in "ZX" else int(fields[19])

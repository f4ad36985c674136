"""Identity and liveness of processes."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process of this host in kernel ticks; distinguishes it from a
    later process with the same pid.

    Returns:
        None: the process is gone. Zombies count as gone: they hold no resources.
        0: the process exists, its start time is unknown.
    """
    if not _PROC.is_dir():
        return _is_there(pid)
    try:
        fields = (_PROC / str(pid) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        return 0
    return None if fields[0] in "ZX" else int(fields[19])


def pid_scope() -> str:
    """Return the scope of this process's ids: one boot of one kernel, one PID namespace.

    Host names are not sufficient: containers share them, and each may have its own process 7.
    Empty if the kernel does not report it.
    """
    try:
        return f"{boot_id()} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def boot_id() -> str:
    """Return an id of this machine's boot. Within one boot all processes share one monotonic clock.
    Empty if the kernel does not report it."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def is_alive(pid: int, since: int) -> bool:
    """Whether it is the process whose `start_ticks` were `since`; 0: any process with the pid."""
    ticks = start_ticks(pid)
    return ticks is not None and (0 in (since, ticks) or since == ticks)


def _is_there(pid: int) -> int | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0

"""Is a process alive, and is it still the same one?"""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def start_ticks(pid: int) -> int | None:
    """When a process of this host started, in the kernel's ticks; tells it from one that has got
    its pid since.

    Returns:
        None: it is gone. Zombies count as gone: they hold nothing and do nothing any more.
        0: it is there, and nobody says since when.
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
    """Within which this process's ids mean anything: one boot of one kernel, one PID namespace.

    Host names do not say so much: containers share them, and each may have a process 7 of its own.
    Empty where the kernel does not say.
    """
    try:
        return f"{boot_id()} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def boot_id() -> str:
    """An id of this boot of this machine: within one boot the monotonic clock is one clock, in all
    processes. Empty where the kernel does not say."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def is_alive(pid: int, since: int) -> bool:
    """Is it the process whose `start_ticks` were `since`? 0: whichever has its pid."""
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

"""Memory and CPU of all processes of a Dagster, by their kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress

import psutil

STREAM, JVM, WORKERS, OTHER = "run of a stream", "JVM", "Python workers", "other"
_MIB = 1024 * 1024


class Usage:
    """CPU time of each kind of process.

    Attributes:
        cpu_seconds: by kind, of the living and of those that were seen before they ended.
        ended_cpu_seconds: of processes that ended, by their parent that has waited for them.
    """

    def __init__(self) -> None:
        self._cpu: dict[tuple[int, float], tuple[str, float]] = {}

    @property
    def cpu_seconds(self) -> dict[str, float]:
        total: dict[str, float] = defaultdict(float)
        for kind, seconds in self._cpu.values():
            total[kind] += seconds
        return dict(total)

    def look(self, services: Mapping[str, Iterable[psutil.Process]]) -> dict[str, list[float]]:
        """MiB of each living process (PSS: a page that several share counts once in all), by kind.

        Args:
            services: the processes that are known, by kind; under "family", all of Dagster.
        """
        known = {
            process.pid: kind
            for kind, processes in services.items()
            if kind != "family"
            for process in processes
        }
        family = {process.pid: process for process in services["family"]}
        memory: dict[str, list[float]] = defaultdict(list)
        kinds = {**_kinds(family), **known}
        everyone = {p.pid: p for processes in services.values() for p in processes} | family
        for pid, process in everyone.items():
            with suppress(psutil.Error):
                with process.oneshot():
                    times, born = process.cpu_times(), process.create_time()
                    memory[kinds[pid]].append(process.memory_full_info().pss / _MIB)
                self._cpu[pid, born] = kinds[pid], times.user + times.system
                if kinds[pid] == "code server":
                    ended = times.children_user + times.children_system
                    self._cpu[pid, -born] = "ended runs", ended
        return dict(memory)


def _kinds(family: Mapping[int, psutil.Process]) -> dict[int, str]:
    kinds, drivers = {}, set()
    for pid, process in family.items():
        kinds[pid] = OTHER
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if process.name() == "java":
                kinds[pid] = JVM
                drivers.add(process.ppid())
            elif "pyspark" in command:
                kinds[pid] = WORKERS
            elif "api grpc" in command:
                kinds[pid] = "code server"
            elif "spawn_main" in command:
                kinds[pid] = "other runs"
    kinds.update({pid: STREAM for pid in drivers if pid in kinds})
    return kinds

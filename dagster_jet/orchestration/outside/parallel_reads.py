"""Reads several jobs at once, so that one that does not answer delays no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from dagster_jet.errors import JetError
from dagster_jet.orchestration.outside.reading import Reading

PATIENCE_S = 30.0
"""Below the 60 s that Dagster gives to a tick."""
_THREADS_MAX = 16


class ParallelReads:
    """Reads that go on beyond a tick are waited for by the next one, and not started twice."""

    def __init__(
        self, readers: Mapping[str, Callable[[], Reading]], patience_s: float = PATIENCE_S
    ) -> None:
        self._readers, self._patience_s = readers, patience_s
        self._open: dict[str, Future[Reading | str]] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS_MAX, "jet-observe")

    def read(self, *names: str) -> dict[str, Reading | str]:
        """Returns, by name, what was read, or why nothing was."""
        with self._lock:
            asked = {name: self._open.get(name) or self._started(name) for name in names}
        done = wait(asked.values(), self._patience_s).done
        with self._lock:
            self._open = {name: each for name, each in self._open.items() if each not in done}
        late = f"no answer within {self._patience_s:g} s."
        return {name: each.result() if each in done else late for name, each in asked.items()}

    def _started(self, name: str) -> Future[Reading | str]:
        self._open[name] = self._threads.submit(self._read, name)
        return self._open[name]

    def _read(self, name: str) -> Reading | str:
        try:
            return self._readers[name]()
        except (JetError, OSError) as error:
            return str(error) or repr(error)
        except Exception as error:  # noqa: BLE001 - one job that cannot be read hides no other
            return f"{type(error).__name__}."  # its text may have anything in it, a password too

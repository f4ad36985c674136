"""What looks after a job on a thread of its own, for as long as a `with` block lasts."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from typing import TypeVar

_logger = logging.getLogger(__name__)

_PAUSE_S = 1.0
_T = TypeVar("_T", bound="BackgroundThread")


class BackgroundThread(ABC):
    """A daemon thread that `with` starts, and whose end it asks for.

    Args:
        name: of the thread.
        wanted: False: the block runs without it.
        end_s: how long the end of the block waits for it to end.
    """

    def __init__(self, name: str, *, wanted: bool = True, end_s: float = 0.0) -> None:
        self._wanted, self._end_s = wanted, end_s
        self._ended = threading.Event()
        """Set at the end of the block."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _watch(self) -> None:
        """Runs on the thread, until `_ended` is set. It is called again when it has raised."""

    def _run(self) -> None:
        while True:
            try:
                self._watch()
                return
            except Exception:
                _logger.exception("%s fails, and begins again", self._thread.name)
            if self._ended.wait(_PAUSE_S):
                return

    def __enter__(self: _T) -> _T:
        if self._wanted:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._wanted:
            self._thread.join(self._end_s)

"""Base class of threads that run while a `with` block is open."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from typing import TypeVar

_logger = logging.getLogger(__name__)

_PAUSE_S = 1.0
_T = TypeVar("_T", bound="BackgroundThread")


class BackgroundThread(ABC):
    """A daemon thread that is started by `with` and asked to end after the block.

    Args:
        name: name of the thread.
        wanted: False: no thread is started.
        end_s: how long the end of the block waits for the thread, in seconds.
    """

    def __init__(self, name: str, *, wanted: bool = True, end_s: float = 0.0) -> None:
        self._wanted, self._end_s = wanted, end_s
        self._ended = threading.Event()
        """Set at the end of the block."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _watch(self) -> None:
        """Run on the thread until `_ended` is set. It is called again after an exception."""

    def _run(self) -> None:
        while True:
            try:
                self._watch()
                return
            except Exception:
                _logger.exception("%s failed and is started again", self._thread.name)
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

"""Caches the store's status for the collection of metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dagster_jet.store import Store, StoreStatus

_ASK_EVERY_S = 10.0


@dataclass
class StoreHealth:
    """Status of one store, queried on the collector's thread: hanging members delay no job."""

    store: Store
    seconds: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: tuple[float, StoreStatus] | None = None

    def status(self) -> StoreStatus:
        """Returns a status that is at most `_ASK_EVERY_S` seconds old."""
        with self._lock:
            if self._known is None or self.seconds() - self._known[0] >= _ASK_EVERY_S:
                found = self.store.status()
                self._known = (self.seconds(), found)
            return self._known[1]

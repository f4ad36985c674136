"""How well a store is, asked when metrics are collected and not more often than needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dagster_jet.store import Store, StoreStatus

_ASK_EVERY_S = 10.0


@dataclass
class StoreHealth:
    """Of one store. On the collector's thread: members that do not answer delay no job."""

    store: Store
    seconds: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: tuple[float, StoreStatus] | None = None

    def status(self) -> StoreStatus:
        """Returns it as of a few seconds ago at most."""
        with self._lock:
            if self._known is None or self.seconds() - self._known[0] >= _ASK_EVERY_S:
                found = self.store.status()
                self._known = (self.seconds(), found)
            return self._known[1]

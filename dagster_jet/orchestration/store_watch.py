"""Logs a warning in a run's log when the store loses a member, and when it is whole again."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from dagster_jet.errors import JetError
from dagster_jet.orchestration.health import store_safe
from dagster_jet.store.upkeep.status import StoreStatus

LOOK_SECONDS = 30.0


class AskedStore(Protocol):
    """The part of `dagster_jet.store.Store` that is used here."""

    def status(self) -> StoreStatus: ...


@dataclass
class StoreWatch:
    """Polls the store's status on a separate thread, so that a hanging member delays nothing else.

    A job continues while a majority answers, so that a lost member would go unnoticed.
    """

    store: AskedStore
    interval_s: float = LOOK_SECONDS
    _warnings: deque[str] = field(default_factory=deque, init=False)
    _said: str = field(default="", init=False)
    _is_over: threading.Event = field(default_factory=threading.Event, init=False)

    def take(self) -> list[str]:
        """Return the warnings added since the last call."""
        found: list[str] = []
        while self._warnings:
            found.append(self._warnings.popleft())
        return found

    def look(self) -> None:
        """Query the members once; add a warning if the status has changed."""
        try:
            health = store_safe(self.store.status())
        except JetError as error:
            said = f"The state of the store cannot be read: {error}"
        else:
            said = "" if health.is_well else f"The store is not safe. {health.why}"
        if said != self._said:
            self._warnings.append(said or "The store is safe again.")
            self._said = said

    def __enter__(self) -> StoreWatch:
        threading.Thread(target=self._watch, name="jet-store-watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop polling; the last query may still be running when the store is closed."""
        self._is_over.set()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            try:
                self.look()
            except Exception:
                if self._is_over.is_set():
                    return  # the store was closed concurrently
                raise
            self._is_over.wait(self.interval_s)

"""Restarts a job gracefully onto the new partition table after a change of the store's members.

While a change is under way a job continues, and writes to the old holders and the new ones. When
the registers move, its execution is restarted once, from the last snapshot
(`RecordKeeper.ended_because`). This watcher restarts the job once the change is complete, so that
its state is written and read according to the new table. It waits for `scale_up_delay` first,
because members come in groups.
"""

from __future__ import annotations

import time

from dagster_jet.errors import StoreError
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.store import Store
from dagster_jet.system.background_thread import BackgroundThread

_POLL_S = 1.0


class MembersWatcher(BackgroundThread):
    """Watches the store's metadata on its own thread while an execution runs."""

    def __init__(self, store: Store, job: str, stop: StopSignal) -> None:
        delay_ms = store.config.scale_up_delay_ms
        super().__init__(f"jet-members-{job}", wanted=delay_ms is not None)
        self._store, self._stop = store, stop
        self._delay_s = (delay_ms or 0) / 1000
        self._began_with = store.table

    def _watch(self) -> None:
        quiet_since = time.monotonic()
        while not self._ended.wait(min(_POLL_S, max(0.05, self._delay_s / 4))):
            try:
                if self._store.refresh():
                    quiet_since = time.monotonic()
            except StoreError:
                continue  # tried again at the next poll
            is_done = self._store.table != self._began_with and not self._store.is_moving
            if is_done and time.monotonic() - quiet_since >= self._delay_s:
                self._stop.request(StopKind.RESTART)
                return

"""Threads beside the loop: each runs works one after the other, and posts their results."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from dagster_jet.execution.notifications import Died, Notification

Work = Callable[[], Notification | None]


class Worker:
    """One long-lived thread that runs works in the order in which they were started.

    Args:
        name: name of the thread.
        post: takes the result of a work; None is not posted.
    """

    def __init__(self, name: str, post: Callable[[Notification], None]) -> None:
        self._post = post
        self._works: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Work) -> None:
        self._works.put(work)

    def close(self, wait_s: float | None = None) -> None:
        """Waits for started works, but not longer than this; afterwards the thread is abandoned."""
        self._works.put(None)
        self._thread.join(wait_s)

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            try:
                notification = work()
            except BaseException as error:  # noqa: BLE001 - raised again on the loop's thread
                notification = Died(error)
            if notification is not None:
                self._post(notification)

"""Threads beside the loop: each makes one thing after the other, and posts what became of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from dagster_jet.execution.notifications import Died, Notification

Work = Callable[[], Notification | None]


class Worker:
    """One long-lived thread. What is started on it is done in that order.

    Args:
        name: of the thread.
        post: takes what a work returns; None is nothing to post.
    """

    def __init__(self, name: str, post: Callable[[Notification], None]) -> None:
        self._post = post
        self._works: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Work) -> None:
        self._works.put(work)

    def close(self, wait_s: float | None = None) -> None:
        """Waits for what was started, but not longer than this; then it is left to itself."""
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

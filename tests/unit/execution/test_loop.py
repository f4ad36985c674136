"""The shell around the loop: its threads answer, whatever happens on them."""

from __future__ import annotations

import queue

from dagster_jet.execution.notifications import Died, Notification, Woken
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.execution.worker import Worker
from dagster_jet.snapshot.protocol import StopKind


class Interrupt(BaseException):
    """Unexpected exception beside the loop."""


def test_a_worker_makes_one_thing_after_the_other_and_posts_what_became_of_it() -> None:
    posted: queue.SimpleQueue[Notification] = queue.SimpleQueue()
    made: list[int] = []
    worker = Worker("one", posted.put)

    def dies() -> Notification:
        raise Interrupt

    worker.start(lambda: made.append(1))
    worker.start(dies)
    worker.start(lambda: made.append(2))
    worker.start(Woken)
    worker.close()
    assert made == [1, 2]
    died, woken = posted.get_nowait(), posted.get_nowait()
    assert isinstance(died, Died) and isinstance(died.error, Interrupt)
    assert woken == Woken() and posted.empty()


def test_a_request_to_stop_wakes_whoever_listens() -> None:
    posted: queue.SimpleQueue[Notification] = queue.SimpleQueue()
    signal = StopSignal()
    signal.listen(lambda: posted.put(Woken()))
    signal.request(StopKind.SUSPEND)
    assert posted.get_nowait() == Woken() and signal.kind is StopKind.SUSPEND
    signal.listen(None)
    signal.request(StopKind.CANCEL)
    assert posted.empty()

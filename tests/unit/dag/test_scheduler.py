"""The end of an execution: everybody is closed and the end is told, whatever a tasklet does."""

import threading
from collections.abc import Callable

import pytest

from dagster_jet.dag import CallOutcome
from dagster_jet.dag.scheduler import Scheduler


class Calls:
    """A tasklet made of two functions."""

    def __init__(
        self,
        name: str,
        call: Callable[[], CallOutcome] = lambda: CallOutcome.NONE,
        *,
        close: Callable[[], None] = lambda: None,
        is_cooperative: bool = True,
    ) -> None:
        self.name, self.is_cooperative = name, is_cooperative
        self.call, self._close, self.closed = call, close, threading.Event()

    def close(self) -> None:
        self.closed.set()
        self._close()


class End:
    """Records the errors that `on_end` is called with."""

    def __init__(self) -> None:
        self.errors: list[BaseException | None] = []
        self.told = threading.Event()

    def __call__(self, error: BaseException | None) -> None:
        self.errors.append(error)
        self.told.set()


class Blocks:
    """A call that does not return until it is released."""

    def __init__(self) -> None:
        self.called, self.release = threading.Event(), threading.Event()

    def __call__(self) -> CallOutcome:
        self.called.set()
        self.release.wait(60)
        return CallOutcome.NONE


def exits() -> None:
    raise SystemExit(3)


def fails() -> CallOutcome:
    raise ValueError("no disk")


@pytest.mark.parametrize("is_cooperative", [True, False])
def test_who_exits_while_it_is_closed_keeps_nobody_from_the_end(is_cooperative, caplog):
    first = Calls("first", close=exits, is_cooperative=is_cooperative)
    second, end = Calls("second", is_cooperative=is_cooperative), End()
    scheduler = Scheduler([first, second], on_end=end)
    scheduler.start()
    scheduler.stop()
    assert end.told.wait(30) and end.errors == [None]
    assert first.closed.is_set() and second.closed.is_set()
    assert "first could not be closed" in caplog.text


def test_the_same_in_steps():
    first, second, end = Calls("first", close=exits), Calls("second"), End()
    scheduler = Scheduler([first, second], on_end=end)
    assert scheduler.step()
    scheduler.stop()
    assert not scheduler.step()
    assert end.errors == [None] and second.closed.is_set()


def test_an_error_beside_a_call_that_blocks_is_told(caplog):
    blocks = Blocks()
    blocking, end = Calls("source#0", blocks, is_cooperative=False), End()
    failing = Calls("sink#0", lambda: fails() if blocks.called.is_set() else CallOutcome.NONE)
    Scheduler([blocking, failing], on_end=end, grace_s=0.05).start()
    assert end.told.wait(30), "before the call has returned"
    assert [str(error) for error in end.errors] == ["no disk"]
    assert "source#0 does not return from its callback; its thread is abandoned" in caplog.text
    assert not blocking.closed.is_set(), "never beside a call"
    blocks.release.set()
    assert blocking.closed.wait(30), "its thread closes it when it returns after all"


def test_a_cooperative_call_that_blocks_is_named_and_the_end_waits_for_it(caplog):
    blocks = Blocks()
    end = End()
    scheduler = Scheduler([Calls("source#0", blocks)], on_end=end)
    scheduler.start()
    assert blocks.called.wait(30)
    scheduler.stop()
    assert not scheduler.join(0.05) and end.errors == []
    assert "source#0 does not return from its callback; the cooperative thread" in caplog.text
    blocks.release.set()
    assert end.told.wait(30) and end.errors == [None]


def test_the_last_round_comes_after_the_end_of_all():
    release, rounds, end = threading.Event(), [], End()

    def ends() -> CallOutcome:
        return CallOutcome.DONE if release.is_set() else CallOutcome.NONE

    other = Calls("other", ends, is_cooperative=False)

    def on_round() -> bool:
        rounds.append(other.closed.is_set())
        if not release.is_set():
            release.set()
            for thread in threading.enumerate():
                if thread.name == "last-other":
                    thread.join(30)
        return False

    Scheduler([other], on_round=on_round, on_end=end, name="last").start()
    assert end.told.wait(30) and rounds[-1]

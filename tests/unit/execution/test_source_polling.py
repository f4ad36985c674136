"""Sources that answer slowly, not at all for a while, or with errors; each on its own thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.contract import Backlog, Lag, SourceReader
from dagster_jet.errors import (
    FencedError,
    JetError,
    Reaction,
    SourceError,
    SourceUnavailableError,
)
from dagster_jet.execution import source_polling
from dagster_jet.execution.source_polling import Outage, SourcePolling
from dagster_jet.execution.watermarks import WatermarkTracker

AWAY = SourceUnavailableError("the broker does not answer.")


@dataclass
class Scripted(SourceReader):
    """Answers what the test puts into `script`, when it does; an exception is raised."""

    script: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    accepted: list[Any] = field(default_factory=list)
    polls: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    threads: set[int] = field(default_factory=set)
    closed: threading.Event = field(default_factory=threading.Event)
    waits: bool = True

    def restore(self, position: Any, journal: Any) -> None:
        raise NotImplementedError

    def poll(self) -> Any:
        self.threads.add(threading.get_ident())
        self.polls.put(1)
        answer = self.script.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def accept(self, found: Any) -> None:
        self.accepted.append(found)

    def waiting(self) -> Lag:
        return Lag(len(self.accepted) if self.waits else 0, {})

    def plan(self, max_rows: int) -> None:
        return None

    def frame(self, spark: Any, split: Any) -> Any:
        raise NotImplementedError

    def position(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed.set()


class Classifying(Scripted):
    def reaction(self, error: Exception) -> Reaction:
        meant = {TimeoutError: Reaction.RETRY, PermissionError: Reaction.STOP}
        return meant.get(type(error), Reaction.RESTART)


@dataclass
class Parts(Scripted):
    """Reads a queue in parts: each answer says whether messages are left."""

    left: Backlog = Backlog.READ

    def mark_backlog(self) -> None:
        self.left = Backlog.WAITING

    def accept(self, found: Any) -> None:
        self.left = found

    def backlog(self) -> Backlog:
        return self.left


class Watched:
    """A polling of some readers, and what it tells."""

    def __init__(self, readers: Mapping[str, Scripted]) -> None:
        self.told: queue.SimpleQueue[tuple[Outage, bool]] = queue.SimpleQueue()
        tell = lambda outage, is_over: self.told.put((outage, is_over))  # noqa: E731
        self.retried: dict[str, str | None] = {}
        self.polling = SourcePolling("j", readers, lambda: 1_000, tell, self.retried.__setitem__)


@pytest.fixture
def readers() -> Iterator[dict[str, Scripted]]:
    made: dict[str, Scripted] = {"fast": Scripted(), "slow": Scripted(), "away": Classifying()}
    yield made
    for reader in made.values():
        reader.script.put(None)  # nobody hangs for ever


def test_a_slow_source_delays_nobody_and_its_answer_comes_later(
    readers: dict[str, Scripted],
) -> None:
    fast, slow = readers["fast"], readers["slow"]
    polling = Watched({"fast": fast, "slow": slow}).polling
    for n in range(3):
        fast.script.put(n)
        polling.poll()
        while len(fast.accepted) <= n:  # a busy machine may be slower than the grace
            polling.poll()
    assert fast.accepted == [0, 1, 2] and slow.accepted == []
    assert polling.silent == {"slow"}
    slow.script.put("late")
    while not slow.accepted:
        fast.script.put("more")
        polling.poll()
    assert slow.accepted == ["late"] and polling.silent == set()
    assert len(fast.threads) == len(slow.threads) == 1 and fast.threads != slow.threads


def test_a_slow_source_with_input_is_not_polled_again(
    readers: dict[str, Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless nothing waits: the answer may be as old as the epoch, and rows have come since."""
    monkeypatch.setattr(source_polling, "GRACE_S", 0.0)
    fast = readers["fast"]
    polling = Watched({"fast": fast}).polling

    def beside_an_epoch(found: str) -> None:
        fast.script.put(found)
        polling.ask()
        while polling.answers.empty():
            time.sleep(0.001)

    beside_an_epoch("some")
    polling.poll()
    assert fast.accepted == ["some"] and fast.polls.qsize() == 1
    beside_an_epoch("none")
    fast.waits = False
    fast.script.put("new")
    while "new" not in fast.accepted:
        polling.poll()
    assert fast.accepted == ["some", "none", "new"] and fast.polls.qsize() == 3


@pytest.mark.parametrize(("age_s", "polls"), [(0.055, 1), (0.065, 2)])
def test_an_answer_that_is_old_for_what_a_poll_costs_is_asked_for_again(
    readers: dict[str, Scripted], age_s: float, polls: int
) -> None:
    fast, now_s = readers["fast"], 0.0
    polling = Watched({"fast": fast}).polling
    polling.clock = lambda: now_s
    polling.ask()
    fast.polls.get()
    now_s = 0.03
    fast.script.put("beside the epoch")
    while polling.answers.empty():
        time.sleep(0.001)
    now_s = age_s
    fast.script.put("before the next")
    polling.poll()
    assert len(fast.accepted) == polls


def test_an_epoch_takes_what_is_there_when_it_begins(readers: dict[str, Scripted]) -> None:
    """A quick source answered beside the last epoch, and rows have come since."""
    fast = readers["fast"]
    polling = Watched({"fast": fast}).polling
    fast.script.put("beside the epoch")
    fast.script.put("before the next")
    polling.ask()
    while polling.answers.empty():
        time.sleep(0.001)
    polling.poll()
    assert fast.accepted == ["beside the epoch", "before the next"]


def test_an_outage_is_waited_for_in_place_and_told_when_it_lasts(
    readers: dict[str, Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_polling, "REPORT_AFTER_S", 0.0)
    away = readers["away"]
    watched = Watched({"away": away})
    for error in (AWAY, TimeoutError("no route")):
        away.script.put(error)
    watched.polling.poll()
    assert watched.told.get() == (Outage("away", 1_000, str(AWAY)), False)
    for _ in range(3):
        away.polls.get()  # the third try has begun: the second error was met, too
    assert watched.polling.outages == {"away": Outage("away", 1_000, "no route")}
    assert watched.polling.silent == {"away"}
    assert watched.retried == {"away": "no route"}
    away.script.put("back")
    while "back" not in away.accepted:
        watched.polling.poll()
    assert watched.told.get() == (Outage("away", 1_000, "no route"), True)
    assert watched.polling.outages == {} and watched.told.empty(), "told once"
    assert watched.retried == {"away": None}


def test_a_poll_that_does_not_return_is_an_outage(readers: dict[str, Scripted]) -> None:
    """A connection through a frozen proxy raises nothing. The source's time stands meanwhile."""
    away, now_s = readers["away"], 0.0
    watched = Watched({"away": away})
    watched.polling.clock = lambda: now_s
    away.script.put("first")
    watched.polling.poll_all(lambda: False)
    watched.polling.ask()
    now_s = 9.0
    watched.polling.poll()
    assert watched.polling.silent == set()
    now_s = 11.0
    for _ in range(2):
        watched.polling.poll()
    assert watched.polling.silent == {"away"} and "not answered for 11 s" in watched.retried["away"]
    outage, is_over = watched.told.get()
    assert outage.since_ms == 1_000 - 11_000 and not is_over and watched.told.empty()
    away.script.put("second")
    while len(away.accepted) < 2:
        watched.polling.poll()
    assert watched.polling.silent == set() and watched.retried == {"away": None}
    assert watched.told.get() == (outage, True)


@pytest.mark.parametrize("poll_s", [12, 40])
def test_a_source_whose_polls_take_long_is_told_once_and_becomes_idle(
    readers: dict[str, Scripted], poll_s: int
) -> None:
    slow, now_s, asked_s = readers["slow"], 0, 0
    slow.waits = False
    watched = Watched({"slow": slow})
    watched.polling.clock = lambda: now_s
    p = Pipeline("j")
    rows = p.read_from(sources.files("/x", format="json", schema="ts long"), name="slow")
    timed = rows.with_timestamps("ts", idle_timeout="60 seconds")
    counts = timed.window(windows.tumbling("1 second")).aggregate(n=agg.count(), name="counts")
    counts.write_to(sinks.files("/y", format="json"), name="out")
    watermarks, idle_at = WatermarkTracker(p.graph), list[int]()

    def look() -> None:
        watched.polling.poll()
        watermarks.check_time(now_s * 1000, (), watched.polling.silent)

    look()
    for now_s in range(1, 3 * poll_s + 100):
        if now_s == asked_s + poll_s:
            slow.polls.get()  # it has begun
            slow.script.put("nothing")
            while watched.polling.answers.empty():
                time.sleep(0.001)
            asked_s = now_s
        look()
        if watermarks.nodes["slow.timestamps"].idle:
            idle_at.append(now_s)
    told_until_s = poll_s - 1  # the last look during the first poll
    assert idle_at == list(range(told_until_s + 60, now_s + 1))
    assert [watched.told.get()[1] for _ in range(2)] == [False, True] and watched.told.empty()


def test_a_source_that_has_answered_again_is_waited_for_until_it_has_acknowledged(
    readers: dict[str, Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last plan of an orderly end nobody accepts the answer."""
    begun, may_end = threading.Event(), threading.Event()

    def acknowledge(messages: Mapping[str, Any]) -> bool:
        begun.set()
        return may_end.wait(5)

    def give_up() -> bool:
        assert begun.wait(5)
        may_end.set()
        return True

    monkeypatch.setattr(readers["slow"], "acknowledge", acknowledge)
    polling = Watched({name: readers[name] for name in ("slow", "away")}).polling
    for name in polling.readers:
        readers[name].script.put(AWAY)
    polling.ask()
    while len(polling.outages) < 2:
        time.sleep(0.001)
    readers["slow"].script.put("back")
    assert polling.acknowledge("slow", {}, give_up) is True
    with pytest.raises(SourceUnavailableError, match="before the messages are acknowledged"):
        polling.acknowledge("away", {}, lambda: True)


@pytest.mark.parametrize(
    ("error", "kind", "reaction"),
    [
        (SourceError("it has changed."), SourceError, Reaction.FAIL),
        (KeyError("k"), SourceError, Reaction.RESTART),
        (PermissionError("fenced"), FencedError, Reaction.STOP),
    ],
)
def test_what_is_not_to_be_retried_is_raised_where_it_is_accepted(
    readers: dict[str, Scripted], error: Exception, kind: type[JetError], reaction: Reaction
) -> None:
    readers["away"].script.put(error)
    polling = Watched({"away": readers["away"]}).polling
    with pytest.raises(kind) as told:
        polling.poll_all(lambda: False)
    assert told.value.reaction is reaction


@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit])
def test_an_error_that_nobody_has_foreseen_is_raised_as_it_is(
    readers: dict[str, Scripted], kind: type[BaseException]
) -> None:
    readers["fast"].script.put(kind("oh"))
    with pytest.raises(kind):
        Watched({"fast": readers["fast"]}).polling.poll_all(lambda: False)


def test_waiting_for_all_means_polls_that_began_afterwards(readers: dict[str, Scripted]) -> None:
    slow = readers["slow"]
    polling = Watched({"slow": slow}).polling
    polling.ask()
    slow.polls.get()  # it has begun, before the call
    slow.script.put("before")
    slow.script.put("after")
    polling.poll_all(lambda: False)
    assert slow.accepted == ["before", "after"]


def test_behind_the_end_only_what_is_left_of_a_backlog_is_polled(
    readers: dict[str, Scripted],
) -> None:
    fast, parts = readers["fast"], Parts()
    polling = Watched({"fast": fast, "queue": parts}).polling
    assert polling.backlogs() == {}
    fast.script.put("all")
    parts.script.put(Backlog.HELD)
    polling.poll_last(lambda: False)
    assert polling.backlogs() == {"queue": Backlog.HELD} and fast.accepted == ["all"]
    parts.script.put(Backlog.READ)
    while polling.backlogs():
        polling.poll()
    polling.ask()
    polling.poll()
    assert (fast.polls.qsize(), parts.polls.qsize()) == (1, 2), "nobody is asked any more"
    parts.script.put(None)


def test_what_was_asked_for_before_the_end_is_not_taken_after_it(
    readers: dict[str, Scripted],
) -> None:
    parts = Parts()
    polling = Watched({"queue": parts}).polling
    parts.script.put(Backlog.READ)
    polling.poll_last(lambda: False)
    polling._asked_at["queue"] = 0.0
    polling.accept(source_polling.PollResult("queue", error=AWAY))
    assert parts.left is Backlog.READ
    parts.script.put(None)


def test_waiting_for_all_ends_with_the_execution(readers: dict[str, Scripted]) -> None:
    readers["away"].script.put(AWAY)
    polling = Watched({"away": readers["away"]}).polling
    with pytest.raises(SourceUnavailableError, match="does not answer") as told:
        polling.poll_all(lambda: "away" in polling.outages)
    assert told.value.stage == "away"


def test_every_reader_is_closed_on_its_own_thread(readers: dict[str, Scripted]) -> None:
    fast, away = readers["fast"], readers["away"]
    fast.script.put(1)
    for error in [AWAY] * 3:  # however often it is polled until then
        away.script.put(error)
    polling = Watched({"fast": fast, "away": away}).polling
    polling.poll()
    away.polls.get()
    polling.close()
    assert fast.closed.wait(5) and away.closed.wait(5)
    assert len(fast.threads) == len(away.threads) == 1

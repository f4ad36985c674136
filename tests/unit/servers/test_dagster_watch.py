"""The soak under Dagster sees two owners, silence, and a supervisor that says what is not true."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, Lease
from tests.soak import dagster_watch
from tests.soak.dagster_watch import Patience, Span, Tick, Watch, absences, faults

OUTAGE = Span(1000.0, 1050.0)
PATIENCE = Patience()
RESTART = Tick(1005, 1006, "restart")
REQUESTED = "wait: run soak:2 was requested 8 s ago and is queued or starting"


def ticks(text: str, *, until: float, first: float = 1005.0) -> list[Tick]:
    """One every 10 seconds that says the same."""
    count = int((until - first) // 10)
    return [Tick(first + 10 * n, first + 10 * n + 1, text) for n in range(count)]


class TestOwners:
    @pytest.fixture
    def alive(self, monkeypatch: pytest.MonkeyPatch) -> set[int]:
        """Processes."""
        found: set[int] = set()
        monkeypatch.setattr(dagster_watch, "is_owner_alive", lambda lease: lease.pid in found)
        return found

    @staticmethod
    def record(execution: int, pid: int | None) -> ExecutionRecord:
        lease = None if pid is None else Lease("o", "here", pid, 1, renewed_at_ms=0, ttl_ms=10_000)
        status = JobStatus.RUNNING if pid is not None else JobStatus.SUSPENDED
        return ExecutionRecord("soak", status=status, execution_id=execution, lease=lease)

    def test_two_that_live_at_once_are_told(self, alive: set[int]) -> None:
        watch = Watch(None, "soak")
        alive |= {100, 200}
        watch._look(self.record(1, 100))
        watch._look(self.record(2, 200))
        assert watch.doubles == ["execution 1 of process 100 lives beside 2 of process 200"]
        assert watch.executions == 2 and watch.driver is not None and watch.driver.pid == 200

    def test_one_after_the_other_is_an_outage_in_between(self, alive: set[int]) -> None:
        watch = Watch(None, "soak")
        alive.add(100)
        watch._look(self.record(1, 100))
        alive.clear()
        watch._look(self.record(1, 100))
        assert watch.outages[-1].end == float("inf") and watch.driver is None
        alive.add(200)
        watch._look(self.record(2, 200))
        assert watch.doubles == []
        assert [outage.end < float("inf") for outage in watch.outages] == [True, True]

    def test_one_that_has_said_that_it_ends_may_take_its_time(self, alive: set[int]) -> None:
        watch = Watch(None, "soak")
        alive |= {100, 200}
        watch._look(self.record(1, 100))
        watch._look(self.record(1, None))
        watch._look(self.record(2, 200))
        assert watch.doubles == []

    def test_a_watch_that_dies_says_why(self) -> None:
        class Broken:
            @property
            def store(self) -> Any:
                raise LookupError("no such thing")

        watch = Watch(Broken(), "soak")
        watch.start()
        watch.join(10)
        assert watch.died == "LookupError: no such thing"


class TestOutages:
    @pytest.mark.parametrize(
        "text",
        [
            "restart",
            "start",
            REQUESTED,
            "wait: run 12ab was launched and may take the job; seen for 3 s",
            "wait: execution 3 failed: out of memory; attempt 2 of 8 in 17 s",
            "wait: another tick or a user was faster (execution 3 is dead)",
        ],
    )
    def test_what_is_true_is_no_fault(self, text: str) -> None:
        said = [RESTART, *ticks(text, first=1015, until=OUTAGE.end)]
        assert faults(OUTAGE, said, [], PATIENCE) == []

    @pytest.mark.parametrize(
        "text",
        [
            "adopt: execution 1 is RUNNING on here, process 100",
            "wait: paused on a person's request; resume the job, or launch it by hand, to go on",
            "wait: the job is SUSPENDED (on request); resume",
            "stuck: execution 1 is RUNNING",
            "done: the job is COMPLETED",
            "give up: 8 runs in a row without progress",
            "",
        ],
    )
    def test_what_is_not_true_is_told_for_every_tick(self, text: str) -> None:
        said = [RESTART, *ticks(text, first=1015, until=OUTAGE.end)]
        assert [fault for fault in faults(OUTAGE, said, [], PATIENCE) if repr(text) in fault] == [
            f"{seconds} s after the job was left alone a tick said {text!r}"
            for seconds in (15, 25, 35)
        ]

    def test_a_wrong_adopt_is_no_word(self) -> None:
        said = ticks("adopt: execution 1 is RUNNING on here, process 100", until=1300)
        found = faults(Span(1000, 1300), said, [], PATIENCE)
        assert len(found) == len(said) + 1, "the first comes while the lease may be believed"
        assert found[-2].startswith("nobody drove the job for 300 s, and for 294 s of it no tick")
        assert found[-1].startswith("nobody drove the job for 300 s: 300 s that no back-off")

    def test_what_a_tick_saw_before_it_was_so_is_no_fault(self) -> None:
        early = Tick(999.5, 1002, "adopt: execution 1 is RUNNING on here, process 100")
        assert faults(OUTAGE, [early, RESTART, *ticks(REQUESTED, first=1015, until=1050)], [],
                      PATIENCE) == []  # fmt: skip

    def test_silence_is_told(self) -> None:
        assert faults(OUTAGE, [RESTART], [], PATIENCE) == [
            "nobody drove the job for 50 s, and for 44 s of it no tick said why"
        ]

    def test_silence_of_a_killed_daemon_is_excused_until_it_is_back(self) -> None:
        assert faults(OUTAGE, [RESTART], [1010], PATIENCE) == []
        late = Span(1000, 1150)
        assert faults(late, [RESTART], [1010], PATIENCE) == [
            "nobody drove the job for 150 s, and for 54 s of it no tick said why"
        ]

    def test_an_outage_has_an_end_although_every_tick_says_that_it_waits(self) -> None:
        long = Span(1000, 1140)
        said = [RESTART, *ticks(REQUESTED, first=1015, until=long.end)]
        assert faults(long, said, [], PATIENCE) == [
            "nobody drove the job for 140 s: 140 s that no back-off explains, and 100 s may be"
        ]

    def test_a_back_off_that_was_announced_is_no_fault(self) -> None:
        long = Span(1000, 1140)
        announced = "wait: execution 3 failed: no; attempt 4 of 8 in {} s"
        said = [Tick(1005 + 10 * n, 1006 + 10 * n, announced.format(80 - 10 * n)) for n in range(8)]
        said += [Tick(1087, 1088, "restart"), *ticks(REQUESTED, first=1097, until=long.end)]
        assert faults(long, said, [], PATIENCE) == []


def test_absences_are_merged_and_end_with_a_tick_or_after_their_time() -> None:
    found = absences([30.0, 10.0, 100.0, 500.0], [35.0, 120.0], 60)
    assert found == [Span(10, 35), Span(100, 120), Span(500, 560)]
    assert Span(0, 600).without(found) == 600 - 25 - 20 - 60

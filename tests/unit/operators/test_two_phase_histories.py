"""Random histories of a processor that commits in two phases: restarts, late tasks, dead commits.

Played with the real operator and a processor that writes files, one step after the other; what a
stopped task or a dead execution may still do comes at any later moment.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from dagster_jet.errors import ProcessorError
from dagster_jet.operators.operator import PARTITION_COLUMN, MemoryState, Step, StepInput
from dagster_jet.system import failpoint
from tests.integration.two_phase_child import into_files

from .test_spark_processor import Job, Row, operator, rows_in

HISTORIES, EPOCHS = 20, 8
LATE = 0.3
"""Probability that an attempt comes once more, later."""


class History:
    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.operator = operator(into_files(folder, rows_at_most=2))
        self.job = Job(self.operator, shards=self.rng.randint(1, 3))
        self.decided: list[Row] = []
        self.late: list[Callable[[], object]] = []
        self.seen: Counter[str] = Counter()

    def play(self) -> None:
        epochs = 0
        while epochs < EPOCHS:
            rows = [{"k": self.rng.choice("abcde"), "v": epochs} for _ in range(7)]
            steps = [self.step(shard, rows) for shard in range(self.job.shards)]
            self.wake_somebody()
            if self.rng.random() < 0.3:
                self.seen["died before the decision"] += 1
                self.begin_again()
                continue
            self.job.decide(steps)
            self.decided += rows
            epochs += 1
            while not self.commit():
                self.seen["died in phase 2"] += 1
                self.begin_again()
            assert committed(self.folder) == truth(self.decided)
        self.wake_somebody(all_of_them=True)
        assert committed(self.folder) == truth(self.decided)
        self.begin_again()
        self.job.commit()
        assert not rows_in(self.folder / "prepared"), "nobody else is left to prepare anything"

    def step(self, shard: int, rows: list[Row]) -> Step:
        """One or two attempts, of which one is acknowledged."""
        given = self.job.given(shard, self.job.epoch_id + 1, rows)
        state = self.job.states[shard]
        attempts = [self.operator.step(given, state) for _ in range(self.rng.randint(1, 2))]
        self.comes_late(self.operator.step, given, state)
        return self.rng.choice(attempts)

    def commit(self) -> bool:
        """Phase 2, with a death between any two transactions."""
        if self.rng.random() < 0.5:
            failpoint.configure(f"test.commit:{self.rng.randint(1, 4)}=raise")
        try:
            for shard, state in enumerate(self.job.states):
                given = self.job.given(shard, self.job.epoch_id)
                self.comes_late(self.operator.commit, given, state)
                self.operator.commit(given, state)
                self.wake_somebody()
        except ProcessorError:
            return False
        finally:
            failpoint.configure("")
        return True

    def comes_late(
        self, call: Callable[[StepInput, MemoryState], object], given: StepInput, state: MemoryState
    ) -> None:
        if self.rng.random() < LATE:
            before = MemoryState(self.operator)
            before.append(state.scan(), None)
            self.late.append(lambda: call(given, before))

    def wake_somebody(self, *, all_of_them: bool = False) -> None:
        while self.late and (all_of_them or self.rng.random() < LATE):
            failpoint.configure("")
            self.seen["came late"] += 1
            self.late.pop(self.rng.randrange(len(self.late)))()

    def begin_again(self) -> None:
        """Begins another execution from the decided snapshot, with another number of shards."""
        old, self.job = self.job, Job(self.operator, shards=self.rng.randint(1, 3))
        self.job.execution_id, self.job.epoch_id = old.execution_id + 1, old.epoch_id
        for state in old.states:
            for row in state.scan().to_pylist():
                mine = self.job.states[row[PARTITION_COLUMN] % self.job.shards]
                mine.append(pa.Table.from_pylist([row], schema=self.operator.state_schema), None)


def committed(folder: Path) -> Counter[tuple[str, int]]:
    return Counter((k, v) for k, v, _ in rows_in(folder / "committed").elements())


def truth(rows: list[Row]) -> Counter[tuple[str, int]]:
    return Counter((row["k"], row["v"]) for row in rows)


def test_whatever_happens_decided_rows_are_committed_once_and_no_others(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(HISTORIES):
        history = History(seed, tmp_path / str(seed))
        try:
            history.play()
        except AssertionError as wrong:
            raise AssertionError(f"seed {seed}: {wrong}") from wrong
        seen += history.seen
    assert all(seen[what] > HISTORIES for what in ("came late", "died before the decision")), seen
    assert seen["died in phase 2"] > HISTORIES, seen

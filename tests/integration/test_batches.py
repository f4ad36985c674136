"""A stateful function over tables on Spark: killed, restarted at another parallelism, its results
compared with those of a loop over the input's rows; its state read, planned, and changed."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from dagster_jet import JobConfig
from dagster_jet.errors import JetError, UserFunctionError
from tests.long import long

from . import batches_child, child
from .batches_child import LAG_MS, TTL_MS, balances
from .oracle import Rows, by_manifest, committed, difference
from .world import World, write_input

RESULT, LATE = ("k", "ts", "n", "total"), ("k", "ts", "v")
FILES, ROWS = 12, 20


class BatchesWorld(World):
    """A world whose child runs the pipeline of `batches_child`."""

    driver = staticmethod(batches_child.main)

    def fill(self, *_: int, copies: int = 1, **__: int) -> BatchesWorld:
        """Distinct times of each key, so that its order is certain. A row is far behind the
        watermark or not at all, and a key comes in every file or stays away for far longer than its
        time to live: by which epoch the watermark has moved makes no difference.

        Args:
            copies: so many times as many rows and keys.
        """
        for number in range(FILES):
            rng = random.Random(f"batches {number}")
            keys = "de" if 3 <= number < 9 else "abc"
            rows = [
                {
                    "k": f"{keys[place % len(keys)]}{copy or ''}",
                    "ts": (number + 1) * 1000 + offset,
                    "v": rng.randrange(100),
                }
                for copy in range(copies)
                for place, offset in enumerate(
                    rng.sample(range(LAG_MS), ROWS) + [-5000, -4999] * (number > 2)
                )
            ]
            rng.shuffle(rows)
            write_input(self.folder / "in" / "left", number, rows)
        return self

    def expected(self) -> dict[str, Rows]:
        """One file is one epoch: its rows by time, then what the new watermark forgets."""
        results: Rows = Counter()
        late: Rows = Counter()
        states: dict[str, list[int]] = {}
        touches: dict[str, int] = {}
        before = -(10**9)
        for path in sorted((self.folder / "in" / "left").glob("*.json")):
            lines = path.read_text("utf-8").splitlines()
            rows = sorted(map(json.loads, lines), key=lambda row: row["ts"])
            for row in rows:
                k, ts, v = row["k"], row["ts"], row["v"]
                if ts < before:
                    late[k, ts, v] += 1
                    continue
                touches[k] = max(ts, touches.get(k, ts))
                if v % 7 == 0:
                    states.pop(k, None)
                    continue
                state = states.setdefault(k, [0, 0])
                state[0], state[1] = state[0] + 1, state[1] + v
                results[(k, ts, *state)] += 1
            before = max(before, max(row["ts"] for row in rows) - LAG_MS)
            for k in [k for k, touch in touches.items() if touch < before - TTL_MS]:
                del touches[k]
                if k in states:
                    n, total = states.pop(k)
                    results[k, None, n, -total] += 1
        for k, (n, total) in states.items():
            results[k, None, n, -total] += 1  # at the end of the input
        return {"balances": results, "late": late}

    def committed(self) -> dict[str, Rows]:
        return {
            "balances": committed(self.folder / "out" / "balances", RESULT),
            "late": committed(self.folder / "out" / "late", LATE),
        }

    def assert_nothing_doubled(self) -> None:
        found = by_manifest(self.folder / "out" / "balances", RESULT)
        assert not found - self.expected()["balances"]


@pytest.fixture
def world(world: World) -> BatchesWorld:
    return BatchesWorld(world.folder, world.fail_points, world.spark).fill()


@long  # the rows are compared below, a function is killed in test_dead_letters.py
def test_killed_rescaled_and_compared(world: BatchesWorld) -> None:
    expected = world.expected()
    assert expected["late"].total() == 2 * (FILES - 3)
    last_words = Counter(k for k, ts, _, _ in expected["balances"] if ts is None)
    assert max(last_words.values()) == 2, "some keys are forgotten in the middle"
    world.run_child("record.snapshot.after:3=kill", sharded=True)
    world.assert_nothing_doubled()
    world.run_child("files.commit.file:4=kill", config={"parallelism": 3})
    world.assert_nothing_doubled()
    with world.jet() as jet:
        config = JobConfig(**{**child.CONFIG, "parallelism": 5})
        jet.run(balances(world.folder), config, until="completed", on_event=world.see)
    for name, rows in expected.items():
        assert not difference(world.committed()[name], rows), name


def test_its_state_is_columns_that_are_read_planned_and_kept(world: BatchesWorld) -> None:
    with world.jet() as jet:
        config = JobConfig(**child.CONFIG)
        jet.run(balances(world.folder), config, until="drained", on_event=world.see)
        state = jet.job("balances").read_state("balances")
        assert state is not None and {"k", "n", "total"} <= set(state.column_names)
        assert all(row["n"] > 0 for row in state.to_pylist() if row["n"] is not None)
        (kept,) = [c for c in jet.plan(balances(world.folder)) if c.stage == "balances"]
        assert (kept.kind, kept.change.value) == ("map_stateful_in_batches", "kept")
        wider = balances(world.folder, f"{batches_child.STATE}, worst long")
        (change,) = [c for c in jet.plan(wider) if c.is_refused]
        assert change.stage == "balances"
        assert change.reason == "its state has no column 'worst', which it needs now"
        with pytest.raises(JetError, match=r"stage 'balances'.*no column 'worst'"):
            jet.run(wider, config, until="drained")
        jet.run(balances(world.folder), config, until="completed", on_event=world.see)
    assert not difference(world.committed()["balances"], world.expected()["balances"])


def test_results_that_do_not_fit_name_job_stage_and_column(world: BatchesWorld) -> None:
    import pyarrow as pa

    with world.jet() as jet, pytest.raises(UserFunctionError) as caught:
        jet.run(balances(world.folder, total_type=pa.float64()), JobConfig(**child.CONFIG))
    assert (caught.value.job, caught.value.stage) == ("balances", "balances")
    assert "returned results whose column 'total' is double, expected int64" in str(caught.value)
    assert not any(world.committed().values())

"""Rows that a stateful function cannot take: killed, restarted, results and dead letters compared.

What both must hold is computed from the input files, one row after the other.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from datetime import datetime, timezone
from typing import Any

import pytest

from dagster_jet import JobConfig, JobResult
from dagster_jet.errors import UserFunctionError
from dagster_jet.execution import epoch_driver
from dagster_jet.execution.events import ExecutionStarted, SnapshotCommitted
from dagster_jet.snapshot.record import JobStatus
from tests.long import long

from . import child, dead_letter_child
from .oracle import Rows, by_manifest, committed, difference, input_rows, windowed
from .world import World, write_input

RESULT, DEAD = ("k", "ts", "n", "total"), ("source", "position", "reason", "raw")
FILES, ROWS = 7, 20


class DeadLetterWorld(World):
    """A world whose child and whose runs take a pipeline of `dead_letter_child`."""

    driver = staticmethod(dead_letter_child.main)

    def fill(self, *_: Any, **__: Any) -> DeadLetterWorld:
        """Times are distinct: in which order a key's rows are handed over is certain."""
        rng = random.Random("dead letters")
        for number in range(FILES):
            rows = [
                {"k": rng.choice("abc"), "ts": number * 1000 + offset, "v": rng.randrange(100)}
                for offset in rng.sample(range(1000), ROWS)
            ]
            write_input(self.folder / "in" / "left", number, rows)
        return self

    def expected(self) -> dict[str, Rows]:
        results: Rows = Counter()
        dead: Rows = Counter()
        balances: dict[str, list[int]] = defaultdict(list)
        for row in sorted(input_rows(self.folder / "in" / "left"), key=lambda row: row["ts"]):
            if row["v"] % 7 and row["v"] % 11:
                mine = balances[row["k"]]
                mine.append(row["v"])
                results[row["k"], row["ts"], len(mine), sum(mine)] += 1
                continue
            at = datetime.fromtimestamp(row["ts"] / 1000, timezone.utc)
            wrong = sum(balances[row["k"]], row["v"])
            reason = (
                f"ValueError: {row['v']} is bad"
                if row["v"] % 7 == 0
                else f"returned '{wrong}' for the column total, which is int64 "
                "(expected an integer, got a str)"
            )
            position = f"k={row['k']!r} at {at.isoformat(timespec='milliseconds')}"
            dead["balances", position, reason, json.dumps(row, separators=(",", ":"))] += 1
        return {"balances": results, "dead": dead}

    def committed(self) -> dict[str, Rows]:
        return {
            "balances": committed(self.folder / "out" / "balances", RESULT),
            "dead": committed(self.folder / "out" / "dead", DEAD),
        }

    def assert_nothing_doubled(self) -> None:
        for name, columns in (("balances", RESULT), ("dead", DEAD)):
            found = by_manifest(self.folder / "out" / name, columns)
            assert not found - self.expected()[name], name

    def finish(self, pipeline: str, **config: Any) -> JobResult:
        with self.jet() as jet:
            result = jet.run(
                dead_letter_child.PIPELINES[pipeline](self.folder),
                JobConfig(**{**child.CONFIG, **config}),
                until="completed",
                on_event=self.see,
            )
        assert result.status is JobStatus.COMPLETED
        return result


@pytest.fixture
def world(world: World) -> DeadLetterWorld:
    return DeadLetterWorld(world.folder, world.fail_points, world.spark).fill()


def assert_counted(world: DeadLetterWorld, result: JobResult) -> None:
    dead = world.expected()["dead"].total()
    assert result.rows_rejected == dead > 20
    last = world.events_of(SnapshotCommitted)[-1].stages
    assert last["balances"].rejected == last["dead"].rows_out == dead
    assert last["balances"].rows_in == FILES * ROWS
    assert last["balances"].rows_out == FILES * ROWS - dead


@long  # that of letters that other readers get is not
@pytest.mark.parametrize(
    ("rules", "sharded"),
    [
        # A task has prepared the results, and not the dead letters.
        ("files.prepare.after:3=kill", True),
        # One of the two sinks is committed.
        pytest.param("files.commit.file:5=kill", False, marks=long),
    ],
)
def test_written_beside_the_results_and_killed(
    world: DeadLetterWorld, rules: str, sharded: bool
) -> None:
    world.run_child(rules, pipeline="beside", sharded=sharded)
    world.assert_nothing_doubled()
    result = world.finish("beside", parallelism=3)
    for name, expected in world.expected().items():
        assert not difference(world.committed()[name], expected), name
    assert_counted(world, result)
    assert world.staged() == []


@long
@pytest.mark.parametrize(
    ("rules", "sharded"),
    [("record.snapshot.after:4=kill", True), ("maps.commit.applied:2=kill", False)],
)
def test_passed_on_to_other_readers_and_killed(
    world: DeadLetterWorld, rules: str, sharded: bool
) -> None:
    world.run_child(rules, pipeline="passed_on", sharded=sharded)
    world.assert_nothing_doubled()
    result = world.finish("passed_on", parallelism=3)
    expected = world.expected()
    for name in expected:
        assert not difference(world.committed()[name], expected[name]), name
    assert_counted(world, result)
    results = [dict(zip(RESULT, row, strict=True)) for row in expected["balances"].elements()]
    counts = Counter((k, s, e, n) for k, s, e, n, _ in windowed(results, 2000, total="total"))
    columns = ("k", "window_start", "window_end", "rows")
    assert committed(world.folder / "out" / "counts", columns) == counts
    with world.jet() as jet:
        found = dict(jet.map("dead").items())
    assert found == {position: raw for _, position, _, raw in expected["dead"]}


@long  # shards are tasks of their own above, too
def test_every_shard_is_a_task_of_its_own(
    world: DeadLetterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_driver, "FEW_GROUPS", -1)
    result = world.finish("passed_on", parallelism=3)
    for name, expected in world.expected().items():
        assert not difference(world.committed()[name], expected), name
    assert_counted(world, result)


def test_without_the_option_the_job_fails_and_names_the_row_and_goes_on_with_it(
    world: DeadLetterWorld,
) -> None:
    """Two good files, one with a bad row that its watermark passes, and those of the others."""
    for number in (0, 1):
        rows = [{"k": "a", "ts": number * 1000 + n, "v": n} for n in (1, 2, 3)]
        write_input(world.folder / "in" / "left", number, rows)
    bad = {"k": "a", "ts": 2400, "v": 70}
    rows = [{"k": "a", "ts": 2399, "v": 1}, bad, {"k": "a", "ts": 2999, "v": 1}]
    write_input(world.folder / "in" / "left", 2, rows)
    with world.jet() as jet, pytest.raises(UserFunctionError) as told:
        config = JobConfig(**{**child.CONFIG, "restart_attempts_max": 0})
        jet.run(dead_letter_child.failing(world.folder), config, until="completed")
    said = str(told.value)
    for part in (
        *("job 'beside'", "stage 'balances'", "k='a' at 1970-01-01T00:00:02.400+00:00"),
        *("add raised ValueError: 70 is bad.", 'The row: {"k":"a","ts":2400,"v":70}'),
        *('on_error="dead-letter"', "dead_letter_to()"),
    ):
        assert part in said, said

    world.finish("beside")
    for name, expected in world.expected().items():
        assert not difference(world.committed()[name], expected), name
    restored = world.events_of(ExecutionStarted)[0].restored_epoch_id
    assert restored is not None and restored >= 1, "the state is that of the job that failed"

"""Counters of users' functions are those of the committed rows, however often tasks ran."""

from __future__ import annotations

import json
import random
from collections import Counter
from math import inf

import pytest

from dagster_jet import JobConfig, JobResult, Pipeline, job_context, sinks, sources
from dagster_jet.core.measures import Distribution
from dagster_jet.errors import UserFunctionError
from dagster_jet.execution.events import ExecutionRestarting
from tests.long import long

from . import child, counters_child
from .counters_child import BUCKETS, LIMIT
from .crash_table import AFTER_DECISION
from .oracle import committed, input_rows
from .test_task_retries import MASTER, RETRIES
from .world import World, write_input

PARAMETERS = {"limit": LIMIT}
COLUMNS = ("k", "ts", "v")


class CountersWorld(World):
    """A world whose child and whose runs take the pipeline of `counters_child`."""

    driver = staticmethod(counters_child.main)

    def write(self, seed: str) -> CountersWorld:
        """Files of random sizes: an epoch each."""
        rng = random.Random(seed)
        for number in range(6):
            rows = [
                {"k": rng.choice("abc"), "ts": number * 1000 + at, "v": rng.randrange(100)}
                for at in sorted(rng.sample(range(1000), rng.randrange(1, 40)))
            ]
            write_input(self.folder / "in" / "left", number, rows)
        return self

    def finish(self, **config: object) -> JobResult:
        config = {**child.CONFIG, **config, "parameters": PARAMETERS}
        with self.jet() as jet:
            return jet.run(
                counters_child.pipeline(self.folder), JobConfig(**config), until="completed",
                on_event=self.see,
            )  # fmt: skip

    def assert_counted(self, result: JobResult) -> None:
        rows = input_rows(self.folder / "in" / "left")
        good = [row for row in rows if row["v"] % 7]
        assert committed(self.folder / "out" / "passed", COLUMNS) == Counter(
            (row["k"], row["ts"], row["v"]) for row in good
        )
        of = {
            name: {"seen": len(some), "large": sum(row["v"] > LIMIT for row in some)}
            for name, some in (("asked", rows), ("taken", good), ("passed", good))
        }
        assert result.counted == of
        values = {"asked": rows, "taken": good, "passed": good}
        assert result.histograms == {
            name: {"values": distribution([row["v"] for row in some])}
            for name, some in values.items()
        }
        assert result.gauges == {"asked": {"file": 5}}
        with self.jet() as jet:
            shown = json.loads(json.dumps(jet.job(child.JOB).explain().to_json()))["stages"]
        assert {name: shown[name]["counted"] for name in of} == of
        assert {shown[name]["measured"]["values"]["sum"] for name in of} == {
            sum(row["v"] for row in some) for some in values.values()
        }

    def repeated(self) -> int:
        """Rows that the processor has counted in attempts that do not count."""
        attempts = (self.folder / "attempts").read_text().splitlines()
        good = sum(row["v"] % 7 > 0 for row in input_rows(self.folder / "in" / "left"))
        return len(attempts) - good


def distribution(values: list[int]) -> Distribution:
    bounds = (*BUCKETS, inf)
    numbers = dict.fromkeys(bounds, 0)
    for value in values:
        numbers[next(bound for bound in bounds if value <= bound)] += 1
    return Distribution(len(values), sum(values), numbers)


@pytest.fixture
def world(world: World, request: pytest.FixtureRequest) -> CountersWorld:
    return CountersWorld(world.folder, world.fail_points, world.spark).write(request.node.name)


@pytest.mark.parametrize(
    "rules", ["manifest.after:3=kill", pytest.param(AFTER_DECISION, marks=long)]
)
def test_killed_and_started_again_with_other_shards(world: CountersWorld, rules: str) -> None:
    world.run_child(rules, config={"parameters": PARAMETERS}, sharded=True)
    result = world.finish(parallelism=3)
    world.assert_counted(result)
    assert world.repeated() > 0 or rules == AFTER_DECISION


@long
def test_an_execution_restarts_in_the_same_process(world: CountersWorld) -> None:
    """A task fails behind its steps; the driver, and what it has summed, live on."""
    with world.rules_in_workers("files.prepare.after:2=raise"):
        result = world.finish()
    assert world.events_of(ExecutionRestarting)
    world.assert_counted(result)
    assert world.repeated() > 0


@long
def test_every_task_runs_three_times(world: CountersWorld) -> None:
    process = world.start_child(
        RETRIES, own_jvm=True, master=MASTER, sharded=True, config={"parameters": PARAMETERS}
    )
    process.join(240)
    assert process.exitcode == 0, world.child_output.read_text("utf-8")
    with world.jet() as jet:
        world.assert_counted(jet.job(child.JOB).result())
    assert world.repeated() > 0


def test_too_many_names_fail_the_job(world: CountersWorld) -> None:
    """Each task knows less than the limit; all of them together are refused."""

    def count(state: object, row: dict[str, int]) -> None:
        job_context().metrics.counter(f"user_{row['v']}").add()

    p = Pipeline("named")
    rows = p.read_from(sources.items([{"v": n} for n in range(60)], schema="v long"), name="rows")
    rows.group_by("v").map_stateful(
        count, create=int, output_schema="v long", name="per_user"
    ).write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
    said = r"job 'named', stage 'per_user': .*more than 50 names.*fixed names"
    with world.jet() as jet, pytest.raises(UserFunctionError, match=said):
        jet.run(p, JobConfig(max_items_per_epoch=10), until="drained")

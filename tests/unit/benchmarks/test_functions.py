"""The functions that are raced against each other are one function."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from benchmarks import function_race, row_operators
from benchmarks.cases import case_named
from benchmarks.operators import stateful_map
from dagster_jet.operators.operator import MemoryState, StepInput
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches
from tests.unit.operators.stepping import Stepping, addressed, as_multiset

ROWS = pa.schema([("k", pa.string()), ("v", pa.int64())])
STATE = [("n", pa.int64()), ("total", pa.int64())]
TOTALS = pa.schema([("k", pa.string()), *STATE])
PER_ROW = StatefulMap(
    "s", ("k",), ROWS, TOTALS, stateful_map.running_totals, stateful_map.nothing_yet
)


@pytest.mark.parametrize("function", [stateful_map.in_numpy, stateful_map.in_frames])
def test_the_totals_of_whole_jobs(function) -> None:
    in_batches = StatefulMapInBatches("s", ("k",), ROWS, TOTALS, pa.schema(STATE), function)
    random, runs = Random(4), [Stepping(PER_ROW), Stepping(in_batches)]
    for _ in range(5):
        rows = [
            addressed(time, {"k": random.choice("abcdefg")}, v=random.randrange(1000))
            for time in random.sample(range(10_000), 60)
        ]
        one, other = (run.step(rows) for run in runs)
        assert as_multiset(one) == as_multiset(other)


@pytest.mark.parametrize("name", ["map_stateful, NumPy", "map_stateful, pandas"])
def test_the_totals_of_single_steps(name: str) -> None:
    operators = row_operators.operators()
    pair = (operators["map_stateful, text and number"], operators[name])
    states = [MemoryState(operator) for operator in pair]
    for step in range(3):
        found = []
        for operator, state in zip(pair, states, strict=True):
            arrived = row_operators.batch(operator.input_schemas[0], 2000, 50, step)
            done = operator.step(StepInput((arrived,), None, None, step + 1), state)
            state.append(done.delta, None)
            found.append(sorted(map(tuple, (row.values() for row in done.results.to_pylist()))))
        assert [row[:2] for row in found[0]] == [row[:2] for row in found[1]]
        sums = [[row[2] for row in rows] for rows in found]
        assert sums[1] == pytest.approx(sums[0])


@pytest.mark.parametrize("way", function_race.WAYS, ids=lambda way: way.name)
def test_the_process_of_a_way_finds_its_case(way: function_race.Way, tmp_path: Path) -> None:
    case = case_named(way.case.name)
    assert case == way.case
    assert not way.variant or way.variant in case.queries
    (stage,) = case.pipeline(tmp_path / "in", tmp_path / "out").graph.stages
    assert stage.name == "totals"

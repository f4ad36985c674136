"""All cases by name: the process that runs an engine is told no more than that."""

from __future__ import annotations

from benchmarks import count_case, rollup_case
from benchmarks.case import Case
from benchmarks.operators import OPERATORS, stateful_map

_CASES = (
    count_case.CASE,
    rollup_case.CASE,
    *(race.case for race in OPERATORS.values()),
    stateful_map.IN_NUMPY,
    stateful_map.IN_FRAMES,
)


def case_named(name: str) -> Case:
    return next(case for case in _CASES if case.name == name)

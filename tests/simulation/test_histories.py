"""More than a hundred histories per run: crashes, sleepers, late and lost answers; rows decide.

JET_SIMULATION_HISTORIES=100000 pytest tests/simulation/test_histories.py    # a soak
JET_SIMULATION_SEED=4711 pytest tests/simulation -k one_history              # one, again
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import dagster_jet

from .scenario import ALL_POINTS
from .world import World, play

HISTORIES = int(os.environ.get("JET_SIMULATION_HISTORIES", "120"))
BLOCKS = 6
RARE = (429, 303, 129)
"""Seeds that have shown what few of them show."""
SEED = os.environ.get("JET_SIMULATION_SEED")

MUST_HAVE_HAPPENED = (
    "a delayed record write was fenced",
    "a frozen process woke to find a successor",
    "an answer came twice",
    "an answer reached the next execution",
    "the answer of a record write was lost",
    "the answer of a manifest write was lost",
    "the answer of a commit was lost",
    "an epoch's answer was lost",
    "a commit threw",
    "chunks could not be stored",
    "state was saved after its task",
    "a snapshot was decided under a running epoch",
    "a snapshot was given up under a running epoch",
    "a connector failed at any moment",
    "cancelled",
    "cancelled in recovery",
    "a failure: FAILED",
    "a failure: SUSPENDED",
    "the same ack came twice",
    "two attempts of a task acked",
    "an ack was missing",
    "a late attempt prepared",
    "the store was full for a while",
    "a journal could not be stored",
    "a task died while it wrote",
    "owed to a sink that left",
    "a backlog was held",
    "a poll missed a backlog",
    "owed to a sink that moved",
    "a start was refused that could not reopen a sink",
    "a pipeline that lacks a stage was refused",
    "a stage was added",
    "written: rewound",
    "an export was brought in",
    "an export that does not fit was refused",
    "written: reserved",
    "going back to a damaged snapshot was refused",
    "a damaged older snapshot was dropped",
    "a place that was set back was refused",
    "rescaled at a restart",
    "an epoch of twelve writers was committed",
    "rows were held back",
    "three deaths in recovery, one after the other",
)


@cache
def histories(block: int) -> Counter[str]:
    """Plays one block of seeds; returns what happened in all of them together."""
    seen: Counter[str] = Counter()
    for seed in range(block, HISTORIES, BLOCKS):
        seen.update(play(seed).seen)
    return seen


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_history_loses_or_doubles_a_row(block: int) -> None:
    assert histories(block)


def test_everything_that_can_happen_has_happened() -> None:
    """Every command, with a crash on either side; a new command cannot stay untried.

    What is rare may need up to 500 more histories.
    """
    seen = sum((histories(block) for block in range(BLOCKS)), Counter[str]())
    wanted = (*(f"crash {point}" for point in ALL_POINTS), *MUST_HAVE_HAPPENED)
    more = itertools.chain(RARE, range(HISTORIES, HISTORIES + 500))
    while (never := [what for what in wanted if not seen[what]]) and (seed := next(more, None)):
        seen.update(play(seed).seen)
    assert not never, f"never: {never}"


def test_a_seed_is_a_history() -> None:
    """The same story in another process, whose sets have another order."""
    script = "from simulation.world import play; print(*play(11).story, sep='\\n')"
    roots = (Path(__file__).parents[1], Path(dagster_jet.__file__).parents[1])
    path = os.pathsep.join(str(root) for root in roots)
    told = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(told) == 1


def test_one_history() -> None:
    """The history of JET_SIMULATION_SEED, told as a story (``pytest -s``); of seed 0 by default."""
    world: World = play(int(SEED or 0))
    print(*world.story, sep="\n")
    assert world.story

"""Histories in which sinks hold rows back: they come with a later snapshot, the next start, or the
end, and no row is lost or doubled."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace

import pytest

from .scenario import Scenario
from .world import World

BLOCKS = 4
HISTORIES = min(int(os.environ.get("JET_SIMULATION_HISTORIES", "120")) // 3, 4_000)
"""They are a kind of those in test_histories.py, which are more."""


def history(seed: int) -> World:
    scenario = replace(Scenario.draw(random.Random(seed)), holds_back=True)
    world = World(seed, scenario=scenario)
    world.run()
    return world


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_history_with_rows_held_back_loses_or_doubles_one(block: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(block, HISTORIES, BLOCKS):
        seen.update(history(seed).seen)
    assert seen["rows were held back"] > HISTORIES / BLOCKS

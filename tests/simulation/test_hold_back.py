"""Histories in which sinks hold rows back: they come with a later snapshot, the next start, or the
end, and no row is lost or doubled."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from .scenario import Scenario
from .world import World

HISTORIES = 40


def history(seed: int) -> World:
    scenario = replace(Scenario.draw(random.Random(seed)), holds_back=True)
    world = World(seed, scenario=scenario)
    world.run()
    return world


@pytest.mark.parametrize("block", range(4))
def test_no_history_with_rows_held_back_loses_or_doubles_one(block: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(block, HISTORIES * 4, 4):
        seen.update(history(seed).seen)
    assert seen["rows were held back"] > HISTORIES

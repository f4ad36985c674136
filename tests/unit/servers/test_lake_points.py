"""The named points at which the soak kills."""

from __future__ import annotations

from tests.integration.crash_table import all_points
from tests.soak.lake_round import POINTS


def test_the_soak_kills_at_points_that_there_are() -> None:
    assert {*POINTS} <= all_points() and len({*POINTS}) == len(POINTS)

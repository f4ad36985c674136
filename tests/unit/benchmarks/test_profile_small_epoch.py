"""The profile wraps the engine by name."""

from __future__ import annotations

import pytest

from benchmarks.profile_small_epoch import CALLS, PHASES


@pytest.mark.parametrize(("owner", "name", "phase"), CALLS)
def test_the_engine_still_has_what_is_timed(owner: type, name: str, phase: str) -> None:
    assert callable(getattr(owner, name))
    assert phase in PHASES

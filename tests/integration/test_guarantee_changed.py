"""The guarantee is changed between a decision and its commit: what is decided is committed, and no
row is written once more to a place that has it already."""

from __future__ import annotations

import pytest

from dagster_jet.errors import ConfigurationError
from dagster_jet.snapshot.record import JobStatus

from .crash_table import AFTER_DECISION
from .world import World


def test_what_is_decided_is_committed_under_every_guarantee(world: World) -> None:
    world.fill()
    world.run_child(AFTER_DECISION)
    assert world.staged()
    with pytest.raises(ConfigurationError, match=r"guarantee is now.*would be written twice"):
        world.run(guarantee="none")
    with world.jet() as jet:
        newest = jet.job(world.job).snapshots()[0]
        assert jet.job(world.job).ledger().consistent_epoch == newest.epoch_id, (
            "committed, then refused"
        )
    world.assert_nothing_doubled()
    assert world.run(guarantee="at-least-once").status is JobStatus.COMPLETED
    world.assert_exactly_once()

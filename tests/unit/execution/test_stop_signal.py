"""Precedence of several requests to stop."""

from __future__ import annotations

import pytest

from dagster_jet.execution.stopping import StopSignal
from dagster_jet.snapshot.protocol import StopKind


@pytest.mark.parametrize(
    ("requests", "counts"),
    [
        ([StopKind.SUSPEND, StopKind.SHUTDOWN], StopKind.SUSPEND),
        ([StopKind.SUSPEND, StopKind.CANCEL], StopKind.CANCEL),
        ([StopKind.RESTART, StopKind.COMPLETE], StopKind.COMPLETE),
        ([StopKind.COMPLETE, StopKind.RESTART], StopKind.COMPLETE),
        ([StopKind.CANCEL, StopKind.RESTART], StopKind.CANCEL),
    ],
)
def test_the_first_counts_but_not_against_all(requests: list[StopKind], counts: StopKind) -> None:
    signal = StopSignal()
    for kind in requests:
        signal.request(kind)
    assert signal.kind is counts
    signal.restarted()
    assert signal.kind is counts and signal.event.is_set(), "asked for while it restarted"


def test_a_restart_that_is_done_leaves_nothing() -> None:
    signal = StopSignal()
    signal.request(StopKind.RESTART)
    signal.restarted()
    assert signal.kind is None and not signal.event.is_set()

"""Whether a producer gets on is judged by what it has got rid of."""

from __future__ import annotations

import itertools

import pytest

from dagster_jet.connectors.kafka import transactions
from tests.servers import wait_until


def test_errors_that_pile_up_in_the_queue_are_no_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost network makes new ones for ever, and a call would never end."""
    monkeypatch.setattr(transactions, "SILENCE_S", 0.05)
    queued = itertools.count()
    advance = transactions.Advance(lambda: next(queued))
    wait_until(advance.has_stopped, within=2)

"""The three processing guarantees."""

from __future__ import annotations

from enum import Enum


class Guarantee(str, Enum):
    """What the committed output looks like after a crash."""

    NONE = "none"
    """No snapshots: a restart begins from scratch."""
    AT_LEAST_ONCE = "at-least-once"
    """Barriers are not waited for: items behind a barrier may be in the state that is saved."""
    EXACTLY_ONCE = "exactly-once"
    """An input that has had its barrier is not read until all others have had theirs."""

    def at_most(self, limit: Guarantee) -> Guarantee:
        """The weaker of the two."""
        order = list(Guarantee)
        return min(self, limit, key=order.index)

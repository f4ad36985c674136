"""The three processing guarantees."""

from __future__ import annotations

from enum import Enum


class Guarantee(str, Enum):
    """Guarantee about the committed output after a crash."""

    NONE = "none"
    """No snapshots: a restart begins from scratch."""
    AT_LEAST_ONCE = "at-least-once"
    """Barriers are not aligned: items behind a barrier may be in the saved state."""
    EXACTLY_ONCE = "exactly-once"
    """After its barrier an input is not read until all others have had theirs."""

    def at_most(self, limit: Guarantee) -> Guarantee:
        """Return the weaker of the two guarantees."""
        order = list(Guarantee)
        return min(self, limit, key=order.index)

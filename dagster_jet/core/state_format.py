"""Format of saved user state: plain values, or pickles if requested."""

from __future__ import annotations

from enum import Enum


class StateFormat(Enum):
    """Format of saved states, accumulators and processors' entries."""

    PLAIN = "plain"
    """Plain values; pickles are refused."""
    PICKLE = "pickle"
    """Anything that can be pickled. Plain values saved earlier can be read, too."""

    @property
    def cure(self) -> str:
        """Advice for a value that cannot be saved."""
        if self is StateFormat.PICKLE:
            return "Keep plain values, or objects that `pickle` can save."
        return (
            "Keep plain values (numbers, text, bytes, lists, tuples, dicts, sets, times, Decimal, "
            'UUID), for example dataclasses.asdict(...); or say state_format="pickle".'
        )

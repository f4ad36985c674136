"""How what a user's code keeps is saved: as plain values, or pickled where that is asked for."""

from __future__ import annotations

from enum import Enum


class StateFormat(Enum):
    """How states, accumulators and processors' entries are saved."""

    PLAIN = "plain"
    """Plain values; pickles are refused."""
    PICKLE = "pickle"
    """Anything that can be pickled. Plain values that were saved before are read, too."""

    @property
    def cure(self) -> str:
        """Of a value that cannot be saved."""
        if self is StateFormat.PICKLE:
            return "Keep plain values, or objects that `pickle` can save."
        return (
            "Keep plain values (numbers, text, bytes, lists, tuples, dicts, sets, times, Decimal, "
            'UUID), for example dataclasses.asdict(...); or say state_format="pickle".'
        )

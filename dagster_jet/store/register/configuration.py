"""Configurations: the members of a register, now and before. Pure; members are names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from dagster_jet.errors import ConfigurationError

M = TypeVar("M")


@dataclass(frozen=True, repr=False)
class Configuration(Generic[M]):
    """A numbered set of members.

    Attributes:
        number: 0 for the members at creation, one more with every change. A number always stands
            for the same set of members.
        members: all members by id, including those that are down: they count for majorities.
        previous: the configuration before, while the change from it is under way and registers may
            not have moved yet. None: every register that was ever written is on a majority of
            ``members`` (the configuration is *stable*). ``move_registers`` makes a configuration
            stable, and only a stable one may get a successor.

    Raises:
        ConfigurationError: no member, or ``previous`` is not the stable predecessor.
    """

    number: int
    members: Mapping[str, M]
    previous: Configuration[M] | None = None

    def __post_init__(self) -> None:
        if not self.members:
            raise ConfigurationError(f"configuration {self.number} of the store has no member.")
        if self.previous is None:
            return
        if self.previous.number + 1 != self.number or self.previous.previous is not None:
            raise ConfigurationError(
                f"configuration {self.number} must follow a stable configuration "
                f"{self.number - 1}, not {self.previous!r}."
            )

    @property
    def is_stable(self) -> bool:
        """Whether this process knows of no change under way."""
        return self.previous is None

    def __repr__(self) -> str:
        change = "" if self.previous is None else f", previous={self.previous!r}"
        return f"Configuration({self.number}, {sorted(self.members)}{change})"

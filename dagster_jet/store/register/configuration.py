"""Configurations: which members a register is on, and was on before. Pure; members are names."""

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
        number: 0 for the members a store is created with, then one more with every change. A
            number means one set of members for ever.
        members: all of them by id, also those that are down: majorities are counted among all.
        previous: the configuration before, while the change from it is under way: not every
            register may have moved yet. None: every register that was ever written is on a
            majority of ``members`` (the configuration is *stable*); this is what
            ``move_registers`` establishes, and only a stable one may get a successor.

    Raises:
        ConfigurationError: no member, or a ``previous`` that is not the stable predecessor.
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
        """Whether no change is under way, as far as this process knows."""
        return self.previous is None

    def __repr__(self) -> str:
        change = "" if self.previous is None else f", previous={self.previous!r}"
        return f"Configuration({self.number}, {sorted(self.members)}{change})"

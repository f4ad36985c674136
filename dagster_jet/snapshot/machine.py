"""A state machine whose state changes in one place, along a table of legal moves."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar, Generic, TypeVar

State = TypeVar("State", bound=Enum)
Moves = Mapping[Enum, frozenset[Enum]]
"""For every state, the states that may follow it."""


class IllegalMoveError(RuntimeError):
    """A machine was to go where its table does not let it: a bug, never an outage."""


class Machine(Generic[State]):
    """Base of the protocol's machines."""

    moves: ClassVar[Moves]

    def __init__(self, state: State) -> None:
        self.state = state

    def become(self, state: State) -> None:
        """Moves on; nothing else assigns `state`.

        Raises:
            IllegalMoveError: `moves` does not have it.
        """
        if state not in self.moves[self.state]:
            name = type(self).__name__
            raise IllegalMoveError(f"{name}: {self.state.name} -> {state.name} is no legal move")
        self.state = state

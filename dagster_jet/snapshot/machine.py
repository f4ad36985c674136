"""A state machine with a table of legal moves and one method that changes the state."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar, Generic, TypeVar

State = TypeVar("State", bound=Enum)
Moves = Mapping[Enum, frozenset[Enum]]
"""Successor states of every state."""


class IllegalMoveError(RuntimeError):
    """A move that the machine's table does not allow: a bug, never an outage."""


class Machine(Generic[State]):
    """Base class of the protocol's machines."""

    moves: ClassVar[Moves]

    def __init__(self, state: State) -> None:
        self.state = state

    def become(self, state: State) -> None:
        """Changes the state; nothing else assigns `state`.

        Raises:
            IllegalMoveError: `moves` does not allow it.
        """
        if state not in self.moves[self.state]:
            name = type(self).__name__
            raise IllegalMoveError(
                f"{name}: {self.state.name} -> {state.name} is not a legal transition"
            )
        self.state = state

"""What is sent to all tasks, and of which each looks at a part."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class EachPickled(Sequence[T]):
    """Values as pickles of their own: a task that reads one pays nothing for the others."""

    pickles: tuple[bytes, ...]

    @classmethod
    def of(cls, values: Sequence[T]) -> EachPickled[T]:
        if isinstance(values, EachPickled):
            return values
        return cls(tuple(pickle.dumps(one, pickle.HIGHEST_PROTOCOL) for one in values))

    def __len__(self) -> int:
        return len(self.pickles)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return EachPickled(self.pickles[place])
        return pickle.loads(self.pickles[place])  # this execution's driver wrote it

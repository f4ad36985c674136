"""Values that are sent to all tasks although each task reads only some of them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class EachPickled(Sequence[T]):
    """Sequence whose values are pickled one by one: a task unpickles only those it reads."""

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
        return pickle.loads(self.pickles[place])  # written by this execution's driver

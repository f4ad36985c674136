"""Encodes a batch once for several sinks of one task, which write it one after the other."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar

import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")


class OfLastBatch(Generic[P, T]):
    """Calls a function, and keeps the result of the last batch while that batch lives."""

    def __init__(self, function: Callable[Concatenate[pa.RecordBatch, P], T]) -> None:
        self._function = function
        self._batch: weakref.ref[pa.RecordBatch] | None = None
        self._made: tuple[object, T] | None = None

    def __call__(self, batch: pa.RecordBatch, *args: P.args, **kwargs: P.kwargs) -> T:
        is_last = self._batch is not None and self._batch() is batch
        if self._made is None or not is_last or self._made[0] != (args, kwargs):
            self._batch = weakref.ref(batch, self._forget)
            self._made = (args, kwargs), self._function(batch, *args, **kwargs)
        return self._made[1]

    def _forget(self, batch: weakref.ref[pa.RecordBatch]) -> None:
        if self._batch is batch:
            self._batch = self._made = None

"""Calls a user's functions and answers for them: what they raise or return wrongly names its row.

Nothing is kept of a step in which a call failed: the error leaves `Operator.step`, and with it go
the states that were changed and the rows that were collected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, TypeAlias

import pyarrow as pa

from dagster_jet.errors import StoreMismatchError, UserFunctionError
from dagster_jet.processors.operator import TIME_COLUMN
from dagster_jet.processors.python_rows import OutputMismatchError, OutputRows
from dagster_jet.processors.user_state import State, state_from_bytes, state_to_bytes

Row: TypeAlias = "dict[str, Any]"
Function: TypeAlias = "Callable[[State[Any], Row], Any]"
OnEvict: TypeAlias = "Callable[[Row, Any, int], Any]"

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_CURE_CALL = "Correct the function, or filter such rows before this stage."
_CURE_OUTPUT = "Return dicts with exactly the columns of output_schema, in its types."
_CURE_SAVE = "Keep plain data in the state, or objects that `pickle` can save."
_CURE_LOAD = (
    "Keep the classes of saved states importable under their names, and readable by `pickle`; or "
    "start the job anew."
)


class UserCalls:
    """The calls of one step."""

    def __init__(
        self, stage: str, keys: tuple[str, ...], output_schema: pa.Schema, where: pa.Table
    ) -> None:
        """`where`: the rows that are handed over, in order; messages are made from it."""
        self._stage, self._keys, self._where = stage, keys, where
        self._outputs = OutputRows(output_schema)
        self._output_counts: list[int] = []
        self._callers: list[tuple[Callable[..., Any], int | None]] = []

    def over_rows(
        self,
        function: Function,
        create: Callable[[], Any],
        saved: bytes | None,
        rows: Iterator[Row],
        first_row: int,
    ) -> State[Any]:
        """Hands the rows of one key over; returns its state afterwards."""
        self._begin(function, first_row)
        number = first_row
        called: Callable[..., Any] = create
        state: State[Any] = State(None)
        try:
            if saved is None:
                state.renew(create)
            else:
                state.value = self.load(saved, first_row)
            called, add = function, self._outputs.add
            for number, row in enumerate(rows, first_row):  # noqa: B007 - for messages
                if state.value is None and state.is_cleared:
                    called = create
                    state.renew(create)
                    called = function
                add(function(state, row))
        except Exception as error:
            raise self._failure(error, called, number) from error
        return state

    def on_eviction(self, function: OnEvict, key: Row, value: Any, watermark_ms: int) -> None:
        """Lets the function have a last word about a key whose time to live is over."""
        self._begin(function, None)
        try:
            self._outputs.add(function(dict(key), value, watermark_ms))
        except Exception as error:
            raise self._failure(error, function, None, key) from error

    def save(self, value: Any, row: int) -> bytes:
        try:
            return state_to_bytes(value)
        except Exception as error:
            raise UserFunctionError(
                f"the state, a {type(value).__name__}, cannot be saved: {_said(error)}.",
                stage=self._stage,
                position=self._position(row),
                cure=_CURE_SAVE,
            ) from error

    def load(self, saved: bytes, row: int | None) -> Any:
        try:
            return state_from_bytes(saved)
        except StoreMismatchError:
            raise
        except Exception as error:
            raise UserFunctionError(
                f"a saved state cannot be read back: {_said(error)}.",
                stage=self._stage,
                position=None if row is None else self._position(row),
                cure=_CURE_LOAD,
            ) from error

    def results(self) -> pa.Table:
        """Everything returned, as the output schema says."""
        try:
            return self._outputs.to_table()
        except OutputMismatchError as error:
            function, row = self._callers[bisect_right(self._output_counts, error.row) - 1]
            raise self._failure(error, function, row) from None

    def _begin(self, function: Callable[..., Any], row: int | None) -> None:
        self._output_counts.append(len(self._outputs))
        self._callers.append((function, row))

    def _failure(
        self,
        error: Exception,
        function: Callable[..., Any],
        row: int | None,
        key: Row | None = None,
    ) -> Exception:
        if isinstance(error, UserFunctionError | StoreMismatchError):
            return error
        mismatch = isinstance(error, OutputMismatchError)
        name = getattr(function, "__qualname__", repr(function))
        return UserFunctionError(
            f"{name} returned {error}." if mismatch else f"{name} raised {_said(error)}.",
            stage=self._stage,
            position=self._position(row) if row is not None else _named(key),
            cure=_CURE_OUTPUT if mismatch else _CURE_CALL,
        )

    def _position(self, row: int) -> str:
        values = self._where.slice(row, 1).select([*self._keys, TIME_COLUMN]).to_pylist()[0]
        time = _readable(values.pop(TIME_COLUMN))
        return f"{_named(values)} at {time}"


def _readable(time_ms: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{time_ms} ms"


def _named(key: Row | None) -> str | None:
    return None if key is None else ", ".join(f"{name}={value!r}" for name, value in key.items())


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

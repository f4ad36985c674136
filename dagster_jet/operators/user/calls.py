"""Calls a user's functions; errors and wrong results name their row.

If a call fails, the error leaves `Operator.step`, and the step's states and rows are discarded.

With dead letters (`over_good_rows`) only the failing *row* is discarded. Its output is removed. The
function may have changed the state in place before it raised, so the state is rebuilt from its last
stored form, by calling the function again with the good rows since then. Nothing is copied unless a
row fails. A bad row costs one more saving of its key's state, and a good row is passed to the
function at most twice (if the function is deterministic).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa

from dagster_jet.core.job_context import own_metrics
from dagster_jet.core.measures import Measures
from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import StoreMismatchError, UserFunctionError, where_raised
from dagster_jet.operators.address import ADDRESS
from dagster_jet.operators.operator import TIME_COLUMN
from dagster_jet.operators.user import saved_value
from dagster_jet.operators.user.dead_letters import dead_letter_table, row_json
from dagster_jet.operators.user.python_rows import OutputMismatchError, OutputRows, row_dicts
from dagster_jet.operators.user.state import State

Row: TypeAlias = "dict[str, Any]"
Function: TypeAlias = "Callable[[State[Any], Row], Any]"
OnEvict: TypeAlias = "Callable[[Row, Any, int], Any]"
OnTimer: TypeAlias = "Callable[[State[Any], Row, int], Any]"

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ROW_CHARACTERS_MAX = 500
_CURE_ROW = (
    "Correct the function, filter such rows before this stage, or set them aside with "
    'on_error="dead-letter" and dead_letter_to().'
)
_CURE_CALL = "Correct the function; nothing of this epoch was written."
_CURE_LOAD = (
    "Keep the classes of pickled states importable under their old names and readable by "
    "`pickle`, or start the job under a new name."
)


class UserCalls:
    """All calls of one step."""

    def __init__(
        self,
        stage: str,
        keys: tuple[str, ...],
        output_schema: pa.Schema,
        where: pa.Table,
        *,
        state_format: StateFormat = StateFormat.PLAIN,
        has_time: bool = True,
        checks_each: bool = False,
    ) -> None:
        """
        Args:
            where: the rows that are passed to functions, in order; messages are made from them.
            state_format: format in which states are saved.
            has_time: the rows have event time.
            checks_each: in `over_good_rows`, a row with an output of a wrong type is bad, too.
        """
        self._stage, self._keys, self._where = stage, keys, where
        self._rows = where.drop_columns([field.name for field in ADDRESS])
        self._has_time, self._checks_each = has_time, checks_each
        self._format = state_format
        self._outputs = OutputRows(output_schema)
        self._rejected: dict[int, str] = {}
        self._output_counts: list[int] = []
        self._callers: list[tuple[Callable[..., Any], int | None]] = []
        self._metrics = own_metrics()

    def over_rows(
        self,
        function: Function,
        create: Callable[[], Any],
        saved: bytes | None,
        rows: Iterator[Row],
        first_row: int,
    ) -> State[Any]:
        """Calls the function with the rows of one key; returns the key's state afterwards."""
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
            raise self._failure(error, called, number, at_row=called is function) from error
        return state

    def over_good_rows(
        self,
        function: Function,
        create: Callable[[], Any],
        saved: bytes | None,
        rows: Iterator[Row],
        first_row: int,
    ) -> State[Any]:
        """Like `over_rows`, but a row for which the function raises becomes a dead letter."""
        self._begin(function, first_row)
        outputs, rejected, checks_each = self._outputs, self._rejected, self._checks_each
        stored, since, mark = saved, first_row, len(outputs)
        counted = self._metrics.totals
        state = self._from_stored(stored, first_row)
        again: Iterator[Row] = iter(())
        begin = number = first_row
        while True:
            for number, row in enumerate(chain(again, rows), begin):
                if number in rejected:
                    # The rows before it were good: the state is stored, so that they are not passed
                    # a third time.
                    if number > since:
                        stored = None if state.is_cleared else self.save(state.value, number - 1)
                    since, mark, counted = number + 1, len(outputs), self._metrics.totals
                    continue
                if state.value is None and state.is_cleared:
                    self._renew(state, create, number)
                before = len(outputs) if checks_each else 0
                try:
                    outputs.add(function(state, row))
                    if checks_each:
                        outputs.check(before)
                except UserFunctionError:  # of a counter: no row is the cause
                    raise
                except Exception as error:  # noqa: BLE001 - any error makes a dead letter
                    rejected[number] = _reason(error)
                    break
            else:
                break
            outputs.cut(mark)
            self._metrics.take_back(counted)
            state = self._from_stored(stored, first_row)
            again = iter([*self.rows_again(since, number + 1), *again])
            begin = since
        return state

    def is_rejected(self, row: int) -> bool:
        """Whether a row has become a dead letter."""
        return row in self._rejected

    def mark(self) -> tuple[int, int, Measures]:
        """The outputs, calls and metrics so far, for `cut`."""
        return len(self._outputs), len(self._callers), self._metrics.totals

    def cut(self, mark: tuple[int, int, Measures], rows_from: int) -> None:
        """Takes back all that followed `mark`, and the dead letters from a row on."""
        outputs, begun, counted = mark
        self._outputs.cut(outputs)
        self._metrics.take_back(counted)
        del self._output_counts[begun:], self._callers[begun:]
        self._rejected = {n: why for n, why in self._rejected.items() if n < rows_from}

    def rows_again(self, start: int, stop: int) -> Iterator[Row]:
        """The rows, read again: the function may have changed the dicts."""
        return row_dicts(self._rows.slice(start, stop - start))

    def on_eviction(self, function: OnEvict, key: Row, value: Any, watermark_ms: int) -> None:
        """Calls `on_evict` for a key whose time to live is over."""
        self._begin(function, None)
        try:
            self._outputs.add(function(dict(key), value, watermark_ms))
        except Exception as error:
            raise self._failure(error, function, None, key) from error

    def on_timer(self, function: OnTimer, state: State[Any], key: Row, time_ms: int) -> None:
        """Calls `on_timer` for a key whose timer is due."""
        self._begin(function, None)
        try:
            self._outputs.add(function(state, dict(key), time_ms))
        except Exception as error:
            raise self._failure(error, function, None, key) from error

    def timer_error(self, message: str, key: Row, cure: str) -> UserFunctionError:
        return UserFunctionError(message, stage=self._stage, position=_named(key), cure=cure)

    def save(self, value: Any, row: int | None, key: Row | None = None) -> bytes:
        try:
            return saved_value.save(value, self._format)
        except Exception as error:
            raise UserFunctionError(
                f"the state, a {type(value).__name__}, cannot be saved: {_said(error)}.",
                stage=self._stage,
                position=_named(key or {}) if row is None else self._position(row),
                cure=self._format.cure,
            ) from error

    def load(self, saved: bytes, row: int | None) -> Any:
        try:
            return saved_value.load(saved, self._format)
        except StoreMismatchError:
            raise
        except Exception as error:
            raise UserFunctionError(
                f"a saved state cannot be read back: {_said(error)}.",
                stage=self._stage,
                position=None if row is None else self._position(row),
                cure=_CURE_LOAD,
            ) from error

    def rejected(self) -> pa.Table:
        """Dead letters of `over_good_rows`, for the dead-letter sink."""
        numbers = pa.array(sorted(self._rejected), pa.int64())
        positions = self._positions(self._where.take(numbers))
        reasons = [self._rejected[number] for number in numbers.to_pylist()]
        raw = map(row_json, row_dicts(self._rows.take(numbers)))
        return dead_letter_table(self._stage, list(zip(positions, reasons, raw, strict=True)))

    def fitting_results(self) -> pa.Table | None:
        """Like `results`, but None if a result does not fit the output schema."""
        try:
            return self._outputs.to_table()
        except OutputMismatchError:
            return None

    def results(self) -> pa.Table:
        """All results, in the output schema."""
        try:
            return self._outputs.to_table()
        except OutputMismatchError as error:
            function, row = self._callers[bisect_right(self._output_counts, error.row) - 1]
            raise self._failure(error, function, row) from None

    def _from_stored(self, stored: bytes | None, row: int) -> State[Any]:
        return State.absent() if stored is None else State(self.load(stored, row))

    def _renew(self, state: State[Any], create: Callable[[], Any], row: int) -> None:
        try:
            state.renew(create)
        except Exception as error:
            raise self._failure(error, create, row) from error

    def _begin(self, function: Callable[..., Any], row: int | None) -> None:
        self._output_counts.append(len(self._outputs))
        self._callers.append((function, row))

    def _failure(
        self,
        error: Exception,
        function: Callable[..., Any],
        row: int | None,
        key: Row | None = None,
        *,
        at_row: bool = False,
    ) -> Exception:
        """`at_row`: the error belongs to exactly this row, not only to its key."""
        if isinstance(error, UserFunctionError | StoreMismatchError):
            return error
        mismatch = error if isinstance(error, OutputMismatchError) else None
        name = getattr(function, "__qualname__", repr(function))
        said = (
            f"{name} returned {error}."
            if mismatch
            else f"{where_raised(error)}{name} raised {_said(error)}."
        )
        cure = mismatch.cure if mismatch else _CURE_CALL
        if at_row and row is not None:
            said += f" The row: {self._raw(row):.{_ROW_CHARACTERS_MAX}}"
            cure = mismatch.cure if mismatch else _CURE_ROW
        return UserFunctionError(
            " ".join(said.splitlines()),
            stage=self._stage,
            position=self._position(row) if row is not None else _named(key or {}),
            cure=cure,
        )

    def _position(self, row: int) -> str | None:
        return next(self._positions(self._where.slice(row, 1)))

    def _positions(self, rows: pa.Table) -> Iterator[str | None]:
        """Yields a row's key and event time, as far as it has them."""
        for values in rows.select([*self._keys, TIME_COLUMN]).to_pylist():
            time = _readable(values.pop(TIME_COLUMN))
            parts = [_named(values)] * bool(values) + [f"at {time}"] * self._has_time
            yield " ".join(parts) or None

    def _raw(self, row: int) -> str:
        return row_json(next(row_dicts(self._rows.slice(row, 1))))


def _readable(time_ms: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{time_ms} ms"


def _named(key: Row) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in key.items())


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _reason(error: Exception) -> str:
    return f"returned {error}" if isinstance(error, OutputMismatchError) else _said(error)

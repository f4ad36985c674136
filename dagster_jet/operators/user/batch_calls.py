"""Calls a user's functions with Arrow tables, and checks the returned tables against a schema.

A returned table has exactly the schema's columns, in any order. A column may have another width of
the same kind (`large_string` for `string`, an int32 for an int64, an integer for a double,
dictionary-encoded) if no value changes. Any other type is refused, because a cast would change
values silently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.errors import UserFunctionError, where_raised
from dagster_jet.operators.rows.casting import cast_column

Condition = Callable[[pa.Table], Any]
"""Called with candidate pairs, in the columns of an inner join; returns a boolean for each."""
_T = pa.types
_KINDS: tuple[tuple[Callable[[pa.DataType], bool], ...], ...] = (
    (_T.is_string, _T.is_large_string, _T.is_string_view),
    (_T.is_binary, _T.is_large_binary, _T.is_fixed_size_binary, _T.is_binary_view),
    (_T.is_integer,),
    (_T.is_floating,),
    (_T.is_decimal,),
    (_T.is_date,),
    (_T.is_time,),
    (_T.is_duration,),
)
"""Groups of types among which a lossless cast keeps the meaning of a value."""


def called(function: Callable[..., Any], stage: str, what: str, *arguments: Any) -> Any:
    """Returns the result of the function.

    Args:
        what: description of the arguments, for messages.

    Raises:
        UserFunctionError: it raised.
    """
    try:
        return function(*arguments)
    except UserFunctionError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raised = f"{where_raised(error)}{name_of(function)} raised {said}."
        raise UserFunctionError(
            " ".join(f"{raised} It was given {what}.".splitlines()),
            stage=stage,
            cure="Correct the function; nothing of this epoch was written.",
        ) from error


def meeting(condition: Condition, stage: str, pairs: pa.Table) -> np.ndarray:
    """Which pairs meet the condition; null is no.

    Raises:
        UserFunctionError: it raised, or did not return a boolean for each pair.
    """
    what = f"{pairs.num_rows} candidate pairs"
    found = called(condition, stage, what, pairs.combine_chunks())
    try:
        flags = pa.array(found, pa.bool_()) if isinstance(found, np.ndarray) else found
        mask: np.ndarray = pc.fill_null(flags, False).to_numpy(zero_copy_only=False)
    except (AttributeError, TypeError, pa.ArrowException):
        mask = np.empty(0)
    if mask.dtype != np.bool_ or len(mask) != pairs.num_rows:
        raise Returned(condition, stage).error(
            f"{type(found).__name__}, which is not a boolean for each of {what}",
            "Return an Arrow or NumPy array of booleans, as pyarrow.compute does.",
        )
    return mask


def name_of(function: Callable[..., Any]) -> str:
    """Name of the function, for messages."""
    return getattr(function, "__qualname__", repr(function))


class Returned:
    """Checks the return values of one function, which errors name."""

    def __init__(self, function: Callable[..., Any], stage: str) -> None:
        self._name, self._stage = name_of(function), stage

    def two(self, returned: Any) -> tuple[Any, Any]:
        """Splits the return value into results and changed states, both unchecked.

        Raises:
            UserFunctionError: it is not a pair.
        """
        if isinstance(returned, tuple) and len(returned) == 2:
            return returned
        raise self.error(
            f"a {type(returned).__name__}, expected two tables (or None): results, changed states",
            "Write return results, changed.",
        )

    def table(self, returned: Any, schema: pa.Schema, what: str, source: str) -> pa.Table:
        """Returns the table in this schema; an empty one for None.

        Args:
            what: what the table holds: "results", "states". For messages.
            source: the argument of the stage that defines the schema. For messages.

        Raises:
            UserFunctionError: it is not a table, or has other columns or types.
        """
        if returned is None:
            return schema.empty_table()
        if isinstance(returned, pa.RecordBatch):
            returned = pa.Table.from_batches([returned])
        if not isinstance(returned, pa.Table):
            raise self.error(
                f"{what} as a {type(returned).__name__}, expected a pyarrow.Table or None",
                "Convert it: pa.Table.from_pandas(frame, preserve_index=False) for pandas, "
                "frame.to_arrow() for Polars.",
            )
        missing = [name for name in schema.names if name not in returned.column_names]
        if missing or len(returned.column_names) != len(schema):
            raise self.error(
                f"{what} with the columns {', '.join(returned.column_names) or '(none)'}, expected "
                f"{', '.join(schema.names)}",
                f"Return exactly these columns, or change {source}.",
            )
        columns = [self._column(returned.column(f.name), f, what, source) for f in schema]
        return pa.Table.from_arrays(columns, schema=schema)

    def error(self, what: str, cure: str) -> Exception:
        """Returns the error for a wrong return value."""
        return UserFunctionError(f"{self._name} returned {what}.", stage=self._stage, cure=cure)

    def _column(
        self, column: pa.ChunkedArray, field: pa.Field, what: str, source: str
    ) -> pa.ChunkedArray:
        reason = ""
        if _is_of_kind(column.type, field.type):
            try:
                column = cast_column(column, field.type)
            except pa.ArrowException as error:
                reason = f" ({error})"
        if column.type != field.type:
            raise self.error(
                f"{what} whose column {field.name!r} is {column.type}, expected {field.type}"
                f"{reason}",
                f"Cast it in the function, or change {source}.",
            )
        if column.null_count and not field.nullable:
            raise self.error(
                f"{what} whose column {field.name!r} is null in {column.null_count} rows, expected "
                f"a value in each",
                f"Fill it in the function, or leave NOT NULL out of {source}.",
            )
        return column


def _is_of_kind(found: pa.DataType, expected: pa.DataType) -> bool:
    """Whether values of one type have the same meaning in the other, if they fit."""
    if found == expected or _T.is_null(found):
        return True
    if _T.is_dictionary(found):
        return _is_of_kind(found.value_type, expected)
    if _T.is_timestamp(found) and _T.is_timestamp(expected):
        return (found.tz is None) == (expected.tz is None)
    if _is_list(found) and _is_list(expected):
        return _is_of_kind(found.value_type, expected.value_type)
    if _T.is_map(found) and _T.is_map(expected):
        pairs = ((found.key_type, expected.key_type), (found.item_type, expected.item_type))
        return all(_is_of_kind(*pair) for pair in pairs)
    if _T.is_struct(found) and _T.is_struct(expected):
        names = [[field.name for field in kind] for kind in (found, expected)]
        return names[0] == names[1] and all(
            _is_of_kind(a.type, b.type) for a, b in zip(found, expected, strict=True)
        )
    if _T.is_integer(found) and _T.is_floating(expected):
        return True
    return any(
        any(is_kind(found) for is_kind in kinds) and any(is_kind(expected) for is_kind in kinds)
        for kinds in _KINDS
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(_T.is_list(kind) or _T.is_large_list(kind))

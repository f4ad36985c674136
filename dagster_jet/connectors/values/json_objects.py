"""Parses message values that are JSON objects, one per message.

A value that is not an object (null, blank, an array, a number, malformed) is a bad row, as is an
object with a field that does not fit its column's type, or with anything but white space behind it.
Spark's parser decides, as for JSON lines files. It does not look at what follows an object, so it
gets each value inside of an object inside of an array: a brace or a bracket too many then does not
fit there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_jet.contract import BadRowRule, SourceFrame
from dagster_jet.core.ddl import quoted_name, split_ddl

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

VALUE_COLUMN = "__value"
"""Input column with the value, string or binary; not part of the output."""
_PARSED, _OUTER, _CORRUPT, _REASON, _TEXT = "__parsed", "__outer", "__corrupt", "__reason", "__text"
_IS_BAD = f"{_PARSED}.{_CORRUPT}"
_SHOWN = 200
_BLANKS = " \t\r\n"
"""White space of JSON."""
# Substitute for values that are not objects; the parser refuses it.
_BROKEN = "{"


@dataclass(frozen=True)
class JsonObjects:
    """Parses the `VALUE_COLUMN`; all other columns of a frame follow the parsed ones.

    Attributes:
        schema: names and types as DDL.
        passes_null: treat a null value as an object without fields instead of a bad row.
    """

    schema: str
    passes_null: bool = False

    def frames(
        self, messages: DataFrame, bad_rows: BadRowRule | None, stage: str, position: Column
    ) -> SourceFrame:
        """Returns rows and, with a rule, dead letters; without one a bad row fails the epoch.

        Args:
            messages: with the `VALUE_COLUMN`.
            position: a message's position for dead letters, computed from columns of `messages`.
        """
        if bad_rows is None:
            return SourceFrame(self._flat(messages, self._parsed("FAILFAST")))
        return self._divided(messages, bad_rows, stage, position)

    def first_bad(self, messages: DataFrame, position: Column) -> str | None:
        """Returns position and first characters of the first bad value; None if all fit."""
        from pyspark.sql import functions as F

        parsed = messages.withColumn(_PARSED, self._parsed("PERMISSIVE"))
        bad = parsed.where(F.col(_IS_BAD).isNotNull())
        row = bad.select(position.alias("position"), _text().alias("value")).first()
        return None if row is None else f"{row['position']}: {(row['value'] or 'null')[:_SHOWN]}"

    def first_where(
        self, messages: DataFrame, position: str, is_meant: Callable[[DataFrame], Column]
    ) -> str | None:
        """Returns the same as `first_bad` for the first object that meets the condition.

        Args:
            position: the column of `messages` with a message's position.
        """
        kept = messages.withColumn(_TEXT, _text())
        rows = self._flat(kept, self._parsed("PERMISSIVE"))
        row = rows.where(is_meant(rows)).select(position, _TEXT).first()
        return None if row is None else f"{row[0]}: {(row[1] or 'null')[:_SHOWN]}"

    def _divided(
        self, messages: DataFrame, bad_rows: BadRowRule, stage: str, position: Column
    ) -> SourceFrame:
        from pyspark.sql import functions as F

        shared = messages.withColumn(_PARSED, self._parsed("PERMISSIVE"))
        reason = F.when(F.col(_IS_BAD).isNotNull(), "does not fit the schema")
        for column in bad_rows.required:
            value = _field(column) if column in self._columns else F.col(quoted_name(column))
            reason = reason.when(value.isNull(), f"{column} is null")
        shared = shared.withColumn(_REASON, reason)
        dead_letters = shared.where(F.col(_REASON).isNotNull()).select(
            F.lit(stage).alias("source"),
            position.alias("position"),
            F.col(_REASON).alias("reason"),
            F.make_valid_utf8(_text()).alias("raw"),
        )
        good = shared.where(F.col(_REASON).isNull()).drop(_REASON)
        return SourceFrame(self._flat(good, F.col(_PARSED)), dead_letters, shared)

    def _flat(self, messages: DataFrame, parsed: Column) -> DataFrame:
        frame = messages.withColumn(_PARSED, parsed)
        columns = [_field(name).alias(name) for name in self._columns]
        others = [name for name in messages.columns if name not in (VALUE_COLUMN, _PARSED)]
        return frame.select(*columns, *[quoted_name(name) for name in others])

    def _parsed(self, mode: str) -> Column:
        from pyspark.sql import functions as F

        unindented = F.ltrim(_text(), F.lit(_BLANKS))
        is_object = F.coalesce(unindented.startswith("{"), F.lit(False))
        text = F.when(is_object, _text()).otherwise(F.lit(_BROKEN))
        if self.passes_null:
            text = F.when(_text().isNull(), F.lit("{}")).otherwise(text)
        whole = F.concat(F.lit(f'{{"{_OUTER}":[{{"{VALUE_COLUMN}":'), text, F.lit("}]}"))
        corrupt = f", {_CORRUPT} string" if mode == "PERMISSIVE" else ""
        outer = f"{_OUTER} array<struct<{VALUE_COLUMN}: struct<{self.schema}>>>"
        options = {"mode": mode, "columnNameOfCorruptRecord": _CORRUPT}
        return F.from_json(whole, f"{outer}{corrupt}", options)

    @property
    def _columns(self) -> list[str]:
        return [name for name, _ in split_ddl(self.schema)]


def _text() -> Column:
    from pyspark.sql import functions as F

    return F.col(VALUE_COLUMN).cast("string")


def _field(name: str) -> Column:
    """Returns a field of a parsed value; null if it could not be parsed."""
    from pyspark.sql import functions as F

    return F.expr(f"get({_PARSED}.{_OUTER}, 0).{VALUE_COLUMN}.{quoted_name(name)}")

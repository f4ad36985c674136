"""Unparsed values: one binary column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_jet.connectors.values.json_objects import VALUE_COLUMN
from dagster_jet.contract import BadRowRule, SourceFrame
from dagster_jet.core.ddl import quoted_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class RawValues:
    """Renames the `VALUE_COLUMN` to `value`, as the first column; all other columns stay. A row is
    bad only if a required column is null."""

    schema: str = "value binary"

    def frames(
        self, messages: DataFrame, bad_rows: BadRowRule | None, stage: str, position: Column
    ) -> SourceFrame:
        """See `JsonObjects.frames`."""
        from pyspark.sql import functions as F

        others = [F.col(quoted_name(n)) for n in messages.columns if n != VALUE_COLUMN]
        columns = [F.col(VALUE_COLUMN).cast("binary").alias("value"), *others]
        if bad_rows is None or not bad_rows.required:
            return SourceFrame(messages.select(*columns))
        reason, is_bad = F.lit(None).cast("string"), F.lit(False)
        for name in bad_rows.required:
            is_null = F.col(VALUE_COLUMN if name == "value" else quoted_name(name)).isNull()
            reason = F.coalesce(reason, F.when(is_null, f"{name} is null"))
            is_bad = is_bad | is_null
        dead_letters = messages.where(is_bad).select(
            F.lit(stage).alias("source"),
            position.alias("position"),
            reason.alias("reason"),
            F.make_valid_utf8(F.col(VALUE_COLUMN).cast("string")).alias("raw"),
        )
        return SourceFrame(messages.where(~is_bad).select(*columns), dead_letters, messages)

    def first_bad(self, messages: DataFrame, position: Column) -> str | None:
        """Returns None: every value fits."""
        return None

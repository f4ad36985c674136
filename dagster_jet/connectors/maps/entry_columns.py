"""Keys and values of a map as columns of a frame."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.values.declared_types import check_json_columns
from dagster_jet.contract import BadRowRule, SourceFrame
from dagster_jet.core.ddl import quoted_name
from dagster_jet.errors import SourceError
from dagster_jet.maps.key_encoding import decode_key
from dagster_jet.maps.log_state import LogState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

VALUE = "value"
_PARSED, _CORRUPT, _REASON = "__parsed", "__corrupt", "__reason"
_ONE_TYPE = re.compile(r"\s*\w+\s*(<.*>|\(.*\))?\s*", re.DOTALL)


@dataclass(frozen=True)
class ValueColumn:
    """The column ``value``: parsed from JSON where a schema is given, else text or bytes.

    Attributes:
        schema: DDL of an object's fields ("price double, at timestamp"), or one type ("double").
        format: format of the map's values.
    """

    schema: str | None
    format: str

    def __post_init__(self) -> None:
        """Raises `ConfigurationError`."""
        if self.schema is not None:
            check_json_columns(f"{VALUE} {self.type}")

    @property
    def type(self) -> str:
        """The column's type as DDL."""
        if self.schema is None:
            return self.raw_type
        return self.schema if _ONE_TYPE.fullmatch(self.schema) else f"struct<{self.schema}>"

    @property
    def raw_type(self) -> str:
        """The type of a value before it is parsed."""
        return "string" if self.format == "json" else "binary"

    def check(self, job: str, stage: str, map_name: str) -> None:
        """Refuse a schema for values that are not JSON.

        Raises:
            SourceError: names the map and its format.
        """
        if self.schema is not None and self.format != "json":
            raise SourceError(
                f"the map {map_name!r} keeps {self.format!r} values, which have no columns.",
                job=job,
                stage=stage,
                cure="Leave schema= out: the column 'value' then holds the bytes.",
            )

    def of(self, data: bytes) -> str | bytes:
        """Return a value as a row holds it before it is parsed."""
        return data.decode() if self.format == "json" else data

    def parsed(self, frame: DataFrame) -> DataFrame:
        """Parse strictly: a value that does not fit fails the job."""
        if self.schema is None:
            return frame
        return frame.withColumn(VALUE, self._parse("FAILFAST", "").getField("v"))

    def split(
        self, frame: DataFrame, bad_rows: BadRowRule, stage: str, position: Column
    ) -> SourceFrame:
        """Parse; rows that do not fit or lack a required column become dead letters."""
        from pyspark.sql import functions as F

        columns = frame.columns
        shared = frame.withColumn(_PARSED, self._parse("PERMISSIVE", f", {_CORRUPT} string"))
        is_bad = F.col(f"{_PARSED}.{_CORRUPT}").isNotNull()
        reason = F.when(is_bad & F.lit(self.schema is not None), "does not fit the schema")
        for column in bad_rows.required:
            reason = reason.when(F.col(quoted_name(column)).isNull(), f"{column} is null")
        shared = shared.withColumn(_REASON, reason)
        dead_letters = shared.where(F.col(_REASON).isNotNull()).select(
            F.lit(stage).alias("source"),
            position.alias("position"),
            F.col(_REASON).alias("reason"),
            F.col(VALUE).cast("string").alias("raw"),
        )
        good = shared.where(F.col(_REASON).isNull())
        if self.schema is not None:
            good = good.withColumn(VALUE, F.col(f"{_PARSED}.v"))
        return SourceFrame(good.select(*columns), dead_letters, shared)

    def first_bad(self, frame: DataFrame, position: Column) -> str | None:
        """Return position and text of a row that does not fit; None if all do."""
        from pyspark.sql import functions as F

        if self.schema is None:
            return None
        parsed = frame.withColumn(_PARSED, self._parse("PERMISSIVE", f", {_CORRUPT} string"))
        bad = parsed.where(F.col(f"{_PARSED}.{_CORRUPT}").isNotNull())
        row = bad.select(position.alias("position"), VALUE).first()
        return None if row is None else f"{row['position']}: {row[VALUE][:200]}"

    def _parse(self, mode: str, more: str) -> Column:
        """Return a struct with the field ``v``: `from_json` needs an object around the value."""
        from pyspark.sql import functions as F

        text = F.concat(F.lit('{"v":'), F.col(VALUE).cast("string"), F.lit("}"))
        options = {"mode": mode, "columnNameOfCorruptRecord": _CORRUPT, "timeZone": "UTC"}
        return F.from_json(text, f"v {self.type}{more}", options)


def key_text(encoded: str) -> str:
    """Return a key's text in the column ``key``: strings unchanged, other keys as JSON."""
    key = decode_key(encoded)
    return key if isinstance(key, str) else encoded


def existing(state: LogState | None, job: str, stage: str, name: str) -> LogState:
    """Return the state; raise `SourceError` if it is None, because the map does not exist."""
    if state is None:
        raise SourceError(
            f"the map {name!r} does not exist.",
            job=job,
            stage=stage,
            cure="Create it with jet.map(name, ...), or correct the name.",
        )
    return state


def arrow_value_type(column: ValueColumn) -> Any:
    """Return the Arrow type of a value before it is parsed."""
    import pyarrow as pa

    return pa.string() if column.raw_type == "string" else pa.binary()

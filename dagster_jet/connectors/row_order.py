"""The order of rows, where a sink has Spark move them.

A frame's rows are in the order of its Spark partitions, and within each as they come. Sources make
frames in which the rows of one source partition are in their order, and stateless stages leave it
alone. A shuffle does not, so whoever shuffles numbers the rows before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_jet.core.ddl import quoted_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ROW = "__row"


def newest_per_key(frame: DataFrame, keys: list[str], order: Column | None = None) -> DataFrame:
    """Returns one row for each key: the last one of the frame.

    Args:
        keys: columns; all others are taken from the same row.
        order: the row with the highest value of it counts instead. A null is less than any value,
            and of equal ones the last row counts.
    """
    from pyspark.sql import functions as F

    quoted = [quoted_name(name) for name in keys]
    others = [quoted_name(name) for name in frame.columns if name not in keys]
    by = [] if order is None else [order.isNotNull(), order]
    numbered = frame.select("*", F.struct(*by, F.monotonically_increasing_id()).alias(_ROW))
    newest = F.max_by(F.struct(*others), _ROW).alias("__newest")
    return numbered.groupBy(*quoted).agg(newest).select(*quoted, "__newest.*")


def dealt(frame: DataFrame, writers: int, by: Column) -> DataFrame:
    """Returns the rows in `writers` Spark partitions.

    Rows with the same value of `by` are in the same partition, and every partition has its rows in
    the order of the frame.

    Args:
        by: a number.
    """
    from pyspark.sql import functions as F

    numbered = frame.withColumn(_ROW, F.monotonically_increasing_id())
    parted = numbered.repartitionById(writers, F.pmod(by, F.lit(writers)).cast("int"))
    return parted.sortWithinPartitions(_ROW).drop(_ROW)

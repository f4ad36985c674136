"""The order of rows, where a sink has Spark move them.

A frame's rows are in the order of its Spark partitions, and within each as they come. Sources make
frames in which the rows of one source partition are in their order, and stateless stages leave it
alone. A shuffle does not, so whoever shuffles numbers the rows before.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from dagster_jet.core.ddl import quoted_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ROW, _ALONE = "__row", "__alone"


def newest_per_key(frame: DataFrame, keys: list[str], order: Column | None = None) -> DataFrame:
    """Returns one row for each key: the last one of the frame; and all rows without a key, of which
    a column is null, so that each can be named.

    Args:
        keys: columns; all others are taken from the same row.
        order: the row with the highest value of it counts instead. A null is less than any value,
            and of equal ones the last row counts.
    """
    from pyspark.sql import functions as F

    quoted = [quoted_name(name) for name in keys]
    others = [quoted_name(name) for name in frame.columns if name not in keys]
    by = [] if order is None else [order.isNotNull(), order]
    number = F.monotonically_increasing_id()
    has_no_key = reduce(lambda a, b: a | b, [F.col(name).isNull() for name in quoted])
    alone = F.when(has_no_key, number).alias(_ALONE)
    numbered = frame.select("*", F.struct(*by, number).alias(_ROW), alone)
    newest = F.max_by(F.struct(*others), _ROW).alias("__newest")
    return numbered.groupBy(*quoted, _ALONE).agg(newest).select(*quoted, "__newest.*")


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

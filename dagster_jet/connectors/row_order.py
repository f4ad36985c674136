"""Shuffles of a sink's rows that keep their order.

A frame's rows are ordered by Spark partition, and within a partition as they come. Sources keep the
order of the rows of one source partition, and so do stateless stages. A shuffle does not, so the
functions here number the rows before they shuffle.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from dagster_jet.core.collations import refuse_collations
from dagster_jet.core.ddl import quoted_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ROW, _ALONE = "__row", "__alone"


def newest_per_key(
    frame: DataFrame,
    keys: list[str],
    order: Column | None = None,
    apart: Column | None = None,
) -> DataFrame:
    """Returns the last row of the frame for each key, and all rows with a null in a key column, so
    that errors can name each of them.

    Args:
        keys: columns; all others are taken from the same row.
        order: take the row with the highest value instead. Nulls sort first; among equal values the
            last row counts.
        apart: return all rows where it is true, too; they are not the newest of any key.

    Raises:
        PipelineError: a key has a collation.
    """
    from pyspark.sql import functions as F

    refuse_collations(frame.schema, keys)
    quoted = [quoted_name(name) for name in keys]
    others = [quoted_name(name) for name in frame.columns if name not in keys]
    by = [] if order is None else [order.isNotNull(), order]
    number = F.monotonically_increasing_id()
    has_no_key = reduce(lambda a, b: a | b, [F.col(name).isNull() for name in quoted])
    is_alone = has_no_key if apart is None else has_no_key | apart
    alone = F.when(is_alone, number).alias(_ALONE)
    numbered = frame.select("*", F.struct(*by, number).alias(_ROW), alone)
    newest = F.max_by(F.struct(*others), _ROW).alias("__newest")
    return numbered.groupBy(*quoted, _ALONE).agg(newest).select(*quoted, "__newest.*")


def divided_among_writers(frame: DataFrame, writers: int, by: Column) -> DataFrame:
    """Distributes the rows over `writers` Spark partitions.

    Rows with the same value of `by` are in the same partition. Every partition keeps the order of
    the frame.

    Args:
        by: a number.
    """
    from pyspark.sql import functions as F

    numbered = frame.withColumn(_ROW, F.monotonically_increasing_id())
    parted = numbered.repartitionById(writers, F.pmod(by, F.lit(writers)).cast("int"))
    return parted.sortWithinPartitions(_ROW).drop(_ROW)

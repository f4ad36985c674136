"""A source of anything that Spark reads in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_jet.connectors.from_batches import (
        FromBatches,
        LatestOffset,
        LimitOffset,
        ReadRange,
    )


def from_batches(
    read: ReadRange,
    *,
    schema: str,
    latest_offset: LatestOffset,
    limit_offset: LimitOffset | None = None,
) -> FromBatches:
    """Return a source that calls `read(spark, start, end)` for the rows of each epoch.

    For any batch format of Spark: JDBC, a warehouse's connector, folders of Parquet, a Python data
    source. Offsets are your own: any values that grow and that JSON keeps. The snapshot has the end
    of the last range, so after a crash the job goes on there. Rows that no snapshot has are read
    again, perhaps in other ranges.

    It is exactly-once if `read` keeps two promises. The rows of a range stay the same once
    `latest_offset` has returned its end. The rows of (a, b] and of (b, c] are those of (a, c]. Rows
    that come later into a range that was read are never seen; rows in two ranges come twice.

    If a function raises an `OSError` that may pass (a refused connection, a time-out),
    `latest_offset` is called again, with growing pauses; the others restart the job, as any other
    error does.

    Args:
        read: returns a DataFrame with the columns of the schema, in its order: the rows after
            `start`, up to and including `end`. `start` is None for the first range. It is called on
            the driver, at least once per range; Spark's tasks read the rows.
        schema: column names and types as DDL.
        latest_offset: returns the newest offset whose rows are complete, or None if there is none.
            It is called on the driver, about once per epoch.
        limit_offset: `limit_offset(start, latest, max_rows)` returns the end of the next range, so
            that an epoch has about `max_rows` rows, or fewer, if offsets have gaps. Epochs wait for
            it. By default a range ends at the newest offset.

    Raises:
        ConfigurationError: a function cannot be called.

    Example:
        >>> def read(spark, start, end):
        ...     days = spark.read.schema("id long, day string").parquet("s3a://lake/orders")
        ...     return days.where(days.day <= end).where((days.day > start) if start else "true")
        >>> orders = from_batches(
        ...     read, schema="id long, day string", latest_offset=lambda: "2026-01-31"
        ... )
    """
    from dagster_jet.connectors.from_batches import FromBatches

    return FromBatches(read, schema, latest_offset, limit_offset)

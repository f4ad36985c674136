"""Structured Streaming with two sources and two sinks, by `foreachBatch`.

`write` is "append", as Spark's guide shows it, or "by batch": a folder per batch that is written
anew when the batch runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.race.order import Order, read_order

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame


def run(order: Order) -> None:
    from pyspark.sql.streaming.state import GroupStateTimeout

    from benchmarks.spark_query import open_session
    from dagster_jet.connectors.generated.nexmark.schema import spark_ddl

    session = open_session()
    halves = [
        session.readStream.schema(spark_ddl())
        .option("maxFilesPerTrigger", 100)
        .json(f"{order.source}/{name}")
        for name in ("a", "b")
    ]
    bids = halves[0].union(halves[1]).where("event_type = 2").select("bid.auction", "number")
    places = bids.groupBy("auction").applyInPandasWithState(
        count,
        "auction bigint, n bigint, number bigint",
        "n bigint",
        "append",
        GroupStateTimeout.NoTimeout,
    )
    query = places.writeStream.outputMode("append").foreachBatch(writer(order))
    query = query.option("checkpointLocation", f"{order.state}/checkpoint")
    query.trigger(processingTime="0 seconds").start().awaitTermination()


def count(key: tuple[int], bids: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    n = state.get[0] if state.exists else 0
    for batch in bids:
        yield batch.assign(n=range(n + 1, n + 1 + len(batch)))[["auction", "n", "number"]]
        n += len(batch)
    state.update((n,))


def writer(order: Order) -> Callable[[DataFrame, int], None]:
    by_batch = order.settings["write"] == "by batch"

    def write(rows: DataFrame, batch: int) -> None:
        rows.persist()
        for sink, columns in (("rows", ("auction", "number")), ("counts", ("*",))):
            folder = f"{order.output}/{sink}"
            mode = "overwrite" if by_batch else "append"
            target = f"{folder}/batch={batch}" if by_batch else folder
            rows.select(*columns).write.mode(mode).json(target)
        rows.unpersist()

    return write


if __name__ == "__main__":
    run(read_order())

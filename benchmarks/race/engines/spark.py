"""Spark Structured Streaming: RocksDB with changelog checkpoints, a checkpoint per trigger.

The one setting that matters is `files`, the files of a trigger. Append mode and the file sink,
whose log makes it exactly-once. q18 updates rows, which the file sink cannot take: it writes each
trigger's rows into a folder named after the trigger (`foreachBatch`), again the same after a
crash.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.race.order import Order, read_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULT_FILES = 10


def q1(events: DataFrame) -> DataFrame:
    bids = events.where("event_type = 2").select("bid.*", "date_time")
    return bids.selectExpr("auction", "bidder", "0.908 * price AS price", "date_time", "extra")


def q5(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    bids = events.where("event_type = 2").select("bid.auction", "date_time")
    window = F.window("date_time", "10 seconds", "2 seconds")
    counts = bids.groupBy(window, "auction").agg(F.count("*").alias("num"))
    # One stateful step for the top instead of an aggregation and a join.
    tops = counts.groupBy("window").agg(
        F.max("num").alias("most"), F.collect_list(F.struct("auction", "num")).alias("all")
    )
    best = tops.selectExpr("window", "inline(filter(all, a -> a.num = most))")
    return _bounds(best, "auction", "num")


def q7(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    bids = events.where("event_type = 2").select(
        "bid.auction", "bid.price", "bid.bidder", "date_time", "bid.extra"
    )
    window = F.window("date_time", "10 seconds").alias("window")
    most = bids.groupBy(window).agg(F.max("price").alias("price"))
    # A join takes one column with a watermark per side: of bids, the window; their time is a copy.
    time = F.timestamp_micros(F.unix_micros("date_time")).alias("date_time")
    placed = bids.select("auction", "price", "bidder", window, time, "extra")
    return placed.join(most, ["window", "price"]).drop("window")


def q8(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    window = F.window("date_time", "10 seconds").alias("window")
    persons = events.where("event_type = 0").select("person.id", "person.name", "date_time")
    sellers = events.where("event_type = 1").selectExpr("auction.seller AS id", "date_time")
    new = persons.groupBy(window, "id", "name").count().drop("count")
    selling = sellers.groupBy(window, "id").count().drop("count")
    return _bounds(new.join(selling, ["window", "id"]), "id", "name")


def q11(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    bids = events.where("event_type = 2").select("bid.bidder", "date_time")
    window = F.session_window("date_time", "10 seconds").alias("window")
    counts = bids.groupBy(window, "bidder").agg(F.count("*").alias("bid_count"))
    return _bounds(counts, "bidder", "bid_count")


def q18(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    bids = events.where("event_type = 2").select("bid.*", "date_time", "number")
    last = F.max_by(F.struct(*bids.columns), F.struct("date_time", "number"))
    return bids.groupBy("bidder", "auction").agg(last.alias("last")).select("last.*")


def _bounds(frame: DataFrame, *columns: str) -> DataFrame:
    bounds = ("window.start AS window_start", "window.end AS window_end")
    return frame.selectExpr(*columns, *bounds)


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    query.__name__: query for query in (q1, q5, q7, q8, q11, q18)
}


def run(order: Order) -> None:
    from benchmarks.spark_query import open_session
    from dagster_jet.connectors.generated.nexmark.schema import spark_ddl

    session = open_session(order.spark)
    reader = session.readStream.schema(spark_ddl())
    files = order.settings.get("files", DEFAULT_FILES)
    events = reader.option("maxFilesPerTrigger", files).json(order.source)
    events = events.withWatermark("date_time", f"{order.lag_ms} milliseconds")
    answer = QUERIES[order.query](events).writeStream
    answer = answer.option("checkpointLocation", f"{order.state}/checkpoint")
    if order.query == "q18":
        answer = answer.outputMode("update").foreachBatch(_folder_writer(Path(order.output)))
    else:
        answer = answer.outputMode("append").format("json").option("path", order.output)
    answer.trigger(processingTime="0 seconds").start().awaitTermination()


def _folder_writer(output: Path) -> Callable[[DataFrame, int], None]:
    def write(rows: DataFrame, trigger: int) -> None:
        rows.write.mode("overwrite").json(f"{output}/batch={trigger}")

    return write


if __name__ == "__main__":
    run(read_order())

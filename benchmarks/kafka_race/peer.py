"""The two jobs in Structured Streaming: its Kafka connector, `foreachBatch` for PostgreSQL.

Both sinks are at least once: after a crash the last trigger's rows come again. RocksDB with
changelog checkpoints, a checkpoint per trigger.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import make_url

from benchmarks.kafka_race.messages import LAG_MS, PARTITIONS, SCHEMA, WINDOW_MS
from benchmarks.kafka_race.order import Order, Told
from benchmarks.spark_query import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_DAY_S = 86_400


def messages(
    session: SparkSession, servers: str, topic: str, trigger_rows: int | None
) -> DataFrame:
    from pyspark.sql import functions as F

    reader = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
    )
    if trigger_rows is not None:
        reader = reader.option("maxOffsetsPerTrigger", trigger_rows)
    parsed = F.from_json(F.col("value").cast("string"), SCHEMA)
    return reader.load().select(parsed.alias("row")).select("row.*")


def counts(rows: DataFrame) -> DataFrame:
    """Key and value of messages, as the other engine writes them."""
    from pyspark.sql import functions as F

    rows = rows.select("k", "v", F.timestamp_millis("ts").alias("at"))
    rows = rows.withWatermark("at", f"{LAG_MS} milliseconds")
    window = F.window("at", f"{WINDOW_MS} milliseconds")
    found = rows.groupBy(window, "k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    bounds = ("window.start AS window_start", "window.end AS window_end")
    found = found.selectExpr("k", *bounds, "n", "total")
    return found.select(F.col("k").alias("key"), F.to_json(F.struct("*")).alias("value"))


def run(order: Order) -> Told:
    session = open_session({"spark.jars": ",".join(order.jars)})
    rows = messages(session, order.servers, order.source, order.trigger_rows)
    if order.case == "window":
        writer = counts(rows).writeStream.format("kafka").outputMode("append")
        writer = writer.option("kafka.bootstrap.servers", order.servers)
        writer = writer.option("topic", order.target)
    else:
        writer = rows.writeStream.foreachBatch(_into_table(order))
    writer = writer.option("checkpointLocation", f"{order.folder}/checkpoint")
    is_backlog = order.seconds is None
    writer = writer.trigger(
        **({"availableNow": True} if is_backlog else {"processingTime": "0 seconds"})
    )
    query = writer.start()
    told = told_of(query, _DAY_S if order.seconds is None else round(order.seconds))
    session.stop()
    return told


def told_of(query: StreamingQuery, seconds: int = _DAY_S) -> Told:
    """Waits for its end, or so long, and stops it."""
    query.awaitTermination(seconds)
    told = Told(done_at=time.time())
    read = 0
    for progress in query.recentProgress:
        read += progress["numInputRows"]
        took_s = progress["durationMs"]["triggerExecution"] / 1000
        told.commits.append((_seconds(progress["timestamp"]) + took_s, read))
    query.stop()
    return told


def _into_table(order: Order) -> Any:
    """Writes a batch into a table as Spark's guide does; a setting of the driver makes one
    statement of it."""
    url = make_url(order.database)
    place = f"jdbc:postgresql://{url.host}:{url.port}/{url.database}?reWriteBatchedInserts=true"
    properties = {
        "user": str(url.username),
        "password": str(url.password),
        "driver": "org.postgresql.Driver",
        "batchsize": "10000",
        "numPartitions": str(PARTITIONS),
    }

    def write(batch: DataFrame, number: int) -> None:
        batch.write.jdbc(place, order.target, "append", properties)

    return write


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()

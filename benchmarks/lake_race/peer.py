"""The jobs in Structured Streaming: its Parquet sink, exactly once by the sink's log."""

from __future__ import annotations

from benchmarks.kafka_race.messages import SCHEMA
from benchmarks.kafka_race.order import Told
from benchmarks.kafka_race.peer import messages, told_of
from benchmarks.lake_race.order import Order
from benchmarks.lake_race.rows import ROWS_PER_FILE
from benchmarks.spark_query import open_session


def run(order: Order) -> Told:
    session = open_session({"spark.jars": ",".join(order.jars)} if order.jars else None)
    assert order.trigger_rows is not None
    if order.case == "files":
        files = order.trigger_rows // ROWS_PER_FILE
        reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files)
        rows = reader.json(order.source)
    else:
        rows = messages(session, order.servers, order.source, order.trigger_rows)
    writer = rows.writeStream.format("parquet").option("path", order.out)
    writer = writer.option("checkpointLocation", f"{order.folder}/checkpoint")
    told = told_of(writer.trigger(availableNow=True).start())
    session.stop()
    return told

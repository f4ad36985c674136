"""The same pipeline between servers: flights from Kafka, results in PostgreSQL and in Parquet."""

from __future__ import annotations

from dagster_jet import Pipeline, Secret, sinks, sources
from pipelines.airport_delays.pipeline import FLIGHTS, delays

TOPIC = "flights"
HOURLY, BADLY_DELAYED = "hourly_delays", "badly_delayed"


def airport_delays_through_kafka(
    servers: str, database: Secret, reference: str, out: str
) -> Pipeline:
    """Reads flights from a topic; three sinks of two kinds, cut at one point.

    Each partition of the topic has a watermark of its own, and the least of them counts: no flight
    is late because another partition was read faster.
    """
    p = Pipeline("airport_delays")
    flights = (
        p.read_from(sources.kafka(servers, topics=[TOPIC], schema=FLIGHTS), name="flights")
        .with_timestamps("at", allowed_lag="22 hours", idle_timeout="1 hour")
        .dead_letter_to(sinks.files(f"{out}/bad_rows", format="json"), name="bad_rows")
    )
    hourly, badly = delays(flights, reference)
    hourly.write_to(
        sinks.sql(
            database,
            table=HOURLY,
            mode="upsert",
            key=["origin", "window_start"],
            create_table=True,
        ),
        name="hourly_out",
    )
    hourly.write_to(sinks.files(f"{out}/hourly", format="parquet"), name="hourly_files")
    badly.write_to(
        sinks.sql(database, table=BADLY_DELAYED, create_table=True), name="badly_delayed_out"
    )
    return p

"""The pipeline: real flights, their weather, hourly statistics and a feed of bad delays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_jet import Pipeline, sinks, sources, tables, windows
from dagster_jet import aggregates as agg

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_jet import Stage

FLIGHTS = (
    "at timestamp, carrier string, flight int, tailnum string, "
    "origin string, dest string, delay double"
)
AIRLINES = "carrier string, airline string"
WEATHER = (
    "origin string, hour timestamp, temp double, wind_speed double, precip double, visib double"
)
BADLY_DELAYED_MINUTES = 60


def with_hour(flights: DataFrame) -> DataFrame:
    """Adds the key of the hourly weather report."""
    from pyspark.sql import functions as F

    return flights.withColumn("hour", F.date_trunc("hour", "at"))


def airport_delays(inbox: str, reference: str, out: str) -> Pipeline:
    """Reads flights as they depart; event time is the scheduled departure."""
    p = Pipeline("airport_delays")
    hourly, badly = delays(flights_from(p, inbox, out), reference)
    hourly.write_to(sinks.files(f"{out}/hourly", format="parquet"), name="hourly_out")
    badly.write_to(sinks.files(f"{out}/badly_delayed", format="json"), name="badly_delayed_out")
    return p


def flights_from(p: Pipeline, inbox: str, out: str) -> Stage:
    """Flights in files, and those that are none in files of their own.

    The longest delay in the data is 21 h 41 min, so flights arrive up to 21 h 40 min behind later
    ones: with an allowed lag of 22 hours none is late.
    """
    return (
        p.read_from(sources.files(inbox, format="json", schema=FLIGHTS), name="flights")
        .with_timestamps("at", allowed_lag="22 hours", idle_timeout="0 seconds")
        .dead_letter_to(sinks.files(f"{out}/bad_rows", format="json"), name="bad_rows")
    )


def delays(flights: Stage, reference: str) -> tuple[Stage, Stage]:
    """Hourly statistics of each airport, and the flights with a bad delay, with their weather."""
    airlines = tables.files(
        f"{reference}/airlines.csv", format="csv", schema=AIRLINES, asset="reference/airlines"
    )
    weather = tables.files(
        f"{reference}/weather.csv", format="csv", schema=WEATHER, asset="reference/weather"
    )
    enriched = (
        flights.enrich(airlines, on="carrier", name="airline_names")
        .transform(with_hour, name="with_hour")
        .enrich(weather, on=["origin", "hour"], name="hourly_weather")
    )
    hourly = (
        enriched.group_by("origin")
        .window(windows.tumbling("1 hour"))
        .aggregate(
            n=agg.count(), mean=agg.mean("delay"), worst=agg.max("delay"), name="hourly_delays"
        )
    )
    badly = enriched.filter(f"delay > {BADLY_DELAYED_MINUTES}", name="badly_delayed").select(
        "at", "airline", "carrier", "flight", "origin", "dest", "delay",
        "temp", "wind_speed", "precip", "visib", name="feed",
    )  # fmt: skip
    return hourly, badly

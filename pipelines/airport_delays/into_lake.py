"""The same pipeline into a lake: one table of Delta Lake and one of Iceberg."""

from __future__ import annotations

from dagster_jet import Pipeline, sinks
from pipelines.airport_delays.pipeline import delays, flights_from

HOURLY, BADLY_DELAYED = "hourly", "flights.badly_delayed"
CATALOG = "lake"


def catalog_options(lake: str) -> dict[str, str]:
    """A catalog in a file of the lake's folder."""
    return {"type": "sql", "uri": f"sqlite:///{lake}/catalog.db", "warehouse": lake}


def airport_delays_into_lake(inbox: str, reference: str, out: str, lake: str) -> Pipeline:
    """Reads the files of the other pipeline; its sinks are two tables, and files of bad rows."""
    p = Pipeline("airport_delays")
    hourly, badly = delays(flights_from(p, inbox, out), reference)
    hourly.write_to(sinks.delta(f"{lake}/{HOURLY}", partition_by="origin"), name="hourly_out")
    badly.write_to(
        sinks.iceberg(CATALOG, BADLY_DELAYED, catalog_options=catalog_options(lake)),
        name="badly_delayed_out",
    )
    return p

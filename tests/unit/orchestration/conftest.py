"""A pipeline to translate; nothing here starts Spark."""

from __future__ import annotations

import pytest

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg


@pytest.fixture
def pipeline() -> Pipeline:
    p = Pipeline("shop")
    orders = (
        p.read_from(
            sources.files("/in/orders", format="json", schema="id long, at timestamp, eur double"),
            name="orders",
        )
        .with_timestamps("at")
        .dead_letter_to(sinks.files("/out/bad", format="json"), name="bad_orders")
    )
    large = orders.filter("eur > 100", name="large")
    per_hour = large.group_by("id").window(windows.tumbling("1 hour"))
    revenue = per_hour.aggregate(total=agg.sum("eur"), name="revenue")
    revenue.write_to(sinks.files("/out/revenue", format="parquet"), name="revenue_out")
    large.write_to(sinks.files("/out/large", format="csv"), name="large_out")
    return p

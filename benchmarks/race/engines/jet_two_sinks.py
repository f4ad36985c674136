"""dagster_jet with two sources and two sinks: every bid, and every bid with its place among those
on the same auction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.race.engines.jet import SPARK
from benchmarks.race.order import Order, read_order


def run(order: Order) -> None:
    from dagster_jet import Jet, Pipeline, sinks, sources
    from dagster_jet.connectors.generated.nexmark.schema import spark_ddl

    job = Pipeline("race_two_sinks")
    halves = [
        job.read_from(
            sources.files(f"{order.source}/{name}", format="json", schema=spark_ddl()), name=name
        )
        .with_timestamps("date_time", allowed_lag=f"{order.lag_ms} ms")
        .filter("event_type = 2", name=f"{name}_bids")
        for name in ("a", "b")
    ]
    bids = halves[0].merge(halves[1], name="bids").select("bid.auction", "number", "date_time")
    bids.write_to(sinks.files(f"{order.output}/rows", format="json"), name="rows")
    places = bids.group_by("auction").map_stateful(
        count, create=int, output_schema="auction bigint, n bigint, number bigint", name="places"
    )
    places.write_to(sinks.files(f"{order.output}/counts", format="json"), name="counts")
    state = Path(order.state)
    members = [f"file://{state}/member-{letter}" for letter in "abc"]
    with Jet(store=members, spark=SPARK, work_dir=state / "work") as jet:
        jet.run(job, until="stopped")


def count(state: Any, bid: dict[str, Any]) -> dict[str, Any]:
    state.value += 1
    return {"auction": bid["auction"], "n": state.value, "number": bid["number"]}


if __name__ == "__main__":
    run(read_order())

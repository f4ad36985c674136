"""dagster_jet: the queries of `benchmarks.nexmark`, at its defaults unless told otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.race.order import Order, read_order

if TYPE_CHECKING:
    from dagster_jet import Pipeline

SPARK = {"spark.master": "local[2]", "spark.driver.memory": "2g"}


def pipeline(order: Order, **place: Any) -> Pipeline:
    """`place`: what source and sink are told of the folders' place."""
    from benchmarks.nexmark.events import Events
    from benchmarks.nexmark.queries import QUERIES
    from dagster_jet import Pipeline, sinks
    from dagster_jet.connectors.generated.nexmark.model import Model

    job = Pipeline(f"race_{order.query}")
    # The model's size matters to queries that are not raced.
    events = Events(job, Path(order.source), Model(1), allowed_lag=f"{order.lag_ms} ms", **place)
    answer = QUERIES[order.query](events)
    answer.write_to(sinks.files(order.output, format="json", **place), name="answer")
    return job


def run(order: Order) -> None:
    from dagster_jet import Jet, JobConfig

    state = Path(order.state)
    state.mkdir(parents=True, exist_ok=True)
    members = order.members or [f"file://{state}/member-{letter}" for letter in "abc"]
    place = {"shared": True} if order.spark else {}
    with Jet(store=members, spark={**SPARK, **order.spark}, work_dir=state / "work") as jet:
        config = JobConfig(**order.settings)
        jet.run(pipeline(order, **place), config, until="stopped", standby=order.standby)


if __name__ == "__main__":
    run(read_order())

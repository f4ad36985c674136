"""dagster_jet with three sinks (q1, the windows of q11, the last rows of q18), in many versions of
the code. Writes each event of the job with its time, and ends gracefully on SIGTERM."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.race.engines.jet import SPARK
from benchmarks.race.order import Order, read_order

if TYPE_CHECKING:
    from dagster_jet import Pipeline

SINKS = ("q1", "q11", "q18")
JOB = "race_versions"


def pipeline(order: Order, version: int) -> Pipeline:
    """Every version keeps the same rows, by another expression."""
    from benchmarks.nexmark.events import Events
    from benchmarks.nexmark.queries import QUERIES
    from dagster_jet import Pipeline, sinks
    from dagster_jet.connectors.generated.nexmark.model import Model

    job = Pipeline(JOB)
    events = Events(job, Path(order.source), Model(1), allowed_lag=f"{order.lag_ms} ms")
    for name in SINKS:
        answer = QUERIES[name](events).filter(f"bidder > -{100 + version}", name=f"{name}_rows")
        answer.write_to(sinks.files(f"{order.output}/{name}", format="json"), name=name)
    return job


def run(order: Order) -> None:
    from dagster_jet import Jet
    from dagster_jet.events import JobEvent

    def tell(event: JobEvent) -> None:
        print(f"{time.time():.3f} {type(event).__name__}", flush=True)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    state = Path(order.state)
    members = [f"file://{state}/member-{letter}" for letter in "abc"]
    with Jet(store=members, spark=SPARK, work_dir=state / "work") as jet:
        job = pipeline(order, order.settings["version"])
        jet.run(job, until="stopped", standby=order.standby, on_event=tell)


if __name__ == "__main__":
    run(read_order())

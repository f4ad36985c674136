"""The NEXMark queries as jobs, and the driver that is killed while it runs one of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.nexmark.events import Events
from benchmarks.nexmark.run import pipeline
from dagster_jet import Pipeline, sinks, windows
from dagster_jet import aggregates as agg
from dagster_jet.connectors.generated.nexmark.model import Model

from . import child

MODEL = Model(events=2400, events_per_second=20, group=90, auctions_in_flight=20)
"""Two minutes, in groups that go across files."""
PER_FILE = 480
LATE = "late"
LATE_MODEL = replace(MODEL, group=900)
"""Events come up to 45 seconds out of order: more than an epoch, which is what moves watermarks."""


def job(name: str, folder: Path) -> Pipeline:
    """The job of that name, between ``in`` and ``out`` of a world's folder."""
    if name == LATE:
        return late_bids(folder)
    return pipeline(name, folder / "in", folder / "out", MODEL)


def late_bids(folder: Path) -> Pipeline:
    """Bids per bidder and 2 seconds under a lag that is less than the disorder."""
    p = Pipeline("late_bids")
    events = Events(p, folder / "in", LATE_MODEL, allowed_lag="500 ms")
    counts = (
        events.bids.group_by("bidder")
        .window(windows.tumbling("2 seconds"))
        .aggregate(bid_count=agg.count(), name="bid_counts")
        .late_to(sinks.files(f"{folder}/late", format="parquet"), name="late")
    )
    counts.write_to(sinks.files(f"{folder}/out", format="parquet"), name="answer")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, partial(job, str(order.pop("job"))))

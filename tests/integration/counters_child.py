"""A pipeline whose functions count rows, and the process that is killed while it runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet import Pipeline, State, job_context, sinks, sources
from dagster_jet.dag import Inbox, Processor

from . import child

LIMIT = 60
BUCKETS = (10, 25, 60)


def pipeline(folder: Path) -> Pipeline:
    """A service, a function per row that refuses some, and a processor: each counts its rows and
    those above a limit. A file has a line for each row that the processor counted in any task."""
    attempts = folder / "attempts"

    class Passing(Processor):
        def process(self, ordinal: int, inbox: Inbox) -> bool:
            for row in inbox.drain():
                assert self.outbox.offer(row)
                with attempts.open("a") as lines:
                    lines.write(f"{row['v']}\n")
                self.context.metrics.counter("seen").add()
                self.context.metrics.histogram("values", BUCKETS).record(row["v"])
                if row["v"] > self.context.parameters["limit"]:
                    self.context.metrics.counter("large").add()
            return True

    def ask(limit: int, rows: pa.Table) -> pa.Table:
        metrics = job_context().metrics
        metrics.counter("seen").add(rows.num_rows)
        metrics.gauge("file").set(pc.max(rows["ts"]).as_py() // 1_000)
        for v in rows["v"].to_pylist():
            metrics.histogram("values", BUCKETS).record(v)
        metrics.counter("large").add(pc.sum(pc.greater(rows["v"], limit)).as_py() or 0)
        return rows

    def take(state: State[int], row: dict[str, Any]) -> dict[str, Any]:
        context = job_context()
        context.metrics.counter("seen").add()
        context.metrics.histogram("values", BUCKETS).record(row["v"])
        if row["v"] % 7 == 0:
            raise ValueError("bad")
        if row["v"] > context.parameters["limit"]:
            context.metrics.counter("large").add()
        state.value += 1
        return row

    p = Pipeline(child.JOB)
    source = sources.files(f"{folder}/in/left", format="json", schema=child.SCHEMA)
    rows = p.read_from(source, name="left").with_timestamps("ts", allowed_lag="500 ms")
    asked = rows.map_using_service(
        ask, create=lambda: job_context().parameters["limit"], output_schema="*", batch_rows=5,
        concurrency=2, name="asked",
    )  # fmt: skip
    taken = asked.group_by("k").map_stateful(
        take, create=int, output_schema=child.SCHEMA, on_error="dead-letter", name="taken"
    )
    passed = taken.group_by("k").apply_processor(Passing, output_schema=child.SCHEMA, name="passed")
    passed.write_to(sinks.files(f"{folder}/out/passed", format="json"), name="passed_out")
    taken.dead_letter_to(sinks.files(f"{folder}/out/dead", format="json"), name="dead")
    asked.filter("v > 90").write_to(sinks.files(f"{folder}/out/high", format="json"), name="high")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, pipeline)

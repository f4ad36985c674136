"""A pipeline whose rows go through a service, and the process that is killed while it runs it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg

from . import child


def pipeline(folder: Path, use: Callable[..., Any]) -> Pipeline:
    """Behind the service: two sinks that divide its answers, and a window over all of them."""

    def create() -> list[str]:
        (folder / "created").mkdir(exist_ok=True)
        (folder / "created" / f"{os.getpid()}-{uuid.uuid4().hex}").touch()
        return ["a client"]

    p = Pipeline("served")
    schema = "k long, v long, at timestamp"
    source = sources.files(f"{folder}/in", format="json", schema=schema)
    rows = p.read_from(source, name="rows").with_timestamps("at", allowed_lag="1 hour")
    answers = rows.map_using_service(
        use, create=create, output_schema="*, answer string, size int", batch_rows=7,
        concurrency=3, retries=2, name="asked",
    )  # fmt: skip
    for name, condition in (("low", "answer < '8'"), ("high", "answer >= '8'")):
        out = sinks.files(f"{folder}/{name}", format="json")
        answers.filter(condition).write_to(out, name=name)
    counts = answers.group_by("k").window(windows.tumbling("1 hour"))
    counts.aggregate(n=agg.count(), size=agg.max("size"), name="counts").write_to(
        sinks.files(f"{folder}/counts", format="json"), name="counts_out"
    )
    return p


def asking_pipeline(folder: Path) -> Pipeline:
    def ask(service: list[str], rows: pa.Table) -> pa.Table:
        """Returns another answer at each call, and sometimes raises."""
        assert service == ["a client"] and 0 < rows.num_rows <= 7
        if os.urandom(1)[0] % 4 == 0:
            raise TimeoutError("no answer")
        answers = pa.array([uuid.uuid4().hex for _ in range(rows.num_rows)])
        sizes = pa.array([rows.num_rows] * rows.num_rows)
        with (folder / "calls").open("a") as calls:
            calls.write("".join(f"{v}\n" for v in rows["v"].to_pylist()))
        return rows.append_column("answer", answers).append_column("size", sizes)

    return pipeline(folder, ask)


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, asking_pipeline)

"""Runs queries one after the other, compares each with DuckDB's answer and shows what it took."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.nexmark.events import Events
from benchmarks.nexmark.generator import Format, write_files
from benchmarks.nexmark.oracle import check
from benchmarks.nexmark.queries import QUERIES
from dagster_jet import Jet, Pipeline, sinks
from dagster_jet.connectors.generated.nexmark.model import Model

FILES = 20
SPARK = {"spark.master": "local[2]", "spark.driver.memory": "2g"}


def pipeline(
    query: str, source: Path, output: Path, model: Model, format: Format = "json", **place: Any
) -> Pipeline:
    """The query between a folder of events and a folder of Parquet files.

    `place`: what source and sink are told of the folders' place."""
    job = Pipeline(f"nexmark_{query}")
    events = Events(job, source, model, format=format, **place)
    answer = sinks.files(str(output), format="parquet", **place)
    QUERIES[query](events).write_to(answer, name="answer")
    return job


def run(
    folder: Path, queries: Iterable[str], model: Model, *, format: Format, console: Console
) -> dict[str, Any]:
    """Exactly once, with a snapshot per second, from a backlog to its end."""
    source = folder / "in"
    write_files(model, source, per_file=max(1, -(-model.events // FILES)), format=format)
    table = Table("query", "rows", "answer", "missing", "extra", "seconds", "rows/s",
                  title=f"NEXMark, {model.events:,} events")  # fmt: skip
    results: list[dict[str, Any]] = []
    members = [f"file://{folder}/store-{letter}" for letter in "abc"]
    with Jet(store=members, spark=SPARK, work_dir=folder / "work") as jet:
        jet.session()  # the start of the JVM is nobody's
        for query in queries:
            output = folder / "out" / query
            job = pipeline(query, source, output, model, format)
            began = time.monotonic()
            result = jet.run(job, until="completed")
            seconds = time.monotonic() - began
            verdict = check(query, model, source, output, format)
            measured = {
                **asdict(verdict),
                "is_exact": verdict.is_exact,
                "rows": result.rows_in,
                "seconds": seconds,
                "rows_per_second": result.rows_in / seconds,
                "epochs": result.epochs,
            }
            results.append(measured)
            table.add_row(
                query,
                f"{result.rows_in:,}",
                f"{verdict.committed:,}",
                f"{verdict.missing:,}",
                f"{verdict.extra + verdict.traces:,}",
                f"{seconds:.1f}",
                f"{measured['rows_per_second']:,.0f}",
            )
    console.print(table)
    wrong = [result["query"] for result in results if not result["is_exact"]]
    if wrong:
        console.print(f"[bold red]Not the oracle's answer: {', '.join(wrong)}.")
    return {
        "model": asdict(model),
        "format": format,
        "queries": results,
        "is_exact": not wrong,
    }

"""A whole pipeline over a few rows, in seconds: rows in by source, rows out by sink."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dagster_jet.connectors.generated.items import ItemsSource
from dagster_jet.connectors.trial import CollectSink, collected, forget
from dagster_jet.errors import ConfigurationError
from dagster_jet.jet import Jet
from dagster_jet.job_config import JobConfig
from dagster_jet.pipeline.pipeline import Pipeline

Rows = Sequence[Mapping[str, Any] | Sequence[Any] | str]


def run_pipeline(
    pipeline: Pipeline,
    inputs: Mapping[str, Rows],
    *,
    config: JobConfig | None = None,
    spark: Mapping[str, str] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Runs a pipeline on rows that are given, until all windows are closed; touches nothing else.

    Its sources and sinks are replaced; tables to enrich with are read where they are. It has a
    store of its own in a temporary folder, and is exactly the job that would run for real: with
    epochs, snapshots, late rows and dead letters.

    Args:
        pipeline: it stays as it is.
        inputs: for every source by name, its rows: see `sources.items`.
        config: for example smaller epochs: ``JobConfig(max_items_per_epoch=1)``.
        spark: settings of Spark; by default two local threads.

    Returns:
        For every sink by name, its rows in no order.

    Raises:
        ConfigurationError: a source has no rows here, or no schema that rows could be made by.
        JetError: what the job ended with.

    Example:
        >>> out = run_pipeline(p, {"rows": [{"id": 1}]})  # doctest: +SKIP
        >>> out["out"]  # doctest: +SKIP
        [{'id': 1}]
    """
    graph = pipeline.graph
    named = {node.name: node.source for node in graph.sources}
    if set(inputs) != set(named):
        raise ConfigurationError(
            f"inputs: rows are given for {', '.join(sorted(inputs)) or 'no source'}; the pipeline "
            f"reads {', '.join(sorted(named))}.",
            job=pipeline.name,
            cure="Give rows for every source by its name; [] for none.",
        )
    sources = {
        name: ItemsSource.of(inputs[name], _schema_of(pipeline.name, name, source), None)
        for name, source in named.items()
    }
    key = uuid.uuid4().hex
    sinks = {node.name: CollectSink(f"{key}/{node.name}") for node in graph.sinks}
    tried = pipeline.with_connectors(sources, sinks)
    with tempfile.TemporaryDirectory(prefix="jet-trial-") as name:
        folder = Path(name)
        with Jet(
            store=[f"file://{folder}/member"],
            backup_count=0,
            spark={"spark.master": "local[2]", **(spark or {})},
            work_dir=folder / "work",
            show_progress=False,
        ) as jet:
            jet.run(tried, _once(config), until="completed")
    found = {name: collected(sink.name).to_pylist() for name, sink in sinks.items()}
    for sink in sinks.values():
        forget(sink.name)
    return found


def _once(config: JobConfig | None) -> JobConfig:
    """A trial that fails is not tried again."""
    return (config or JobConfig()).model_copy(update={"restart_attempts_max": 0})


def _schema_of(job: str, name: str, source: Any) -> str:
    schema = getattr(source, "schema", None)
    if isinstance(schema, str):
        return schema
    raise ConfigurationError(
        "the source says no schema, so that no rows can be made for it.",
        job=job,
        stage=name,
        cure="Give it one: schema=..., also where files would tell it.",
    )

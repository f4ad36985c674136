"""Runs a whole pipeline on a few rows in seconds: takes rows by source, returns rows by sink."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dagster_jet.connectors.generated.items import ItemsSource
from dagster_jet.connectors.trial import CollectSink, collected, forget
from dagster_jet.contract import Source
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
    """Runs a pipeline on given rows until all windows are closed, without side effects.

    Its sources and sinks are replaced; tables for enrichment are read from their places. It has its
    own store in a temporary folder, and otherwise is the real job: with epochs, snapshots, late
    rows and dead letters.

    Args:
        pipeline: it is not changed.
        inputs: rows by source name: see `sources.items`.
        config: for example smaller epochs: ``JobConfig(max_items_per_epoch=1)``.
        spark: settings of Spark; by default two local threads.

    Returns:
        Rows by sink name, in no order.

    Raises:
        ConfigurationError: a source has no rows in `inputs`, or no schema to make rows from.
        JetError: the error that ended the job.

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
            store=[(folder / "member").as_uri()],
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
    """A failed trial is not restarted."""
    return (config or JobConfig()).model_copy(update={"restart_attempts_max": 0})


def _schema_of(job: str, name: str, source: Source) -> str:
    schema = source.row_schema()
    if schema is not None:
        return schema
    raise ConfigurationError(
        "the source says no schema, so that no rows can be made for it.",
        job=job,
        stage=name,
        cure="Give it one: schema=..., also where files would tell it.",
    )

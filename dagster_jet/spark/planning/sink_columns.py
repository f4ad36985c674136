"""Checks the columns of a sink before data flows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_jet.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_jet.pipeline.graph import SinkNode


def check_sink_columns(job: str, node: SinkNode, rows: DataFrame) -> None:
    """Checks the columns of a sink of a stage's rows.

    Raises:
        PipelineError: two columns have one name, or the sink cannot write a column's type.
    """
    seen: dict[str, str] = {}
    for name in rows.columns:
        # Spark and most places compare names without case.
        other = seen.get(name.lower())
        if other is not None:
            raise PipelineError(
                f"two columns are named {name!r}."
                if other == name
                else f"the columns {other!r} and {name!r} differ in case only.",
                job=job,
                stage=node.name,
                cure="Rename or leave out one of them in select(...) before write_to().",
            )
        seen[name.lower()] = name
    node.sink.check_columns(rows, job, node.name)

"""Batch tables for enrichment, read on the driver and cached."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from dagster_jet.contract import Table
from dagster_jet.core.ddl import quoted_name
from dagster_jet.errors import BadRowError, JetError, PipelineError
from dagster_jet.pipeline.graph import EnrichNode
from dagster_jet.system.own_task import naming

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_COUNT = "__count"


@dataclass(frozen=True)
class _Table:
    """A table, and the monotonic time at which it was read."""

    frame: DataFrame
    read_at: float


@dataclass
class EnrichmentTables:
    """Tables of one execution: each is read once, or again when it is older than its refresh."""

    session: SparkSession
    job: str
    failure: Callable[[Exception], JetError]
    """Translates the error of a failed Spark job."""
    reads: int = 0
    """Number of reads: while it is unchanged, so are the frames."""
    _known: dict[str, _Table] = field(default_factory=dict)

    def frame(self, node: EnrichNode, stream_columns: Sequence[str]) -> DataFrame:
        """Returns the table, not older than its refresh, ready to be joined with the stream.

        Raises:
            PipelineError: two columns of the joined rows would have the same name.
            BadRowError: a row does not fit the table's schema, or two rows have one key.
            JetError: the table cannot be read; with its reaction.
        """
        known, now = self._known.get(node.name), time.monotonic()
        if known is not None and not self.is_due(node):
            return known.frame
        frame = self._as_asked(node, stream_columns, self._read(node))
        self._known[node.name] = _Table(frame, now)
        self.reads += 1
        return frame

    def is_due(self, node: EnrichNode) -> bool:
        """Whether the table must be read, for the first time or again."""
        known = self._known.get(node.name)
        if known is None or node.refresh_ms is None:
            return known is None
        return time.monotonic() - known.read_at >= node.refresh_ms / 1000

    def close(self) -> None:
        self._known.clear()

    def _read(self, node: EnrichNode) -> DataFrame:
        table: Table = node.table
        with naming(node.name, self.job):
            try:
                # Not cache(): it is lazy, and Spark shares it among frames that it considers equal.
                return table.frame(self.session).localCheckpoint()
            except (PySparkException, Py4JError, OSError) as raised:
                error = self.failure(raised)
                if not isinstance(error, BadRowError) or error.position is not None:
                    raise error from raised
                raise BadRowError(
                    "a row of the table does not fit its schema.",
                    job=self.job,
                    stage=node.name,
                    position=table.locate_bad_row(self.session) or table.describe().get("path"),
                    cure="Correct the table; tables have no dead letters.",
                ) from raised

    def _as_asked(
        self, node: EnrichNode, stream_columns: Sequence[str], table: DataFrame
    ) -> DataFrame:
        if not node.adds_columns:
            keys = [name for name in table.columns if name in node.on]
            return table.select(*map(quoted_name, keys)).distinct() if keys else table
        if not node.multiplies:
            self._refuse_duplicates(node, table)
        return self._without_clashes(node, stream_columns, table)

    def _refuse_duplicates(self, node: EnrichNode, table: DataFrame) -> None:
        """Each row of the stream with such a key would come out twice."""
        if not set(node.on) <= set(table.columns):
            return  # the analysis reports it
        keys = [quoted_name(name) for name in node.on]
        # One task: the table fits into the memory of one, as each gets it.
        counts = (
            table.coalesce(1)
            .dropna(subset=list(node.on))
            .groupBy(*keys)
            .agg(F.count("*").alias(_COUNT))
        )
        found = counts.where(F.col(_COUNT) > 1).limit(1).collect()
        if found:
            *values, count = found[0]
            key = ", ".join(f"{k}={value!r}" for k, value in zip(node.on, values, strict=True))
            raise BadRowError(
                f"{count} rows of the table have the key {key}: rows of the stream with it would "
                "be multiplied.",
                job=self.job,
                stage=node.name,
                position=node.table.describe().get("path"),
                cure="Remove the duplicates, or ask for all of them with "
                'enrich(duplicates="multiply").',
            )

    def _without_clashes(
        self, node: EnrichNode, stream_columns: Sequence[str], table: DataFrame
    ) -> DataFrame:
        """Adds the suffix to clashing names: a JSON object would have a field twice."""
        keys = {key.lower() for key in node.on}  # as Spark resolves names
        own = {name.lower() for name in stream_columns} - keys
        names = [f"{n}{node.suffix}" if n.lower() in own else n for n in table.columns]
        known = set(own)
        for name in names:
            if name.lower() in known:
                raise PipelineError(
                    f"two columns would be named {name!r}: the stream has "
                    f"{', '.join(stream_columns)}, the table {', '.join(table.columns)}.",
                    job=self.job,
                    stage=node.name,
                    cure="Choose another enrich(suffix=...).",
                )
            known.add(name.lower())
        return table if names == table.columns else table.toDF(*names)

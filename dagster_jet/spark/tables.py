"""Batch tables for enrichment, read on the driver and cached.

Each snapshot notes the versions of tables that have versions. A newer one is read at the end of an
epoch with a snapshot, which notes it, so that no epoch before that snapshot has used it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from dagster_jet.contract import Table, VersionedTable
from dagster_jet.core.ddl import quoted_name
from dagster_jet.errors import BadRowError, JetError, PipelineError, SourceUnavailableError
from dagster_jet.pipeline.graph import EnrichNode
from dagster_jet.system.backoff import attempts
from dagster_jet.system.own_task import naming

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_logger = logging.getLogger(__name__)
_COUNT = "__count"
_KEPT = "kept"
_READS_MAX = 3
"""Largest number of reads of a table that changes while it is read."""
Version = dict[str, Any]


@dataclass(frozen=True)
class _Table:
    """A table as it was read."""

    node: EnrichNode
    stream_columns: Sequence[str]
    frame: DataFrame
    read_at: float
    """Monotonic time."""
    version: Version | None
    """None: the table has no versions."""

    @property
    def is_old(self) -> bool:
        refresh_ms = self.node.refresh_ms
        return refresh_ms is not None and time.monotonic() - self.read_at >= refresh_ms / 1000


@dataclass
class EnrichmentTables:
    """Tables of one execution: each is read once, or again when it is older than its refresh."""

    session: SparkSession
    job: str
    failure: Callable[[Exception], JetError]
    """Translates the error of a failed Spark job."""
    reads: int = 0
    """Number of reads: while it is unchanged, so are the frames."""
    are_noted: bool = True
    """Whether snapshots note the versions; under the guarantee "none" there are no snapshots."""
    _known: dict[str, _Table] = field(default_factory=dict)
    _wanted: dict[str, Version] = field(default_factory=dict)
    """Versions that epochs are repeated with, until they are read."""

    def frame(self, node: EnrichNode, stream_columns: Sequence[str]) -> DataFrame:
        """Returns the table, not older than its refresh, ready to be joined with the stream.

        Raises:
            PipelineError: two columns of the joined rows would have the same name.
            BadRowError: a row does not fit the table's schema, or two rows have one key.
            JetError: the table cannot be read; with its reaction.
        """
        if not self.is_due(node):
            return self._known[node.name].frame
        return self._take(node, stream_columns, self._wanted.pop(node.name, None)).frame

    def is_due(self, node: EnrichNode) -> bool:
        """Whether the table must be read, for the first time or again."""
        known = self._known.get(node.name)
        if known is None:
            return True
        return known.is_old and not (self.are_noted and known.version is not None)

    def noted(self, *, is_last: bool) -> dict[str, dict[str, Any]]:
        """Returns the versions that later epochs are enriched with, by stage, for a snapshot. Reads
        tables that are older than their refresh, so that only what can be read is noted.

        Args:
            is_last: whether the execution ends with this snapshot. No epoch after it is repeated,
                so the next start reads the newest versions.

        Raises:
            JetError: as `frame`.
        """
        noted = {}
        for name, known in list(self._known.items()):
            if known.version is not None and self.are_noted:
                now = self._refreshed(known) if known.is_old and not is_last else known
                table = now.node.table.describe()
                noted[name] = {"table": table, "version": now.version, _KEPT: not is_last}
        return noted

    def restore(self, noted: Mapping[str, Mapping[str, Any]]) -> None:
        """Goes back to the versions that a snapshot has noted, for epochs that are repeated."""
        for name, known in list(self._known.items()):
            note = noted.get(name)
            if note is None or not note[_KEPT] or note["table"] != known.node.table.describe():
                continue
            if note["version"] != known.version:
                self._wanted[name] = note["version"]
                del self._known[name]

    def close(self) -> None:
        self._known.clear()

    def _take(
        self, node: EnrichNode, columns: Sequence[str], version: Version | None = None
    ) -> _Table:
        read_at = time.monotonic()
        rows, version = self._read(node, version)
        frame = self._as_asked(node, columns, rows)
        self._known[node.name] = _Table(node, columns, frame, read_at, version)
        self.reads += 1
        return self._known[node.name]

    def _refreshed(self, known: _Table) -> _Table:
        node, now = known.node, time.monotonic()
        assert isinstance(node.table, VersionedTable)
        with self._errors_of(node):
            newest = node.table.newest()
        if newest != known.version:
            return self._take(node, known.stream_columns, newest)
        self._known[node.name] = replace(known, read_at=now)
        return self._known[node.name]

    def _read(self, node: EnrichNode, version: Version | None) -> tuple[DataFrame, Version | None]:
        """Reads the old or the new content of a table that is replaced meanwhile, never a mixture
        or a part."""
        table: Table = node.table
        with self._errors_of(node):
            for _ in attempts(_READS_MAX, budget_s=inf):
                before = table.parts()
                try:
                    frame, found = self._frame(node, version)
                    listed = table.parts()
                    # Not cache(): it is lazy, and Spark shares it among frames that it considers
                    # equal.
                    rows = frame.localCheckpoint()
                except Exception:
                    if before <= table.parts():
                        raise
                else:
                    # What the frame has listed must stay; files that come meanwhile do no harm.
                    if before | listed <= table.parts():
                        return rows, found
            raise SourceUnavailableError(
                f"the table changed during each of {_READS_MAX} reads.",
                job=self.job,
                stage=node.name,
                position=table.describe().get("path"),
                cure="Replace it as a whole, by a rename, and less often than it takes to read it. "
                "The job restarts from its last snapshot and reads it again.",
            )

    def _frame(self, node: EnrichNode, wanted: Version | None) -> tuple[DataFrame, Version | None]:
        table = node.table
        if not isinstance(table, VersionedTable):
            return table.frame(self.session), None
        if wanted is not None:
            frame = table.frame_at(self.session, wanted)
            if frame is not None:
                return frame, wanted
            _logger.warning(
                "job %r, stage %r: the table does not have the version %s any more, which the "
                "snapshot notes. Epochs that are repeated are enriched with the newest one",
                self.job,
                node.name,
                wanted,
            )
        newest = table.newest()
        frame = table.frame_at(self.session, newest)
        return (table.frame(self.session) if frame is None else frame), newest

    @contextmanager
    def _errors_of(self, node: EnrichNode) -> Iterator[None]:
        table: Table = node.table
        with naming(node.name, self.job):
            try:
                yield
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
        """Refuses a key that is in the table twice: it would double rows of the stream."""
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

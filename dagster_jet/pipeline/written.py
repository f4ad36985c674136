"""A stream that is written to a sink: what becomes of rows that the sink's place refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dagster_jet.pipeline.graph import SinkNode


@dataclass(frozen=True)
class Written:
    """What `Stage.write_to` returns."""

    sink: str
    """The sink's name."""
    _add: Callable[[SinkNode], Any] = field(repr=False)

    def dead_letter_to(self, sink: Any, *, name: str) -> None:
        """Writes rows that the sink's place never takes to `sink`, in the same transaction.

        Tables of databases and Kafka know such rows: a text with a zero byte for PostgreSQL, a
        message above the topic's limit. They are found before the epoch is decided. The columns
        are source (the sink), position (the row's key), reason and raw. Without a dead-letter sink
        such a row fails the job.

        Args:
            sink: `sinks.files`, or `sinks.sql` that appends.
            name: of the dead-letter sink, unique in the pipeline.

        Raises:
            PipelineError: the name is taken.

        Example:
            >>> from dagster_jet import Pipeline, sinks, sources
            >>> rows = Pipeline("p").read_from(sources.sequence(rate=10), name="rows")
            >>> out = rows.write_to(sinks.sql("sqlite:////tmp/a.db", table="t"), name="out")
            >>> out.dead_letter_to(sinks.files("/out/refused", format="json"), name="refused")
        """
        self._add(SinkNode(name, (self.sink,), sink, of_dead_letters=True))

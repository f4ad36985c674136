"""Result of writing a stream to a sink, for adding a dead-letter sink."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dagster_jet.contract import Sink
from dagster_jet.pipeline.graph import SinkNode


@dataclass(frozen=True)
class Written:
    """Return value of `Stage.write_to`."""

    sink: str
    """Name of the sink."""
    _add: Callable[[SinkNode], Any] = field(repr=False)

    def dead_letter_to(self, sink: Sink, *, name: str) -> None:
        """Writes rows that the sink can never accept to `sink`, in the same transaction.

        Database tables, Kafka and maps have such rows, for example a text with a zero byte for
        PostgreSQL, a message above the topic's limit, or a null in a key. They are found before the
        epoch is decided. The columns are source (the sink), position (the row's key), reason and
        raw. Without a dead-letter sink such a row fails the job. A table that mirrors another one
        leaves no row out.

        Args:
            sink: `sinks.files`, or `sinks.sql` in append mode.
            name: name of the dead-letter sink, unique in the pipeline.

        Raises:
            PipelineError: the name is taken.

        Example:
            >>> from dagster_jet import Pipeline, sinks, sources
            >>> rows = Pipeline("p").read_from(sources.sequence(rate=10), name="rows")
            >>> out = rows.write_to(sinks.sql("sqlite:////tmp/a.db", table="t"), name="out")
            >>> out.dead_letter_to(sinks.files("/out/refused", format="json"), name="refused")
        """
        self._add(SinkNode(name, (self.sink,), sink, of_dead_letters=True))

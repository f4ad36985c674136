"""Rows at the terminal of the driver process: a table per epoch.

At-least-once: after a crash it is unknown whether a table was printed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dagster_jet.connectors.staging import Segment, remove_orphans, rows_of, segments_by_epoch
from dagster_jet.connectors.trial.staged_here import StagedHere
from dagster_jet.contract import CommitContext, Committer
from dagster_jet.errors import ArtifactLostError, ConfigurationError
from dagster_jet.operators.rows.far_times import python_rows
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.snapshot.protocol import Guarantee
from dagster_jet.store import Store, StoreHandle

ROWS = 20


@dataclass(frozen=True)
class ConsoleSink(StagedHere):
    """Prints the first rows of each epoch, and their total number."""

    rows: int = ROWS
    store: Store | StoreHandle | None = field(default=None, compare=False, repr=False)
    max_guarantee: Guarantee = field(default=Guarantee.AT_LEAST_ONCE, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise ConfigurationError(f"rows: {self.rows} is less than 0.")

    def describe(self) -> dict[str, str]:
        return {"kind": "console", "guarantee": self.max_guarantee.value}

    def open_committer(self, job: str, stage: str) -> Committer:
        return ConsoleCommitter(self)


@dataclass
class ConsoleCommitter(Committer):
    """Prints decided epochs."""

    sink: ConsoleSink

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        area = self.sink.area(context.job, context.sink)
        for epoch_id, segments in segments_by_epoch(area, artifacts):
            self._print(context.sink, epoch_id, segments)
            for segment in segments:
                segment.remove()

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        area = self.sink.area(context.job, context.sink)
        return remove_orphans(area, context.execution_id, keep)

    def _print(self, sink: str, epoch_id: int, segments: Sequence[Segment]) -> None:
        from rich.console import Console, Group
        from rich.markup import escape
        from rich.table import Table
        from rich.text import Text

        count = sum(segment.artifact.rows for segment in segments)
        shown = _first(segments, self.sink.rows)
        with suppress(TypeError):  # values without an order, or null
            shown.sort(key=lambda row: list(row.values()))
        table = Table()
        for name in shown[0] if shown else ():
            table.add_column(escape(name), overflow="fold")
        for row in shown:
            table.add_row(*["" if value is None else escape(f"{value}") for value in row.values()])
        title = Text(f"{sink}, epoch {epoch_id}: {count:,} rows")
        # One call: other sinks print at the same time.
        Console().print(Group(title, table) if shown else title)


def _first(segments: Sequence[Segment], count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    try:
        for batch in rows_of(segments):
            found += python_rows(batch.slice(0, count - len(found)))
            if len(found) >= count:
                break
    except ArtifactLostError:
        pass  # printed before a crash, which removed the segment
    return found

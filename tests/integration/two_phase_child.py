"""A processor that commits in two phases, and the driver that is killed while it runs it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources
from dagster_jet.dag import (
    Inbox,
    ItemProcessor,
    Outbox,
    PartitionKey,
    Processor,
    ProcessorContext,
    snapshot_emitter,
)
from dagster_jet.system.failpoint import fail_point

from . import child

JOB = "two_phase"
SCHEMA = "k string, ts long, v long"
OUTPUT = "k string, ts long, v long, n long"
STATES = ("staged", "prepared", "committed")
ROWS_PER_TRANSACTION = 3


def into_files(folder: Path, rows_at_most: int = ROWS_PER_TRANSACTION) -> Callable[[], Processor]:
    """A supplier; the class is in here so that it is pickled by value."""

    class IntoFiles(ItemProcessor):
        """Numbers the rows of each key, emits them, and writes them in transactions: a file each,
        which moves from folder to folder. Its name says whose it is: index-token-id."""

        def init(self, outbox: Outbox, context: ProcessorContext) -> None:
            super().init(outbox, context)
            self.counts: dict[str, int] = {}
            self.rows: list[dict[str, Any]] = []
            self.open: list[str] = []
            self.promised: list[str] = []
            self.restored: list[str] = []
            self.is_undecided = False
            self.saving = snapshot_emitter(outbox.offer_to_snapshot)
            self.promising = snapshot_emitter(outbox.offer_to_snapshot)
            self.staged, self.prepared, self.committed = (folder / state for state in STATES)
            for place in (self.staged, self.prepared, self.committed):
                place.mkdir(parents=True, exist_ok=True)

        def process_item(self, ordinal: int, item: Any) -> bool:
            row = {**item, "n": self.counts.get(item["k"], 0) + 1}
            if not self.outbox.offer(row):
                return False
            self.counts[item["k"]] = row["n"]
            self.rows.append(row)
            if len(self.rows) == rows_at_most:
                self.stage()
            return True

        def stage(self) -> None:
            if self.rows:
                name = f"{self.context.index}-{self.context.fencing_token}-{uuid.uuid4().hex}"
                text = "".join(json.dumps(row) + "\n" for row in self.rows)
                (self.staged / name).write_text(text, "utf-8")
                self.open.append(name)
                self.rows = []

        # --- phase 1

        def save_to_snapshot(self) -> bool:
            return self.saving.emit(lambda: list(self.counts.items()))

        def snapshot_commit_prepare(self) -> bool:
            return self.promising.emit(self.promise)

        def promise(self) -> list[tuple[Any, Any]]:
            self.stage()
            for name in self.open:
                (self.staged / name).rename(self.prepared / name)
            fail_point("test.prepared")
            self.promised += self.open
            self.open, self.is_undecided = [], True
            return [(PartitionKey(self.context.index), [*self.promised])] if self.promised else []

        # --- phase 2

        def snapshot_commit_finish(self, *, success: bool) -> bool:
            self.is_undecided = False
            if success:
                self.commit(self.promised)
                self.promised = []
            return True

        def commit(self, names: list[str]) -> None:
            for name in names:
                fail_point("test.commit")
                with suppress(FileNotFoundError):  # committed before
                    (self.prepared / name).rename(self.committed / name)

        def restore_from_snapshot(self, inbox: Inbox) -> bool:
            for key, value in inbox.drain():
                if isinstance(key, PartitionKey):
                    self.restored += value
                else:
                    self.counts[key] = value
            return True

        def finish_snapshot_restore(self) -> bool:
            self.commit(self.restored)
            for path in [*self.staged.iterdir(), *self.prepared.iterdir()]:
                index, token, _ = path.name.split("-")
                is_ours = int(index) % self.context.total_parallelism == self.context.index
                if is_ours and int(token) < self.context.fencing_token:
                    path.unlink(missing_ok=True)
            return True

        def complete(self) -> bool:
            """Rows that came behind the last barrier: no snapshot follows that could decide."""
            if self.is_undecided:
                return False
            self.stage()
            for name in self.open:
                (self.staged / name).rename(self.prepared / name)
            self.commit([*self.promised, *self.open])
            self.promised, self.open = [], []
            return True

    return IntoFiles


def two_phase_pipeline(folder: Path) -> Pipeline:
    """The processor's rows also go to a sink: both are cut at one point.

    Without event time: no watermark brings another epoch, which would commit by the way.
    """
    p = Pipeline(JOB)
    rows = p.read_from(
        sources.files(f"{folder}/in/left", format="json", schema=SCHEMA), name="rows"
    )
    rows.group_by("k").apply_processor(
        into_files(folder / "transactions"), output_schema=OUTPUT, name="into_files"
    ).write_to(sinks.files(f"{folder}/out/numbered", format="json"), name="numbered_out")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, two_phase_pipeline)

"""What sources remember beyond their positions, on its way into the store.

A source with an unbounded position (the files it has read) appends rows to a journal, epoch by
epoch. A snapshot writes the rows since the last decided one; they are kept until it is decided, so
that the next one has them if it fails. Writing goes on beside the epoch's tasks: the rows are known
when the epoch is planned, and no snapshot names them before its acks are in.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from dagster_jet.core.failpoint import FailPointError
from dagster_jet.engine.connector import SourceReader
from dagster_jet.engine.snapshot_store import SnapshotStore
from dagster_jet.errors import JetError
from dagster_jet.snapshot.manifest import ChunkSet
from dagster_jet.snapshot.protocol import RunEpoch

CHAIN_MAX = 32
"""Now and then a journal is written anew, to keep its chain short."""


@dataclass
class SourceJournals:
    """The journals of all sources of one execution.

    One thread calls it; `decided` may come from another, before the next snapshot begins.
    """

    readers: Mapping[str, SourceReader]
    snapshots: SnapshotStore
    _collected: dict[str, list[pa.Table]] = field(default_factory=dict)
    _deciding: dict[str, list[pa.Table]] = field(default_factory=dict)
    """In the last snapshot that was begun; empty once that is decided."""
    _writing: dict[str, Future[ChunkSet]] = field(default_factory=dict)
    _writer: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "jet-journal"), repr=False
    )

    def collect(self) -> None:
        """Takes what the readers have noted since the last call: once per epoch, as planned."""
        for name, reader in self.readers.items():
            rows = reader.take_journal()
            if rows is not None:
                self._collected.setdefault(name, []).append(rows)

    def begin_snapshot(self, command: RunEpoch, chains: Mapping[str, tuple[ChunkSet, ...]]) -> None:
        """Begins to write what no decided snapshot has. A crash leaves chunks that nothing names.

        Args:
            chains: by source, what earlier snapshots have written.
        """
        for name, rows in self._collected.items():
            self._deciding.setdefault(name, []).extend(rows)
        self._collected = {}
        for name, rows in self._deciding.items():
            is_base = not chains[name] or len(chains[name]) >= CHAIN_MAX
            self._writing[name] = self._writer.submit(
                self.snapshots.write_journal,
                name,
                command,
                chains[name],
                self.readers[name].whole_journal() if is_base else pa.concat_tables(rows),
                is_base=is_base,
            )

    def written(self, source: str) -> tuple[ChunkSet | None, str | None]:
        """Waits for the source's part of the snapshot: what was written, or why it was not."""
        writing = self._writing.pop(source, None)
        if writing is None:
            return None, None
        try:
            return writing.result(), None
        except (JetError, FailPointError) as failure:
            return None, str(failure)

    def decided(self) -> None:
        """The last snapshot that was begun has all that was collected before it."""
        self._deciding = {}

    def close(self) -> None:
        """Waits for what is being written."""
        self._writer.shutdown()

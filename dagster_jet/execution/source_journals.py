"""Writes the journals of sources to the store.

A source with an unbounded position (the files it has read) appends rows to a journal in each epoch.
A snapshot writes the rows since the last decided snapshot. They are kept until it is decided, so
that the next snapshot has them if this one fails. The rows are written beside the epoch's tasks:
they are known when the epoch is planned, and no snapshot names them before its acks. The epoch also
notes input that is in no snapshot yet (`undecided_input.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from dagster_jet.contract import SourceReader
from dagster_jet.errors import JetError
from dagster_jet.execution.undecided_input import EPOCH_COLUMN, UndecidedInput
from dagster_jet.snapshot.manifest import ChunkSet
from dagster_jet.snapshot.protocol import RunEpoch
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.system.failpoint import FailPointError


@dataclass
class SourceJournals:
    """The journals of all sources of one execution.

    One thread calls it; another thread may call `decided`, before the next snapshot begins.
    """

    readers: Mapping[str, SourceReader]
    snapshots: SnapshotStore
    undecided: UndecidedInput | None
    """None if there are no snapshots: every start then reads all input again."""
    _collected: dict[str, list[pa.Table]] = field(default_factory=dict)
    _deciding: dict[str, list[pa.Table]] = field(default_factory=dict)
    """Rows in the last begun snapshot; empty once it is decided."""
    _noting: Future[None] | None = None
    _writing: dict[str, Future[ChunkSet]] = field(default_factory=dict)
    _writer: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "jet-journal"), repr=False
    )
    _noter: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "jet-note"), repr=False
    )

    def begin_epoch(self, command: RunEpoch, chains: Mapping[str, tuple[ChunkSet, ...]]) -> None:
        """Takes and notes the rows that the readers have planned. For a snapshot, writes the rows
        that no decided snapshot has. Called once per epoch, when its tasks have started.

        A crash leaves a note, and chunks that no manifest names.

        Args:
            chains: by source, the chunk sets of earlier snapshots.
        """
        self._noting = self._noter.submit(self._take, command, chains)

    def write_anew(self, source: str, reader: SourceReader) -> None:
        """The next snapshot writes the whole journal of a restored source, also without input."""
        journal = reader.whole_journal((), ())
        epochs = pa.array([], pa.int64())
        empty = journal.append_column(EPOCH_COLUMN, epochs)
        self._collected.setdefault(source, []).append(empty)

    def begun(self) -> None:
        """Waits until the epoch's input is noted. Called before a reader is used again.

        Raises:
            JetError: a reader could not return its planned rows.
        """
        noting, self._noting = self._noting, None
        if noting is not None:
            noting.result()

    def take_back(self, command: RunEpoch, position: str | None) -> None:
        """Removes the input at `position` from the notes, because the epoch has failed on it and
        the error names it. If it is taken away, the next start does not miss it; all other noted
        input must exist."""
        if position is None:
            return
        with suppress(JetError):
            self.begun()
        if self.undecided is None:
            return
        for name in self.readers:
            tables = [*self._deciding.get(name, ()), *self._collected.get(name, ())]
            if tables:
                of = command.execution_id, command.epoch_id
                self.undecided.take_back(name, *of, position, tables)

    def _take(self, command: RunEpoch, chains: Mapping[str, tuple[ChunkSet, ...]]) -> None:
        new = {name: reader.take_journal() for name, reader in self.readers.items()}
        if self.undecided is None:
            return
        epoch_id = pa.scalar(command.epoch_id, pa.int64())
        noted = []
        for name, rows in new.items():
            if rows is not None:
                epochs = pa.repeat(epoch_id, rows.num_rows)
                self._collected.setdefault(name, []).append(
                    rows.append_column(EPOCH_COLUMN, epochs)
                )
                if self.readers[name].rereads_input:
                    tables = [*self._deciding.get(name, ()), *self._collected[name]]
                    noted.append((name, command.execution_id, tables))
        if command.snapshot_id is not None:
            self._begin_snapshot(command, chains)
        for note in noted:
            self.undecided.note(*note)

    def _begin_snapshot(
        self, command: RunEpoch, chains: Mapping[str, tuple[ChunkSet, ...]]
    ) -> None:
        for name, rows in self._collected.items():
            self._deciding.setdefault(name, []).extend(rows)
        self._collected = {}
        for name, rows in self._deciding.items():
            turn = self.snapshots.journal_turn(chains[name])
            newest_first = pa.concat_tables(reversed(rows)).drop_columns([EPOCH_COLUMN])
            whole = self.readers[name].whole_journal(turn.parts, self._undecided_keys(name))
            self._writing[name] = self._writer.submit(
                self.snapshots.write_journal, name, command, turn.rows(newest_first, whole), turn
            )

    def _undecided_keys(self, source: str) -> frozenset[str]:
        """Returns the keys of input that no decided snapshot has, or that an earlier execution has
        noted."""
        keys = {key for rows in self._deciding[source] for key in rows.column(0).to_pylist()}
        return frozenset(keys | (self.undecided.owed(source) if self.undecided else set()))

    def written(self, source: str) -> tuple[ChunkSet | None, str | None]:
        """Waits for the source's part of the snapshot; returns the chunk set, or the error text."""
        writing = self._writing.pop(source, None)
        if writing is None:
            return None, None
        try:
            return writing.result(), None
        except (JetError, FailPointError) as failure:
            return None, str(failure)

    def decided(self) -> None:
        """Drops the rows that the decided snapshot contains."""
        self._deciding = {}

    def close(self) -> None:
        """Waits for running writes."""
        self._noter.shutdown()
        self._writer.shutdown()

"""Notes input that was read and is in no decided snapshot yet.

After a crash the next execution reads all input behind the snapshot again. Without notes it could
not detect input that was deleted or moved away meanwhile. So every epoch notes beside its tasks the
planned input of its sources, and a start compares the notes of earlier executions with the existing
input.

A note may list too much, never too little: input that was decided since is in the restored
position. A note is one value per source and execution, rewritten by every epoch that reads input,
so that an old or paused execution cannot remove another's entries. Each write has a number, so that
a write delayed by the network does not replace its successors.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.contract import InputFate, SourceReader
from dagster_jet.core.stored_format import check_format
from dagster_jet.errors import StoreError
from dagster_jet.store import ReplicatedMap, Store
from dagster_jet.store.map.stored_key import VERSION_BYTES
from dagster_jet.system.failpoint import FailPointError

_logger = logging.getLogger(__name__)

EPOCH_COLUMN = "__epoch"
"""Column of a note: the epoch that has read the row's input."""
_FORMAT, _FORMAT_KEY = 1, b"dagster_jet.format"


@dataclass(frozen=True)
class LostInput:
    """Input that was read, is in no decided snapshot, and cannot be read again."""

    shown: str
    """Description of the input and its size, in words."""
    epoch_id: int


@dataclass
class UndecidedInput:
    """The notes of one job, for one execution. One thread at a time."""

    store: Store
    job: str
    _owed: dict[str, pa.Table] = field(default_factory=dict)
    """Input by source that earlier executions have read and this one has to read again."""
    _fails: bool = False
    _writes: int = 0

    def check(
        self, source: str, reader: SourceReader, snapshot_epoch: int = 0
    ) -> tuple[LostInput, ...]:
        """Returns the noted input that a restored reader cannot read again, in order of epochs, and
        input that its snapshot of the epoch `snapshot_epoch` contains in part.

        Raises:
            StoreMismatchError: a newer version has written a note.
            StoreError: the notes cannot be read now.
        """
        halves = tuple(LostInput(reader.shown(row), snapshot_epoch) for row in reader.take_gone())
        map = self._map()
        data = map.get_all(map.keys(f"{source}/"))
        notes = [_table(note, self.job) for note in data if note is not None]
        if not notes:
            return halves
        noted = pa.concat_tables(notes, promote_options="default")
        rows = noted.to_pylist()
        fates = reader.fates(rows)
        self._owed[source] = _those(noted, (fate is InputFate.WAITING for fate in fates))
        lost = {
            LostInput(reader.shown(row), row[EPOCH_COLUMN])
            for row, fate in zip(rows, fates, strict=True)
            if fate is InputFate.GONE
        }.union(halves)
        return tuple(sorted(lost, key=lambda one: (one.epoch_id, one.shown)))

    def rename(self, former: str, source: str) -> None:
        """Moves the notes of a source that had another name. A crash inside leaves them under both;
        the next start with the same word moves the rest."""
        map = self._map()
        old = map.keys(f"{former}/")
        notes = zip(old, map.get_all(old), strict=True)
        moved = {
            map.key(f"{source}/{key.name.rpartition('/')[2]}"): note
            for key, note in notes
            if note is not None
        }
        if moved:
            map.put_newer(moved)
            map.delete_all(old)

    def take_over(self, source: str, execution_id: int) -> None:
        """Takes over the input that is still owed into this execution's note, and deletes earlier
        notes.

        A crash inside leaves the owed input in two notes, which count as one.
        """
        owed = self._owed.get(source)
        if owed is not None and owed.num_rows:
            self._write(source, execution_id, owed)
        self.forget(source, execution_id)

    def forget(self, source: str, before: int) -> None:
        """Deletes the notes of executions with a lower id than `before`."""
        map = self._map()
        notes = map.keys(f"{source}/")
        map.delete_all([key for key in notes if int(key.name.rpartition("/")[2]) < before])

    def owed(self, source: str) -> set[str]:
        """Returns the keys of input that earlier executions have read and this one has to read
        again."""
        owed = self._owed.get(source)
        return set() if owed is None or not owed.num_rows else set(owed.column(0).to_pylist())

    def note(self, source: str, execution_id: int, rows: Sequence[pa.Table]) -> None:
        """Notes all undecided input of a source, epochs of this execution first.

        Best effort: an outage of the store stops no epoch, and the next note is complete again.
        """
        owed = self._owed.get(source)
        tables = [*rows, *([] if owed is None else [owed])]
        try:
            noted = pa.concat_tables(tables, promote_options="default")
            self._write(source, execution_id, noted)
            self._fails = False
        except (StoreError, FailPointError) as error:
            if not self._fails:
                _logger.warning(
                    "job %r, stage %r: the list of the input that this epoch reads could not be "
                    "saved: %s. If the job dies before its next snapshot, the next start does "
                    "not detect input that was deleted meanwhile.",
                    self.job,
                    source,
                    error,
                )
            self._fails = True

    def take_back(
        self,
        source: str,
        execution_id: int,
        epoch_id: int,
        position: str,
        rows: Sequence[pa.Table],
    ) -> None:
        """Rewrites the note without the input at a position that one epoch has read; best effort,
        too."""
        noted = pa.concat_tables(rows)
        keys = noted.column(0).to_pylist()
        at_fault = pa.array([_is_in(position, key) for key in keys], pa.bool_())
        failed = pc.and_(pc.equal(noted.column(EPOCH_COLUMN), epoch_id), at_fault)
        inputs = [_input(row) for row in noted.filter(failed).to_pylist()]
        if source in self._owed:
            owed = self._owed[source]
            still = (_input(row) not in inputs for row in owed.to_pylist())
            self._owed[source] = _those(owed, still)
        self.note(source, execution_id, [noted.filter(pc.invert(failed))])

    def _write(self, source: str, execution_id: int, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        schema = table.schema.with_metadata({_FORMAT_KEY: str(_FORMAT)})
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_table(table.cast(schema))
        self._writes += 1
        number = self._writes.to_bytes(VERSION_BYTES, "big")
        map = self._map()
        map.put_newer({map.key(f"{source}/{execution_id}"): number + sink.getvalue().to_pybytes()})

    def _map(self) -> ReplicatedMap:
        """Opens the map at each use, because the store's members may have changed."""
        return self.store.map(f"jobs/{self.job}/undecided")


def _is_in(position: str, key: str) -> bool:
    """Returns whether a position is the input of this key, or a row in it."""
    return position == key or position.startswith(f"{key}:")


def _those(rows: pa.Table, wanted: Iterable[bool]) -> pa.Table:
    """Filters rows. Handles empty notes, for which Arrow infers another type."""
    return rows.filter(pa.array(list(wanted), pa.bool_()))


def _input(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row without its epoch."""
    return {column: value for column, value in row.items() if column != EPOCH_COLUMN}


def _table(note: bytes, job: str) -> pa.Table:
    table = pa.ipc.open_stream(note[VERSION_BYTES:]).read_all()
    found = int((table.schema.metadata or {}).get(_FORMAT_KEY, b"0"))
    check_format("the saved list of undecided input", found, _FORMAT, job=job)
    return table

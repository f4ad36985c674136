"""The source's reader and the store behind its journal; the journal itself is the engine's.

Everything is done in the caller's thread, at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.snapshot.manifest import ChunkSet
from dagster_jet.snapshot.protocol import RunEpoch
from dagster_jet.snapshot.storage.chunks import ChunkSetName
from dagster_jet.snapshot.storage.journal_parts import JournalTurn

from .chunks import Delta

if TYPE_CHECKING:
    from .world import World


class Reader:
    """Remembers every row that it was ever told to read."""

    rereads_input = False

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._taken = 0

    def restore(self, rows: tuple[int, ...]) -> None:
        self.rows = list(rows)
        self._taken = len(rows)

    def plan(self, rows: tuple[int, ...]) -> None:
        self.rows += rows

    def take_journal(self) -> pa.Table | None:
        new, self._taken = self.rows[self._taken :], len(self.rows)
        return _table(new) if new else None

    def whole_journal(self, parts: Collection[int], undecided: Collection[int]) -> pa.Table:
        if not {*undecided} <= {*self.rows}:
            raise AssertionError("the engine says that rows are undecided which nobody has read")
        return _table(self.rows)


class JournalStore:
    """Takes the place of the engine's `SnapshotStore`."""

    def __init__(self, world: World) -> None:
        self.world = world

    def journal_turn(self, chain: tuple[ChunkSet, ...]) -> JournalTurn:
        return JournalTurn.of(chain, 271)

    def write_journal(
        self, source: str, epoch: RunEpoch, table: pa.Table, turn: JournalTurn
    ) -> ChunkSet:
        if self.world.chance("chunks_not_stored"):
            self.world.seen["a journal could not be stored"] += 1
            raise StoreUnavailableError("a member is away")
        assert epoch.snapshot_id is not None
        name = ChunkSetName(source, epoch.snapshot_id, epoch.execution_id, 0, "driver")
        rows = tuple(table.column("row").to_pylist())
        self.world.chunks.put_chunks(source, str(name), epoch.execution_id, Delta(rows))
        is_whole = 0 in turn.parts  # its only part
        return ChunkSet(
            str(name), 0, 1, len(rows), 8 * len(rows), sequence=turn.sequence, is_base=is_whole
        )


class AtOnce:
    """An executor without threads."""

    def submit(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self) -> None:
        pass


def _table(rows: list[int]) -> pa.Table:
    return pa.table({"row": pa.array(rows, pa.int64())})

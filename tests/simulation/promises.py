"""A stage whose processors commit in two phases, and the outside system that they write to.

The stage's state are the ids of what its shards have prepared. Rows are nowhere else: what the
system shows in the end is what the stage has made of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from dagster_jet.snapshot.coordinator_view import CoordinatorView

from .chunks import merge
from .recovery import shard_of
from .scenario import PARTITION_COUNT, PROMISES

if TYPE_CHECKING:
    from .driver import Driver

Token = tuple[int, int]
"""Execution and epoch."""


class Promises:
    """Transactions by id; knows nothing of records or snapshots."""

    def __init__(self, on_kept: Callable[[int, tuple[int, ...]], None]) -> None:
        self.prepared: dict[int, tuple[Token, tuple[int, ...]]] = {}
        self.rows: Counter[int] = Counter()
        """Rows that a reader sees."""
        self._on_kept = on_kept
        self._count = 0

    def prepare(self, shard: int, token: Token, rows: tuple[int, ...]) -> int:
        """The id has the shard's partition: it stays with its rows at another parallelism."""
        self._count += 1
        number = self._count * PARTITION_COUNT + shard
        self.prepared[number] = (token, rows)
        return number

    def keep(self, number: int) -> None:
        """Commits; one that is unknown was committed before."""
        _, rows = self.prepared.pop(number, (None, ()))
        self.rows.update(rows)
        self._on_kept(number, rows)

    def restore(
        self, driver: Driver, ids: Collection[int], shard: int, shards: int, token: Token
    ) -> None:
        """Restores a processor: keeps its own transactions and rolls back those of older
        attempts."""
        for number in ids:
            self.keep(number)
        for number, (by, _) in list(self.prepared.items()):
            if shard_of(number, shards) == shard and driver.may_break(token, by):
                del self.prepared[number]


def kept_by(driver: Driver, view: CoordinatorView) -> list[Callable[[], None]]:
    """Phase 2 of the stage: for each shard an instance that is restored, and no more."""
    record, states = view.record, view.shards[PROMISES]
    assert record is not None and record.snapshot is not None
    token = (driver.execution_id, record.snapshot.epoch_id)

    def keep(shard: int, ids: tuple[int, ...]) -> Callable[[], None]:
        return lambda: driver.world.promises.restore(driver, ids, shard, len(states), token)

    runs = driver.runs
    return [
        keep(shard, merge(runs[run.path] for run in (*state.saved, *state.unsaved)).came)
        for shard, state in enumerate(states)
    ]

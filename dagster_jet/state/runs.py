"""A shard's state between snapshots: immutable Arrow runs in an executor-local folder.

Runs are appended and merged into larger ones, never changed. They are scratch: not fsynced, lost
with the machine. Durable state is in the store as chunks. `saved` runs are covered by the last
snapshot, `unsaved` runs must be written by the next snapshot, `deciding` runs are in a snapshot
that is not decided yet. Runs of different kinds are never merged.

Runs of a state with a key hash are sorted by hash and time: a key, or its rows of some time, is
found by binary search in the mapped file (in each of its batches; a large run has several), so that
the cost of a step depends on the arriving rows, not on the stored ones. Runs of other states are
sorted by partition, as a snapshot needs them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.errors import ExecutorLostError
from dagster_jet.operators.operator import (
    HASH_COLUMN,
    PARTITION_COLUMN,
    Intervals,
    Operator,
    find_rows,
)
from dagster_jet.snapshot.manifest import Run, ShardState
from dagster_jet.state.merging import Merge, merged_parts

MERGE_FAN_IN = 8
"""Number of runs of about equal size that triggers a merge: each row is rewritten log times."""


@dataclass
class RunFolder:
    """Writes and reads the runs of one (vertex, shard) in one task attempt."""

    folder: Path
    prefix: str
    vertex: str
    time_column: str
    obsolete: list[str] = field(default_factory=list)
    _written: int = 0

    def write(self, table: pa.Table) -> tuple[Run, ...]:
        """Write one run, or none for an empty table. A crash leaves an unreferenced file.

        Raises:
            ExecutorLostError: the folder cannot be written; the job restarts from the snapshot.
        """
        return self.write_parts([table])

    def write_parts(self, parts: Iterable[pa.Table]) -> tuple[Run, ...]:
        """Write all parts into one run, one record batch each. Errors as for `write`.

        Each batch is sorted by key hash and time if the state has hashes, else by partition; the
        order of the batches is arbitrary.
        """
        filled = (part for part in parts if part.num_rows)
        first = next(filled, None)
        if first is None:
            return ()
        path = self.folder / f"{self.prefix}-{self._written}.arrow"
        self._written += 1
        rows, earliest, latest = 0, None, None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, first.schema) as writer:
                for part in chain([first], filled):
                    has_hash = HASH_COLUMN in part.schema.names
                    by = (HASH_COLUMN, self.time_column) if has_hash else (PARTITION_COLUMN,)
                    ordered = part.sort_by([(column, "ascending") for column in by])
                    writer.write_table(ordered.combine_chunks())
                    times = pc.min_max(part.column(self.time_column)).as_py()
                    rows += part.num_rows
                    earliest = _least(earliest, times["min"])
                    latest = _greatest(latest, times["max"])
        except OSError as error:
            raise ExecutorLostError(
                f"the local state file {path} cannot be written: {error}.",
                stage=self.vertex,
                cure="Free disk space, or give another work_dir. Meanwhile the job restarts from "
                "its last snapshot.",
            ) from error
        return (Run(str(path), rows, path.stat().st_size, earliest, latest),)

    def read(self, runs: Iterable[Run]) -> list[pa.Table]:
        """Return memory-mapped tables, in order.

        Raises:
            ExecutorLostError: a run is missing or damaged; the job restarts from the snapshot.
        """
        tables = []
        for run in runs:
            try:
                with pa.memory_map(run.path) as source:
                    table = pa.ipc.open_file(source).read_all()
            except (OSError, pa.ArrowInvalid) as error:
                raise ExecutorLostError(
                    f"the local state file {run.path} is gone or damaged: {error}.",
                    stage=self.vertex,
                    cure="The job restarts from its last snapshot.",
                ) from None
            if table.num_rows != run.rows:
                raise ExecutorLostError(
                    f"{run.path} has {table.num_rows} rows, expected {run.rows}.",
                    stage=self.vertex,
                )
            tables.append(table)
        return tables

    def drop_expired(self, runs: Iterable[Run], expired_until_ms: int | None) -> tuple[Run, ...]:
        """Leave out the runs in which all rows are expired."""
        live = []
        for run in runs:
            if expired_until_ms is not None and run.latest_ms is not None:
                if run.latest_ms <= expired_until_ms:
                    self.obsolete.append(run.path)
                    continue
            live.append(run)
        return tuple(live)

    def tightened(self, runs: Iterable[Run], expired_until_ms: int | None) -> tuple[Run, ...]:
        """Gives runs that are expired in part the time of their earliest living row. Reads their
        column of times.

        Raises:
            ExecutorLostError: as `read`.
        """
        return tuple(
            run
            if expired_until_ms is None
            or run.earliest_ms is None
            or run.earliest_ms > expired_until_ms
            else replace(run, earliest_ms=self._earliest_live(run, expired_until_ms))
            for run in runs
        )

    def _earliest_live(self, run: Run, expired_until_ms: int) -> int | None:
        (table,) = self.read([run])
        times = table.column(self.time_column)
        earliest: int | None = pc.min(times.filter(pc.greater(times, expired_until_ms))).as_py()
        return earliest

    def compact(
        self,
        runs: tuple[Run, ...],
        merge: Merge,
        expired_until_ms: int | None,
        *,
        merge_all: Merge | None = None,
        fan_in: int = MERGE_FAN_IN,
    ) -> tuple[Run, ...]:
        """Merge the newest runs of about equal size once there are `fan_in` of them.

        Args:
            merge_all: used instead of `merge` if the oldest run is among them.
        """
        tail = _tail_of_one_size(runs)
        if len(tail) < fan_in:
            return runs
        if merge_all is not None and len(tail) == len(runs):
            merge = merge_all
        parts = self.merged(self.read(tail), merge, expired_until_ms)
        self.obsolete.extend(run.path for run in tail)
        return (*runs[: len(runs) - len(tail)], *self.write_parts(parts))

    def merged(
        self,
        tables: Sequence[pa.Table],
        merge: Merge,
        expired_until_ms: int | None,
        *,
        by_partition: bool = False,
    ) -> Iterator[pa.Table]:
        """Merge the live rows of some tables (at least one) in parts of bounded size."""
        return merged_parts(
            tables,
            merge,
            lambda part: self.live_rows(part, expired_until_ms),
            by_partition=by_partition,
        )

    def live_rows(self, tables: Sequence[pa.Table], expired_until_ms: int | None) -> list[pa.Table]:
        if expired_until_ms is None:
            return list(tables)
        return [self._live_part(table, expired_until_ms) for table in tables]

    def _live_part(self, table: pa.Table, expired_until_ms: int) -> pa.Table:
        times = table.column(self.time_column)
        earliest = pc.min(times).as_py()
        if earliest is None or earliest > expired_until_ms:
            return table  # nearly always: the filter would copy the whole table
        return table.filter(pc.greater(times, expired_until_ms))


@dataclass
class RunState:
    """A shard's runs as read by an operator in one step: `StateReader`."""

    runs: RunFolder
    operator: Operator
    shard: ShardState
    expired_until_ms: int | None
    """Event time up to which earlier steps have expired rows."""
    _read: dict[str, pa.Table] = field(default_factory=dict)

    def due(self, until_ms: int) -> pa.Table:
        runs = [r for r in self.shard.runs if r.earliest_ms is None or r.earliest_ms <= until_ms]
        times = self.runs.time_column
        due = [
            table.filter(pc.less_equal(table.column(times), until_ms))
            for table in self.runs.live_rows(self._tables(runs), self.expired_until_ms)
        ]
        return pa.concat_tables([self.operator.state_schema.empty_table(), *due])

    def find(self, hashes: np.ndarray, within: Intervals | None = None) -> pa.Table:
        order = np.argsort(hashes)
        wanted = hashes[order]
        intervals = None if within is None else within.of(order)
        names = (HASH_COLUMN, self.runs.time_column)
        found = []
        for table in self._tables(self.shard.runs):
            for batch in table.to_batches():
                hashes_of_run, times = (batch.column(name).to_numpy() for name in names)
                rows = find_rows(hashes_of_run, times, wanted, intervals)
                if len(rows):
                    found.append(pa.Table.from_batches([batch.take(pa.array(rows))]))
        return self._merge(found)

    def scan(self) -> pa.Table:
        return self._merge(self._tables(self.shard.runs))

    def _merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        live = self.runs.live_rows(tables, self.expired_until_ms)
        return self.operator.merge([self.operator.state_schema.empty_table(), *live])

    def _tables(self, runs: Iterable[Run]) -> list[pa.Table]:
        missing = [run for run in runs if run.path not in self._read]
        for run, table in zip(missing, self.runs.read(missing), strict=True):
            self._read[run.path] = table
        return [self._read[run.path] for run in runs]


def _least(one: int | None, other: int | None) -> int | None:
    return min((value for value in (one, other) if value is not None), default=None)


def _greatest(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _tail_of_one_size(runs: Sequence[Run]) -> tuple[Run, ...]:
    tail: list[Run] = []
    for run in reversed(runs):
        if tail and run.rows > MERGE_FAN_IN * max(r.rows for r in tail):
            break
        tail.append(run)
    return tuple(reversed(tail))


def delete_runs(paths: Iterable[str]) -> None:
    """Delete run files that no manifest names any more; ignores missing ones."""
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue


def sweep_dead_executions(work_dir: Path) -> None:
    """Delete the folders of dead executions on this machine.

    Args:
        work_dir: folder of the starting execution, named by its id. A suspended older execution
            that misses its runs is fenced anyway.
    """
    if not work_dir.name.isdigit():
        return
    for folder in work_dir.parent.glob("[0-9]*"):
        if folder.name.isdigit() and int(folder.name) < int(work_dir.name):
            shutil.rmtree(folder, ignore_errors=True)

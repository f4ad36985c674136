"""Compares a stage's state in two snapshots, key by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.core.arrow_types import ArrowTable
from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.operators.rows.far_times import python_rows, python_values
from dagster_jet.operators.rows.keys import key_codes
from dagster_jet.operators.saved_rows import content_columns, identity_columns
from dagster_jet.snapshot.plan import StagePlan


@dataclass(frozen=True)
class StateDifference:
    """Difference between a stage's state in two snapshots.

    Attributes:
        stage: a stateful stage, or a source that keeps a journal of what it has read.
        added: rows whose key is only in the second.
        removed: rows whose key is only in the first: closed windows, expired or cleared keys.
        changed: the keys that are in both with different content: the key's columns, then `before`
            and `after`, each a struct of all other columns.
    """

    stage: str
    added: ArrowTable
    removed: ArrowTable
    changed: ArrowTable

    @property
    def is_empty(self) -> bool:
        """Whether nothing has changed."""
        return not (self.added.num_rows or self.removed.num_rows or self.changed.num_rows)


def difference(stage: str, before: pa.Table, after: pa.Table, plan: StagePlan) -> StateDifference:
    """Compares the living rows of two snapshots (`saved_rows.living_rows`).

    If a key has several rows (a stage without keys, parts that only users' code can merge), whole
    rows are compared as multisets.

    Raises:
        SnapshotInvalidError: the columns differ: the pipeline was changed between the snapshots.
    """
    if before.schema.names != after.schema.names or before.schema.types != after.schema.types:
        raise SnapshotInvalidError(
            "the two snapshots have different columns of its state.",
            stage=stage,
            cure="Read both with Job.read_state, and compare what you need.",
        )
    identity = identity_columns(before, plan)
    content = content_columns(before, identity)
    ours, theirs = key_codes(identity, before, after)
    if _repeats(ours) or _repeats(theirs):
        return _by_whole_rows(stage, before, after, [*identity, *content])
    removed = ~np.isin(ours, theirs)
    added = ~np.isin(theirs, ours)
    kept_before, kept_after = _aligned(ours, ~removed, theirs, ~added)
    old, new = before.take(pa.array(kept_before)), after.take(pa.array(kept_after))
    differs = np.zeros(old.num_rows, bool)
    for name in content:
        differs |= _differ(old.column(name), new.column(name))
    mask = pa.array(differs)
    old, new = old.filter(mask), new.filter(mask)
    changed = new.select(identity)
    for side, rows in (("before", old), ("after", new)):
        changed = changed.append_column(side, _struct(rows, content))
    return StateDifference(
        stage,
        after.filter(pa.array(added)).select([*identity, *content]),
        before.filter(pa.array(removed)).select([*identity, *content]),
        changed,
    )


def _by_whole_rows(
    stage: str, before: pa.Table, after: pa.Table, columns: Sequence[str]
) -> StateDifference:
    old, new = before.select(columns), after.select(columns)
    rows_before, rows_after = (_as_text(table) for table in (old, new))
    changed = new.slice(0, 0)
    return StateDifference(
        stage,
        new.filter(pa.array(_surplus(rows_after, rows_before), pa.bool_())),
        old.filter(pa.array(_surplus(rows_before, rows_after), pa.bool_())),
        changed,
    )


def _as_text(table: pa.Table) -> list[str]:
    return [repr(row) for row in python_rows(table)]


def _surplus(rows: list[str], others: list[str]) -> list[bool]:
    """Per row: True if it is an occurrence that `others` does not have."""
    left: dict[str, int] = {}
    for row in others:
        left[row] = left.get(row, 0) + 1
    found = []
    for row in rows:
        left[row] = left.get(row, 0) - 1
        found.append(left[row] < 0)
    return found


def _repeats(codes: np.ndarray) -> bool:
    return len(np.unique(codes)) < len(codes)


def _aligned(
    ours: np.ndarray, kept: np.ndarray, theirs: np.ndarray, also: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of the keys that both have, in the same order."""
    mine, yours = np.flatnonzero(kept), np.flatnonzero(also)
    return mine[np.argsort(ours[mine])], yours[np.argsort(theirs[yours])]


def _differ(old: pa.ChunkedArray, new: pa.ChunkedArray) -> np.ndarray:
    """Per row: True if the values differ. Null equals null, NaN equals NaN."""
    if pa.types.is_nested(old.type):
        pairs = zip(python_values(old), python_values(new), strict=True)
        return np.array([repr(a) != repr(b) for a, b in pairs], bool)
    both_null = pc.and_(old.is_null(), new.is_null())
    equal = pc.equal(old, new).fill_null(False)
    if pa.types.is_floating(old.type):
        nan = pc.and_(pc.is_nan(old), pc.is_nan(new)).fill_null(False)
        equal = pc.or_(equal, nan)
    same: np.ndarray = pc.or_(equal, both_null).to_numpy()
    return ~same


def _struct(rows: pa.Table, columns: Sequence[str]) -> pa.Array:
    fields = [rows.schema.field(name) for name in columns]
    if not fields:
        return pa.array([{}] * rows.num_rows, pa.struct([]))
    arrays = [rows.column(name).combine_chunks() for name in columns]
    arrays = [a.combine_chunks() if isinstance(a, pa.ChunkedArray) else a for a in arrays]
    return pa.StructArray.from_arrays(arrays, fields=fields)

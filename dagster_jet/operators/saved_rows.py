"""Saved state as it counts, from the rows of a snapshot and what its manifest says of the stage.

A chain of chunk sets has several rows of one key: parts of an aggregate that add up, versions of
which the newest counts, rows that have expired. A restore asks the stage's operator what they come
to; whoever only looks has no pipeline. But a manifest names keys and partials, and the name of a
partial says what is inside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.operators.aggregates.aggregation import ROW_COUNT
from dagster_jet.operators.aggregates.grouping import merge_groups, rows_where
from dagster_jet.operators.interval_join import MARK, MATCHED_COLUMN, ROLE_COLUMN, with_marks
from dagster_jet.operators.operator import (
    HASH_COLUMN,
    PARTITION_COLUMN,
    TIME_COLUMN,
    VERSION_COLUMN,
    newest_version,
)
from dagster_jet.operators.partials.by_time import ByTime
from dagster_jet.operators.partials.lists import AllValues, DistinctValues, TopValues
from dagster_jet.operators.partials.partial import Merger
from dagster_jet.operators.partials.sketches import HllSketch, KllSketch
from dagster_jet.operators.session_pieces import FIRST_TIME_COLUMN, SINCE_COLUMN, SessionState
from dagster_jet.operators.stateful_map import STATE_COLUMN
from dagster_jet.operators.user.spark_processor import KEY_COLUMN, ORIGIN_COLUMN, VALUE_COLUMN
from dagster_jet.operators.window import WINDOW_END_MS
from dagster_jet.snapshot.plan import StagePlan

_PARTIAL = re.compile(r"__(\w+)\((.*)\)", re.DOTALL)
_MERGERS: Mapping[str, Callable[[list[str]], Merger]] = {
    "count": lambda _: "sum",
    "sum": lambda _: "sum",
    "min": lambda _: "min",
    "max": lambda _: "max",
    "first": lambda given: ByTime(given[0], latest=False).combine,
    "last": lambda given: ByTime(given[0], latest=True).combine,
    "distinct": lambda given: DistinctValues(given[0]).combine,
    "list": lambda given: AllValues(given[0]).combine,
    "top": lambda given: TopValues("", "", int(given[0]), smallest=False).combine,
    "bottom": lambda given: TopValues("", "", int(given[0]), smallest=True).combine,
    "hll": lambda given: HllSketch("", int(given[-1])).combine,
    "kll": lambda given: KllSketch("", int(given[-1])).combine,
}
"""By the partial's name; what a user's own aggregate keeps is not among them."""
_NO_CONTENT = frozenset({PARTITION_COLUMN, HASH_COLUMN, VERSION_COLUMN})


def living_rows(saved: pa.Table, plan: StagePlan, expired_until_ms: int | None) -> pa.Table:
    """What the saved rows of a stage come to: without what has expired or was replaced, the parts
    of one key merged.

    All rows of a key must be among them. Parts of users' own aggregates (`agg.custom`) can only be
    merged by their code: such a stage keeps several rows per key.

    Args:
        saved: rows as they are in chunks.
        plan: the stage's, from the manifest.
        expired_until_ms: from the manifest; None: nothing has.
    """
    table = _unexpired(saved, expired_until_ms)
    keys = [name for name in plan.get("keys", ()) if name in table.column_names]
    if SINCE_COLUMN in table.column_names:
        state = SessionState.of(table)
        state = SessionState(newest_version([state.headers], keys), state.pieces)
        pieces = rows_where(state.pieces, state.sessions_of_pieces(keys) >= 0)
        return pa.concat_tables([state.headers, pieces])
    if VERSION_COLUMN in table.column_names:
        if KEY_COLUMN in table.column_names:
            keys = [PARTITION_COLUMN, KEY_COLUMN, ORIGIN_COLUMN]
        return _without_tombstones(newest_version([table], keys), keys)
    if MATCHED_COLUMN in table.column_names:
        table = with_marks(table)
        return table.filter(pc.not_equal(table.column(ROLE_COLUMN), MARK))
    return _merged(table, plan, keys)


def identity_columns(table: pa.Table, plan: StagePlan) -> list[str]:
    """The columns by which a living row is the same row in another snapshot; the others say what
    it holds. Without keys all are: a row is there or not."""
    names: list[str] = table.column_names
    keys = [name for name in plan.get("keys", ()) if name in names]
    own = (WINDOW_END_MS, FIRST_TIME_COLUMN, KEY_COLUMN, ORIGIN_COLUMN)
    if plan.get("kind") == "join":
        found = [n for n in names if n not in (MATCHED_COLUMN, *_NO_CONTENT)]
    elif keys or KEY_COLUMN in names:
        found = [*keys, *(name for name in own if name in names)]
    else:
        found = [n for n in names if n not in _NO_CONTENT and not is_partial(n)]
    return found


def content_columns(table: pa.Table, identity: list[str]) -> list[str]:
    """What a row holds besides its identity, without what only the engine reads."""
    return [n for n in table.column_names if n not in identity and n not in _NO_CONTENT]


def is_partial(column: str) -> bool:
    """Whether a column has parts of an aggregate."""
    return column == ROW_COUNT or _PARTIAL.fullmatch(column) is not None


def _unexpired(table: pa.Table, until_ms: int | None) -> pa.Table:
    times = next((n for n in (WINDOW_END_MS, TIME_COLUMN) if n in table.column_names), None)
    if until_ms is None or times is None:
        return table
    return table.filter(pc.greater(table.column(times), until_ms))


def _without_tombstones(table: pa.Table, keys: list[str]) -> pa.Table:
    """Without keys that have ceased to be: nothing is left of them but the key."""
    for name in (STATE_COLUMN, VALUE_COLUMN):
        if name in table.column_names:
            return table.filter(table.column(name).is_valid())
    own = {*keys, *_NO_CONTENT, TIME_COLUMN, FIRST_TIME_COLUMN}
    content = [name for name in table.column_names if name not in own]
    if not content or not table.num_rows:
        return table
    has = np.zeros(table.num_rows, bool)
    for name in content:
        has |= table.column(name).is_valid().to_numpy()
    return rows_where(table, has)


def _merged(table: pa.Table, plan: StagePlan, keys: list[str]) -> pa.Table:
    partials: list[str] = [n for n in table.column_names if is_partial(n)]
    if not partials:
        return table
    mergers: list[tuple[str, Merger]] = []
    for name in partials:
        merger = _merger(name)
        if merger is None:
            return table
        mergers.append((name, merger))
    if TIME_COLUMN in table.column_names:
        mergers.append((TIME_COLUMN, "max"))
    own = (PARTITION_COLUMN, HASH_COLUMN, WINDOW_END_MS)
    group = [*(name for name in own if name in table.column_names), *keys]
    return merge_groups(table, group, mergers).select(table.column_names)


def _merger(partial: str) -> Merger | None:
    """How values of this column become one; None: only users' code knows."""
    if partial == ROW_COUNT:
        return "sum"
    found = _PARTIAL.fullmatch(partial)
    make = _MERGERS.get(found[1]) if found is not None else None
    return make(found[2].split(",")) if make is not None and found is not None else None

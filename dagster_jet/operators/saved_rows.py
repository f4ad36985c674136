"""Effective state of a stage, computed from the rows of a snapshot and the plan in its manifest.

A chain of chunk sets has several rows of one key: parts of an aggregate, several versions, expired
rows. A restore merges them with the stage's operator. Inspection has no pipeline, but the manifest
names keys and partials, and a partial's name says how it merges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.operators.aggregates.aggregation import ROW_COUNT
from dagster_jet.operators.aggregates.grouping import merge_groups, rows_where
from dagster_jet.operators.in_event_order import (
    EXPIRY_COLUMN,
    ROW_COLUMN,
    rows_that_wait,
    without_waiting,
)
from dagster_jet.operators.interval_join import MARK, MATCHED_COLUMN, ROLE_COLUMN, with_marks
from dagster_jet.operators.operator import (
    ARRIVAL_COLUMN,
    HASH_COLUMN,
    PARTITION_COLUMN,
    TIME_COLUMN,
    VERSION_COLUMN,
    newest_version,
)
from dagster_jet.operators.partials.extremes import ExtremeByRank
from dagster_jet.operators.partials.lists import (
    AllValues,
    DistinctValues,
    TopValues,
    ValueCounts,
)
from dagster_jet.operators.partials.moments import Moments
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
    "first": lambda _: ExtremeByRank("", greatest=False).combine,
    "last": lambda _: ExtremeByRank("", greatest=True).combine,
    "min_by": lambda _: ExtremeByRank("", greatest=False).combine,
    "max_by": lambda _: ExtremeByRank("", greatest=True).combine,
    "moments": lambda _: Moments("", "").combine,
    "distinct": lambda _: DistinctValues("").combine,
    "counts": lambda _: ValueCounts("").combine,
    "list": lambda _: AllValues("").combine,
    "top": lambda given: TopValues("", "", int(given[0]), smallest=False).combine,
    "bottom": lambda given: TopValues("", "", int(given[0]), smallest=True).combine,
    "hll": lambda given: HllSketch("", int(given[-1])).combine,
    "kll": lambda given: KllSketch("", int(given[-1])).combine,
}
"""Merger by the partial's name; accumulators of users' own aggregates have none."""
_CLEARS_NO_KEY = frozenset({"deduplicate", "join_as_of"})
"""Kinds of stages in event order whose rows all count, even if all of their columns are null."""
_NO_CONTENT = frozenset({PARTITION_COLUMN, HASH_COLUMN, VERSION_COLUMN})


def living_rows(saved: pa.Table, plan: StagePlan, expired_until_ms: int | None) -> pa.Table:
    """Returns the effective rows of a stage: without expired or replaced rows, and with the parts
    of each key merged.

    All rows of a key must be among `saved`. Parts of users' own aggregates (`agg.custom`) can only
    be merged by their code: such a stage keeps several rows per key.

    Args:
        saved: rows as they are in chunks.
        plan: the stage's, from the manifest.
        expired_until_ms: from the manifest; None: nothing has expired.
    """
    table = _unexpired(saved, expired_until_ms)
    keys = [name for name in plan.get("keys", ()) if name in table.column_names]
    if SINCE_COLUMN in table.column_names:
        state = SessionState.of(table)
        state = SessionState(newest_version([state.headers], keys), state.pieces)
        pieces = rows_where(state.pieces, state.sessions_of_pieces(keys) >= 0)
        return pa.concat_tables([state.headers, pieces])
    if KEY_COLUMN in table.column_names:
        keys = [PARTITION_COLUMN, KEY_COLUMN, ORIGIN_COLUMN]
    if ROW_COLUMN in table.column_names:
        states = newest_version([without_waiting(table)], keys)
        if plan.get("kind") not in _CLEARS_NO_KEY:
            states = _without_tombstones(states, keys)
        return pa.concat_tables([states, rows_that_wait(table)])
    if VERSION_COLUMN in table.column_names:
        return _without_tombstones(newest_version([table], keys), keys)
    if MATCHED_COLUMN in table.column_names:
        table = with_marks(table)
        return table.filter(pc.not_equal(table.column(ROLE_COLUMN), MARK))
    return _merged(table, plan, keys)


def identity_columns(table: pa.Table, plan: StagePlan) -> list[str]:
    """Columns that identify a living row across snapshots; the others are its content. Without keys
    all columns identify it."""
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
    """Content of a row: the columns that are neither its identity nor internal."""
    return [n for n in table.column_names if n not in identity and n not in _NO_CONTENT]


def is_partial(column: str) -> bool:
    """Whether a column holds partials of an aggregate."""
    return column == ROW_COUNT or _PARTIAL.fullmatch(column) is not None


def _unexpired(table: pa.Table, until_ms: int | None) -> pa.Table:
    by = (WINDOW_END_MS, EXPIRY_COLUMN, TIME_COLUMN)
    times = next((n for n in by if n in table.column_names), None)
    if until_ms is None or times is None:
        return table
    return table.filter(pc.greater(table.column(times), until_ms))


def _without_tombstones(table: pa.Table, keys: list[str]) -> pa.Table:
    """Drops rows of removed keys: all columns of their content are null."""
    for name in (STATE_COLUMN, VALUE_COLUMN):
        if name in table.column_names:
            return table.filter(table.column(name).is_valid())
    own = {*keys, *_NO_CONTENT, TIME_COLUMN, FIRST_TIME_COLUMN}
    own |= {EXPIRY_COLUMN, ARRIVAL_COLUMN, ROW_COLUMN}  # of `InEventOrder`
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
    """Returns how values of this column merge; None if only users' code can merge them."""
    if partial == ROW_COUNT:
        return "sum"
    found = _PARTIAL.fullmatch(partial)
    make = _MERGERS.get(found[1]) if found is not None else None
    return make(found[2].split(",")) if make is not None and found is not None else None

"""A stateful function over tables, and the driver that is killed while it runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_jet import Pipeline, sinks, sources

from . import child

SCHEMA = "k string, ts long, v long"
OUTPUT = "k string, ts long, n long, total long"
STATE = "n long, total long"
LAG_MS, TTL_MS = 500, 1500


def balances(
    folder: Path, state_schema: str = STATE, total_type: Any = None, **place: Any
) -> Pipeline:
    """Per key how many values there were, and their sum. A multiple of 7 clears its key; what is
    forgotten has a last word, without a time.

    `place`: what source and sinks are told of the place that `folder` is in."""

    def add(state: pa.Table, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        before = {row["k"]: (row["n"], row["total"]) for row in state.to_pylist()}
        now, results = dict(before), []
        for row in rows.to_pylist():
            if row["v"] % 7 == 0:
                now[row["k"]] = None, None
                continue
            n, total = now[row["k"]]
            now[row["k"]] = (n or 0) + 1, (total or 0) + row["v"]
            results.append((row["k"], row["ts"], *now[row["k"]]))
        changed = [(k, *value) for k, value in now.items() if value != before[k]]
        types = [pa.string(), pa.int64(), pa.int64(), total_type or pa.int64()]
        return _table("k ts n total", results, types), _table("k n total", changed, types[:3])

    def last_word(expired: pa.Table, watermarks: pa.Array) -> pa.Table:
        rows = [(row["k"], None, row["n"], -row["total"]) for row in expired.to_pylist()]
        return _table("k ts n total", rows, [pa.string(), *[pa.int64()] * 3])

    p = Pipeline("balances")
    rows = p.read_from(
        sources.files(f"{folder}/in/left", format="json", schema=SCHEMA, **place), name="rows"
    ).with_timestamps("ts", allowed_lag=f"{LAG_MS} ms", idle_timeout="0 ms")
    stage = rows.group_by("k").map_stateful(
        add,
        in_batches=True,
        state_schema=state_schema,
        output_schema=OUTPUT,
        name="balances",
        ttl=f"{TTL_MS} ms",
        on_evict=last_word,
    )
    stage.late_to(sinks.files(f"{folder}/out/late", format="json", **place), name="late")
    out = sinks.files(f"{folder}/out/balances", format="json", **place)
    stage.write_to(out, name="balances_out")
    return p


def _table(names: str, rows: list[tuple[Any, ...]], types: list[pa.DataType]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.table(arrays, names=names.split())


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, balances)

"""A user's function with a state per key: running count and sum, one row out per row in. Ours is
called per row, or with tables, which it may take to NumPy or to pandas.

In which order rows of one key come is not defined across engines, so the oracle does not go by
it: the counts of a key must be 1, 2, 3, ..., and the steps between its sums must be its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.case import Case, Read
from benchmarks.data import SCHEMA, SENTINEL_KEY
from benchmarks.jet_query import LAG
from dagster_jet import Pipeline, sinks, sources

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

    from dagster_jet.operators.user.state import State

OUTPUT = "k string, n bigint, total bigint"
STATE = "n bigint, total bigint"


def running_totals(state: State[tuple[int, int]], row: dict[str, Any]) -> dict[str, Any]:
    count, total = state.value
    count, total = count + 1, total + row["v"]
    state.value = (count, total)
    return {"k": row["k"], "n": count, "total": total}


def nothing_yet() -> tuple[int, int]:
    return 0, 0


def in_numpy(state: pa.Table, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """`running_totals` over tables: a cumulative sum over all keys, less what it began with."""
    place = rows["k"].combine_chunks().dictionary_encode().indices.to_numpy()
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    ends = np.append(starts[1:], len(place)) - 1
    count, total = (pc.fill_null(state[name], 0).to_numpy() for name in ("n", "total"))
    values = rows["v"].to_numpy()
    sums = np.cumsum(values)
    sums += (total - (sums[starts] - values[starts]))[place]
    counts = np.arange(1, len(place) + 1) + (count - starts)[place]
    results = pa.table({"k": rows["k"], "n": counts, "total": sums})
    return results, results.take(pa.array(ends))


def in_frames(state: pa.Table, rows: pa.Table) -> tuple[pa.Table, ...]:
    """`running_totals` over tables, in pandas."""
    frame, before = rows.to_pandas(), state.to_pandas().fillna(0)
    by_key = frame.groupby("k", sort=False, dropna=False)
    place = by_key.ngroup().to_numpy()
    frame["n"] = by_key.cumcount() + 1 + before["n"].to_numpy(int)[place]
    frame["total"] = by_key["v"].cumsum() + before["total"].to_numpy(int)[place]
    results = frame[["k", "n", "total"]]
    changed = results[~results["k"].duplicated(keep="last")]
    return tuple(pa.Table.from_pandas(one, preserve_index=False) for one in (results, changed))


def pipeline(source: Path, output: Path) -> Pipeline:
    return _totals("stateful_map", source, output, running_totals, create=nothing_yet)


def numpy_pipeline(source: Path, output: Path) -> Pipeline:
    return _totals("in_numpy", source, output, in_numpy, in_batches=True, state_schema=STATE)


def frames_pipeline(source: Path, output: Path) -> Pipeline:
    return _totals("in_frames", source, output, in_frames, in_batches=True, state_schema=STATE)


def _totals(name: str, source: Path, output: Path, function: Any, **options: Any) -> Pipeline:
    job = Pipeline(name)
    rows = job.read_from(sources.files(str(source), format="parquet", schema=SCHEMA), name="rows")
    rows = rows.with_timestamps("ts", allowed_lag=LAG)
    totals = rows.group_by("k").map_stateful(
        function, output_schema=OUTPUT, name="totals", **options
    )
    totals.write_to(sinks.files(str(output), format="parquet"), name="out")
    return job


def in_pandas(read: Read, source: Path) -> DataFrame:
    """Whole columns at once: what only sums and the like allow."""
    import pandas as pd

    def totals(key: tuple[str], parts: Iterator[pd.DataFrame], state: Any) -> Iterator[Any]:
        count, total = state.get if state.exists else (0, 0)
        for part in parts:
            sums = total + part["v"].cumsum()
            size = len(part)
            yield pd.DataFrame(
                {"k": key[0], "n": range(count + 1, count + size + 1), "total": sums}
            )
            count, total = count + size, int(sums.iloc[-1])
        state.update((count, total))

    return _with_state(read(source), totals)


def by_row(read: Read, source: Path) -> DataFrame:
    """The same function row by row, as users' functions mostly are."""
    import pandas as pd

    def totals(key: tuple[str], parts: Iterator[pd.DataFrame], state: Any) -> Iterator[Any]:
        count, total = state.get if state.exists else (0, 0)
        for part in parts:
            rows = []
            for value in part["v"].tolist():
                count, total = count + 1, total + value
                rows.append((key[0], count, total))
            yield pd.DataFrame(rows, columns=["k", "n", "total"])
        state.update((count, total))

    return _with_state(read(source), totals)


def _with_state(rows: DataFrame, function: Any) -> DataFrame:
    return rows.groupBy("k").applyInPandasWithState(
        function, OUTPUT, "n bigint, total bigint", "append", "NoTimeout"
    )


def transform_rows(read: Read, source: Path) -> DataFrame:
    """The newer interface, rows as `Row`."""
    from benchmarks.operators.stateful_processor import RunningTotals

    rows = read(source).groupBy("k")
    return rows.transformWithState(RunningTotals(), OUTPUT, "append", "none")


def transform_in_pandas(read: Read, source: Path) -> DataFrame:
    """The newer interface, rows as pandas frames."""
    from benchmarks.operators.stateful_processor import RunningTotalsInPandas

    rows = read(source).groupBy("k")
    return rows.transformWithStateInPandas(RunningTotalsInPandas(), OUTPUT, "append", "none")


def expected(rows_of: Callable[[str], str]) -> str:
    return (
        f"WITH given AS (FROM {rows_of('.')} WHERE k <> '{SENTINEL_KEY}') "
        "SELECT k, row_number() OVER (PARTITION BY k) AS n, NULL::BIGINT AS v FROM given "
        "UNION ALL SELECT k, NULL, v FROM given"
    )


CASE = Case(
    name="stateful_map",
    pipeline=pipeline,
    queries={
        "applyInPandasWithState": in_pandas,
        "applyInPandasWithState, by row": by_row,
        "transformWithStateInPandas": transform_in_pandas,
        "transformWithState": transform_rows,
    },
    format="parquet",
    expected=expected,
    actual=(
        f"SELECT k, n, NULL::BIGINT AS v FROM output WHERE k <> '{SENTINEL_KEY}' UNION ALL "
        "SELECT k, NULL, total - lag(total, 1, 0) OVER (PARTITION BY k ORDER BY n) FROM output "
        f"WHERE k <> '{SENTINEL_KEY}'"
    ),
)
IN_NUMPY = replace(CASE, name="stateful_map, NumPy", pipeline=numpy_pipeline)
IN_FRAMES = replace(CASE, name="stateful_map, pandas", pipeline=frames_pipeline)

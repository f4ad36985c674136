"""Two runtimes, one contract: the same stages on Spark and as a DAG of processors give the same
outputs and the same snapshots, in the same partitions, before and after a restart."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_jet import Jet, Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.dag import (
    Emitter,
    Inbox,
    ItemProcessor,
    Outbox,
    ProcessorContext,
    Watermark,
    broadcast_key,
    snapshot_emitter,
)
from dagster_jet.operators.user.state import State
from dagster_jet.pipeline import LateDeadLetterStage, Stage
from tests.long import long

from .child import open_jet
from .two_runtimes import (
    Files,
    OnProcessors,
    OnSpark,
    Reached,
    Row,
    plan_operators,
    random_files,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = "k string, g long, ts long, v long, x double, s string"
ARROW = pa.schema(
    [
        ("k", pa.string()),
        ("g", pa.int64()),
        ("ts", pa.int64()),
        ("v", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
    ]
)
LAG_MS = 400
DEAD = "dead letters"
FIRST, REST, ROWS = 3, 2, 40
SEEDS = [1, *(pytest.param(seed, marks=long) for seed in range(2, 8))]


def every_aggregate() -> dict[str, agg.Aggregate]:
    """Closures, so that they are pickled by value."""

    def add(total: dict[str, int], row: Row) -> dict[str, int]:
        return {"rows": total["rows"] + 1, "sum": total["sum"] + (row["v"] or 0)}

    def both(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
        return {name: a[name] + b[name] for name in a}

    return {
        "n": agg.count(),
        "total": agg.sum("v"),
        "mean": agg.mean("v"),
        "low": agg.min("x"),
        "high": agg.max("s"),
        "distinct": agg.count_distinct("s"),
        "about": agg.approx_count_distinct("s"),
        "median": agg.quantile("v", 0.5),
        "first": agg.first("v"),
        "last": agg.last("s"),
        "top": agg.top_n(2, "s", by="v"),
        "best": agg.max_by("x", "s"),
        "least": agg.min_by("s", "v"),
        "mode": agg.mode("v"),
        "set": agg.collect_set("s"),
        "list": agg.collect_list("v"),
        "custom": agg.custom(
            lambda: {"rows": 0, "sum": 0}, add, both, repr, columns=["v"], result_type="string"
        ),
    }


def chosen(*names: str) -> dict[str, agg.Aggregate]:
    return {name: aggregate for name, aggregate in every_aggregate().items() if name in names}


def running_totals(rows: Stage) -> Stage:
    """Sum of each key so far; forgotten keys emit a last row."""

    def add(state: State[Any], row: Row) -> Row | None:
        state.value = [state.value[0] + (row["v"] or 0), max(state.value[1], row["ts"])]
        if row["v"] == 7:
            state.clear()
            return None
        return {"k": row["k"], "ts": row["ts"], "total": state.value[0]}

    def evicted(key: Row, value: Any, watermark_ms: int) -> Row:
        return {"k": key["k"], "ts": value[1], "total": -1000 - value[0]}

    return rows.group_by("k").map_stateful(
        add,
        create=lambda: [0, 0],
        ttl="1500 ms",
        on_evict=evicted,
        output_schema="k string, ts long, total long",
        name="map_stateful",
    )


def picky_totals(rows: Stage) -> Stage:
    """Like `running_totals`, but refuses some rows, after it has changed the state."""

    def add(state: State[Any], row: Row) -> Row:
        state.value["values"].append(row["v"] or 0)
        state.value["last"] = row["ts"]
        if row["v"] is None or row["v"] < 0:
            raise ValueError(f"{row.pop('v')} at {row['ts']}")
        total = sum(state.value["values"])
        return {"k": row["k"], "ts": row["ts"], "total": str(total) if row["v"] == 9 else total}

    def evicted(key: Row, value: Any, watermark_ms: int) -> Row:
        return {"k": key["k"], "ts": value["last"], "total": -1000 - sum(value["values"])}

    return rows.group_by("k").map_stateful(
        add,
        create=lambda: {"values": [], "last": 0},
        ttl="1500 ms",
        on_evict=evicted,
        output_schema="k string, ts long, total long",
        on_error="dead-letter",
        name="map, rows set aside",
    )


def users_processor(rows: Stage) -> Stage:
    class Balances(ItemProcessor):
        """Emits, at every watermark and at the end, each key's sum since the watermark before."""

        def init(self, outbox: Outbox, context: ProcessorContext) -> None:
            super().init(outbox, context)
            self.sums: dict[Any, int] = {}
            self.watermark = -1
            self.saving = snapshot_emitter(outbox.offer_to_snapshot)
            self.telling: Emitter[object] = Emitter(outbox.offer)

        def process_item(self, ordinal: int, item: Any) -> bool:
            self.sums[item["k"]] = self.sums.get(item["k"], 0) + (item["v"] or 0)
            return True

        def try_process_watermark(self, watermark: Watermark) -> bool:
            self.watermark = watermark.timestamp_ms
            return self.telling.emit(lambda: [*self.told(), watermark])

        def complete(self) -> bool:
            return self.telling.emit(self.told)

        def told(self) -> list[Row]:
            # An odd sum waits for the next watermark: something is left to save.
            due = {k: total for k, total in self.sums.items() if total % 2 == 0}
            self.sums = {k: total for k, total in self.sums.items() if k not in due}
            return [{"k": k, "at": self.watermark, "total": total} for k, total in due.items()]

        def save_to_snapshot(self) -> bool:
            return self.saving.emit(
                lambda: [*self.sums.items(), (broadcast_key("watermark"), self.watermark)]
            )

        def restore_from_snapshot(self, inbox: Inbox) -> bool:
            for key, value in inbox.drain():
                if key == broadcast_key("watermark"):
                    self.watermark = value
                else:
                    self.sums[key] = value
            return True

    return rows.group_by("k").apply_processor(
        Balances,
        output_schema="k string, at long, total long",
        order="arrival",
        name="apply_processor",
    )


def stages(rows: Stage, left: Stage, right: Stage) -> dict[str, Stage]:
    """Every kind, and chains of two."""
    tumbling = rows.group_by("k", "g").window(windows.tumbling("1 second"))
    sliding = rows.group_by("k").window(windows.sliding("1500 ms", "500 ms"))
    session = rows.group_by("k").window(windows.session("150 ms"))
    bounded = rows.group_by("k").window(windows.session("400 ms", max_duration="700 ms"))
    late = rows.group_by("k", "g").window(
        windows.tumbling("1 second"), allowed_lateness="3 seconds"
    )
    fours = rows.group_by("k").window(windows.count(4))
    counts = tumbling.aggregate(name="tumbling", **every_aggregate())
    kept = rows.deduplicate(within="1 second", on=("k", "g"), name="deduplicate")
    totals = running_totals(rows)
    over_all = chosen("n", "total", "distinct", "last", "custom")
    return {
        "tumbling": counts,
        "sliding": sliding.aggregate(name="sliding", **chosen("n", "total", "about", "list")),
        "session": session.aggregate(name="session", **every_aggregate()),
        "bounded session": bounded.aggregate(name="bounded session", **every_aggregate()),
        "corrected": late.aggregate(name="corrected", **chosen("n", "total", "low", "high", "set")),
        "count_window": fours.aggregate(
            name="count_window", **chosen("n", "total", "distinct", "first", "last", "list", "best")
        ),
        "rolling_aggregate": rows.group_by("k").rolling_aggregate(
            name="rolling_aggregate", ttl=None, **over_all
        ),
        "expiring totals": rows.group_by("k").rolling_aggregate(
            name="expiring totals", ttl="150 ms", **over_all
        ),
        "deduplicate": kept,
        "join_inner": left.join(right, on=("k", "g"), within="200 ms", name="join_inner"),
        "join_outer": left.join(right, on="k", within="50 ms", how="outer", name="join_outer"),
        "map_stateful": totals,
        "map, rows set aside": picky_totals(rows),
        "apply_processor": users_processor(rows),
        "window of a window": windowed(counts, "window of a window", total=agg.sum("n")),
        "deduplicate, window": windowed(kept, "deduplicate, window", last=agg.last("s")),
        "map, window": windowed(totals, "map, window", total=agg.sum("total")),
    }


def windowed(stage: Stage, name: str, **aggregates: agg.Aggregate) -> Stage:
    # Sliding: whatever second a cut is in, a window is open that has results of closed ones.
    keyed = stage.group_by("k").window(windows.sliding("2 seconds", "1 second"))
    return keyed.aggregate(name=name, **aggregates)


def pipeline(folder: Path, **place: Any) -> Pipeline:
    """`place`: what sources and sinks are told of the place that `folder` is in."""
    p = Pipeline("two_runtimes")
    streams = []
    for name in ("rows", "left", "right"):
        (folder / "in" / name).mkdir(parents=True)
        source = sources.files(f"{folder}/in/{name}", format="json", schema=SCHEMA, **place)
        stream = p.read_from(source, name=name)
        lag = {"allowed_lag": f"{LAG_MS} ms", "idle_timeout": "0 ms"}
        streams.append(stream.with_timestamps("ts", **lag))
    for name, stage in stages(*streams).items():
        sink = sinks.files(f"{folder}/out/{name} out", format="parquet", **place)
        stage.write_to(sink, name=f"{name} out")
        if name == "map, rows set aside":
            assert isinstance(stage, LateDeadLetterStage)
            dead = sinks.files(f"{folder}/out/{DEAD}", format="parquet", **place)
            stage.dead_letter_to(dead, name=DEAD)
    return p


@dataclass(frozen=True)
class Comparison:
    """Results of both runtimes at the cut and at the end."""

    cut: tuple[Reached, Reached]
    end: tuple[Reached, Reached]


KEYS = {"rows": ["a", "b", "ü", "", None], "left": ["a", "b", None], "right": ["a", "b", None]}
# Rows jump back over several files: some are late. Of streams to join none may be, because
# there the other side's pace, which is free, decides about it.
DISORDER_MS = {"rows": 3_500, "left": LAG_MS, "right": LAG_MS}


def compare(jet: Jet, folder: Path, files: Files, first: int, **place: Any) -> Comparison:
    """Runs both over `files`, cut behind the first ones."""
    p = pipeline(folder, **place)
    operators = plan_operators(jet.session(), p)
    on_spark = OnSpark(folder, p, operators)
    on_processors = OnProcessors(p, operators, ARROW, LAG_MS)
    before = {name: batches[:first] for name, batches in files.items()}
    rest = {name: batches[first:] for name, batches in files.items()}
    cut = on_spark.run(jet, before, 2, until="drained")
    end = on_spark.run(jet, rest, 3, until="completed")
    return Comparison(
        (cut, on_processors.run(before, 2, cut=cut)),
        (end, on_processors.run(rest, 3, cut=None)),
    )


@pytest.fixture(scope="module", params=SEEDS)
def both(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Comparison:
    folder = tmp_path_factory.mktemp("two_runtimes")
    files = {
        name: random_files((request.param, name), FIRST + REST, ROWS, DISORDER_MS[name], KEYS[name])
        for name in KEYS
    }
    with open_jet(folder, "a", 0) as jet:
        return compare(jet, folder, files, FIRST)


KINDS = (
    "tumbling",
    "sliding",
    "session",
    "bounded session",
    "corrected",
    "count_window",
    "deduplicate",
    "join_inner",
    "join_outer",
    "map_stateful",
    "map, rows set aside",
    "apply_processor",
    "window of a window",
    "deduplicate, window",
    "map, window",
)


@pytest.mark.parametrize("stage", [*KINDS, "rolling_aggregate", "expiring totals"])
def test_snapshots_are_equal_partition_by_partition(both: Comparison, stage: str) -> None:
    on_spark, local = (runtime.states[stage] for runtime in both.cut)
    assert on_spark == local
    assert on_spark, "a cut where nothing is open proves nothing"


@pytest.mark.parametrize("stage", KINDS)
def test_outputs_are_equal_at_the_cut_and_after_the_restart(both: Comparison, stage: str) -> None:
    for on_spark, local in (both.cut, both.end):
        assert written(on_spark, stage) == written(local, stage)
    cut, end = (written(runtimes[0], stage) for runtimes in (both.cut, both.end))
    assert cut and not cut - end and end.total() > cut.total()


def written(reached: Reached, stage: str) -> Counter[tuple[str, ...]]:
    """The rows of a stage. A correction is numbered by its step: the runtimes take others."""
    rows = reached.outputs[f"{stage} out"]
    if stage != "corrected":
        return rows
    without: Counter[tuple[str, ...]] = Counter()
    for row, count in rows.items():
        without[row[:-1]] += count
    return without


def test_some_windows_are_corrected(both: Comparison) -> None:
    rows = both.end[0].outputs["corrected out"]
    assert max(Counter(row[:4] for row in rows).values()) > 1


def test_the_same_rows_are_set_aside(both: Comparison) -> None:
    for on_spark, local in (both.cut, both.end):
        assert on_spark.outputs[DEAD] == local.outputs[DEAD]
    cut, end = (runtimes[0].outputs[DEAD] for runtimes in (both.cut, both.end))
    reasons = {row[2].partition(" ")[0] for row in end}
    assert cut and end.total() > cut.total() and reasons == {"'ValueError:", '"returned'}


def test_the_last_rolling_row_of_every_key_is_equal(both: Comparison) -> None:
    """Updates come as often as there are steps."""
    for on_spark, local in (both.cut, both.end):
        spark_rows, local_rows = (r.outputs["rolling_aggregate out"] for r in (on_spark, local))
        assert newest(spark_rows) == newest(local_rows) != {}


def newest(updates: Counter[tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Newest row of each key; the columns are k, ts, n, ..."""
    return {row[0]: row for row in sorted(updates, key=lambda row: int(row[2]))}


def differing(both: Comparison) -> list[str]:
    """Names of the kinds for which the comparisons above would fail."""
    found = [name for name in KINDS if not both.cut[0].states[name]]
    for on_spark, local in (both.cut, both.end):
        found += [n for n, rows in local.states.items() if on_spark.states[n] != rows]
        for kind in KINDS:
            if not written(on_spark, kind) or written(on_spark, kind) != written(local, kind):
                found.append(f"{kind} out")
        if not on_spark.outputs[DEAD] or on_spark.outputs[DEAD] != local.outputs[DEAD]:
            found.append(DEAD)
        rolling = "rolling_aggregate out"
        if newest(on_spark.outputs[rolling]) != newest(local.outputs[rolling]):
            found.append(rolling)
        found += [n for n, rows in local.accepted.items() if on_spark.accepted[n] != rows]
    return found


def test_both_work_under_the_same_watermarks_and_find_the_same_rows_late(both: Comparison) -> None:
    on_spark, local = both.cut
    assert {stage: on_spark.watermarks[stage] for stage in local.watermarks} == local.watermarks
    for spark_side, local_side in (both.cut, both.end):
        assert {s: spark_side.accepted[s] for s in local_side.accepted} == local_side.accepted
    assert both.end[0].accepted["session"] < ROWS * (FIRST + REST), "some rows are late"

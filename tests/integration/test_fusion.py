"""Stages that follow each other in one task: the same rows as stage by stage, whichever way an
epoch goes, and the plan that says which can."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_jet import JobConfig, Pipeline, State, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.execution import epoch_driver
from dagster_jet.execution.events import SnapshotCommitted
from dagster_jet.operators.rows.hashes import is_hashable, key_hashes
from dagster_jet.pipeline import LateStage, Stage
from dagster_jet.spark import epoch
from dagster_jet.spark.frames import prepared_frames
from dagster_jet.spark.frames.epoch_frames import EpochFrames
from dagster_jet.spark.planning.analysis import analyse
from dagster_jet.spark.planning.execution_plan import ExecutionPlan
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.spark.tasks.input_statistics import InputRef
from tests.long import long

from .oracle import committed
from .test_operators import processed
from .world import World, write_input

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

Row = dict[str, Any]
SCHEMA = "k string, g int, ts long, v long"
SECOND = windows.tumbling("1 second")


# --- hashes ---------------------------------------------------------------------------------------

KEYS = (
    "b boolean, y tinyint, h smallint, i int, l bigint, f float, d double, s string, x binary, "
    "day date, at timestamp, local timestamp_ntz, small decimal(9,2), large decimal(38,10)"
)
VALUES: list[tuple[Any, ...]] = [
    (True, 1, -2, 3, -4, 1.5, -2.25, "Grüße", b"\x00\xff", date(2024, 2, 29),
     datetime(2024, 1, 1, 0, 0, 0, 1, timezone.utc), datetime(1969, 12, 31, 23, 59, 59, 999999),
     Decimal("-12.34"), Decimal("1234567890123456789012345678.0123456789")),
    (False, -128, 32767, -(2**31), 2**63 - 1, -0.0, -0.0, "", b"", date(1900, 1, 1),
     datetime(1950, 1, 1, tzinfo=timezone.utc), datetime(2024, 1, 1),
     Decimal("0.00"), Decimal("-0.0000000001")),
    (None,) * 14,
    (True, 0, 0, 0, 0, float("nan"), float("nan"), "x" * 40, b"y" * 33, date(1970, 1, 1),
     datetime(1970, 1, 1, tzinfo=timezone.utc), datetime(1970, 1, 1),
     Decimal("9999999.99"), Decimal("12800000000000000000.0")),
    (True, 0, 0, 0, 0, float("-inf"), 5e-324, "a", b"z", date(9999, 12, 31),
     datetime(2100, 1, 1, tzinfo=timezone.utc), datetime(2100, 1, 1),
     Decimal("0.01"), Decimal(0)),
]  # fmt: skip


def test_keys_are_hashed_as_spark_hashes_them(spark: SparkSession) -> None:
    frame = spark.createDataFrame(VALUES, KEYS).coalesce(1)
    names = frame.columns
    each = frame.selectExpr(*[f"xxhash64(`{name}`) AS `{name}`" for name in names])
    both = frame.selectExpr(f"xxhash64({', '.join(names)}) AS h").collect()
    table = frame.toArrow()
    for name in names:
        assert is_hashable(table.schema.field(name).type), name
        found = key_hashes([table.column(name)], len(VALUES)).tolist()
        assert found == [row[name] for row in each.collect()], name
    found = key_hashes([table.column(name) for name in names], len(VALUES)).tolist()
    assert found == [row.h for row in both]


def test_processors_hash_wide_keys(spark: SparkSession) -> None:
    frame = spark.createDataFrame(VALUES, KEYS).select("y", "h", "i", "f").coalesce(1)
    wide = "cast(y AS bigint), cast(h AS bigint), cast(i AS bigint), cast(f AS double)"
    expected = [row.h for row in frame.selectExpr(f"xxhash64({wide}) AS h").collect()]
    columns = frame.toArrow().columns
    assert key_hashes(columns, len(VALUES), wide=True).tolist() == expected


def test_what_has_no_common_hash_is_known() -> None:
    assert not is_hashable(pa.list_(pa.int64()))
    assert not is_hashable(pa.timestamp("ns"))
    assert not is_hashable(pa.uint32())


# --- plans ----------------------------------------------------------------------------------------


def planned(spark: SparkSession, build: Callable[[Stage], None]) -> ExecutionPlan:
    p = Pipeline("planned")
    source = sources.files("/in", format="json", schema=SCHEMA)
    build(p.read_from(source, name="rows").with_timestamps("ts"))
    return analyse(SparkRuntime(spark, p.name, {}, 1), p.graph, 7)


def tasks(plan: ExecutionPlan, *, of_one_shard: bool = False) -> list[list[str]]:
    fusions = plan.by_shard if of_one_shard else plan.by_level
    return [[stage.vertex for stage in one.fusion.stages] for one in fusions.each]


def out(stage: Stage, name: str = "out") -> None:
    stage.write_to(sinks.files(f"/{name}", format="json"), name=name)


def counted(rows: Stage, name: str, *keys: str) -> LateStage:
    return rows.group_by(*keys).window(SECOND).aggregate(n=agg.count(), name=name)


def test_two_windows_and_their_join_are_one_task(spark: SparkSession) -> None:
    def build(rows: Stage) -> None:
        low = counted(rows.filter("v < 5"), "low", "k")
        high = counted(rows.filter("v >= 5"), "high", "k").select("k", "window_start", "n AS m",
                                                                  "window_end")  # fmt: skip
        out(low.join(high, on=("k", "window_start"), within="0 ms", name="both").select("k", "m"))

    plan = planned(spark, build)
    assert tasks(plan) == [["low", "high", "both"]]
    assert tasks(plan, of_one_shard=True) == [["low", "high"], ["both"]], "of other keys"
    (one,) = plan.by_level.each
    assert one.fusion.heads == (InputRef("low", 0), InputRef("high", 0))
    assert [link.source for link in one.fusion.links] == ["low", "high"]
    assert one.outputs.rows.is_one, "nothing goes out but acks"
    assert plan.stages["both"].own_sinks == ("out",), "a select stands in between"
    assert [[s.vertex for s in c.fusion.stages] for c in plan.one_by_one.each] == [
        ["low"], ["high"], ["both"],
    ]  # fmt: skip
    assert all(not one.fusion.links for one in plan.one_by_one.each)


def test_rows_of_the_same_keys_stay_in_the_task_of_a_shard(spark: SparkSession) -> None:
    def build(rows: Stage) -> None:
        counts = counted(rows, "counts", "k")
        renamed = counts.select("k AS key", "n", "window_end")
        out(counted(renamed, "longer", "key"), "longer_out")
        swapped = counted(rows, "by_both", "k", "g").select("g AS k", "k AS g", "window_end")
        out(counted(swapped, "other", "k", "g"), "other_out")

        def running(state: State[int], row: Row) -> Row:
            return {"k": "another", "at": row["window_end"]}

        users = counts.group_by("k").map_stateful(
            running, create=int, output_schema="k string, at timestamp", name="users"
        )
        out(counted(users.with_timestamps("at"), "behind", "k"), "behind_out")

    plan = planned(spark, build)
    first, *rest = tasks(plan, of_one_shard=True)
    assert set(first) == {"counts", "longer", "by_both", "users"}
    assert sorted(name for task in rest for name in task) == ["behind", "other"]


def test_what_spark_has_to_do_in_between_ends_a_task(spark: SparkSession) -> None:
    def build(rows: Stage) -> None:
        first = counted(rows, "first", "k")
        second = counted(first.filter("n > 1"), "second", "k")
        third = first.join(second, on="k", within="0 ms", name="third")
        out(counted(third, "fourth", "k"))

    plan = planned(spark, build)
    assert tasks(plan) == [["first"], ["second", "third", "fourth"]]
    first, rest = (one.fusion for one in plan.by_level.each)
    assert first.results_of == ("first",)
    assert rest.heads == (InputRef("second", 0), InputRef("third", 0))


def test_a_sink_of_late_rows_wants_spark(spark: SparkSession) -> None:
    def build(rows: Stage) -> None:
        second = counted(counted(rows, "first", "k"), "second", "k")
        second.late_to(sinks.files("/late", format="json"), name="late")
        out(second)

    assert tasks(planned(spark, build)) == [["first"], ["second"]]


def test_a_computed_column_wants_spark(spark: SparkSession) -> None:
    def build(rows: Stage) -> None:
        first = counted(rows, "first", "k").select("k", "n + 1 AS n", "window_end")
        out(counted(first, "second", "k"))

    plan = planned(spark, build)
    assert tasks(plan) == [["first"], ["second"]]
    assert not plan.stages["first"].own_sinks


def test_versions_for_all_rows_want_spark_which_copies_them(spark: SparkSession) -> None:
    def build(rows: Stage) -> None:
        limits = counted(rows, "limits", "k")
        of_rows = rows.join_as_of(limits, on=[], versions_of="k", name="of_rows")
        out(of_rows)
        out(counted(rows, "first", "k").join_as_of(limits, on=[], name="of_windows"), "windows")

    plan = planned(spark, build)
    assert [one for one in tasks(plan) if "of_rows" in one] == [["of_rows", "of_windows"]]
    assert all(not one.fusion.links for one in plan.by_level.each)
    assert all(not one.fusion.links for one in plan.by_shard.each)


def test_rows_without_a_key_that_are_in_all_shards_leave_their_task(spark: SparkSession) -> None:
    def build(rows: Stage) -> None:
        of_rows = rows.join_as_of(rows.select("k", "ts"), on=[], versions_of="k", name="of_rows")
        out(of_rows.window(SECOND).aggregate(n=agg.count(), name="in_all"))

    assert tasks(planned(spark, build), of_one_shard=True) == [["of_rows"], ["in_all"]]


# --- rows -----------------------------------------------------------------------------------------


def linked(rows: Stage) -> dict[str, Stage]:
    """Stages behind others, through selects and without, all of them in one task."""

    def running(state: State[int], row: Row) -> Row:
        state.value += row["n"]
        return {"k": row["k"], "g": row["g"], "at": row["window_end"], "total": state.value}

    counts = counted(rows, "counts", "k", "g")
    per_key = counts.select("g", "n AS rows_of", "k", "window_end").group_by("k")
    longer = per_key.window(windows.sliding("3 seconds", "1 second")).aggregate(
        rows_of=agg.sum("rows_of"), kinds=agg.approx_count_distinct("g"), name="longer"
    )
    summed = counts.group_by("k", "g").map_stateful(
        running, create=int, output_schema="k string, g int, at timestamp, total long",
        name="summed",
    )  # fmt: skip
    first = counts.deduplicate(on="g", within="2 seconds", name="first").select("g", "window_end")
    sizes = rows.group_by("k").window(SECOND).aggregate(size=agg.sum("v"), name="sizes")
    met = counts.join(sizes.select("k", "window_start", "size", "window_end"),
                      on=("k", "window_start"), within="0 ms", how="left", name="met")  # fmt: skip
    return {"longer": longer, "summed": summed, "first": first,
            "met": met.select("k", "g", "window_start", "n", "size")}  # fmt: skip


def every_kind(rows: Stage) -> dict[str, Stage]:
    """Each kind of stage behind another; one is behind rows that only Spark can hand on."""
    stages = linked(rows)
    sessions = counted(rows, "per_g", "g").group_by("g").window(windows.session("1500 ms"))
    visits = sessions.aggregate(n=agg.sum("n"), top=agg.top_n(1, "n", by="n"), name="visits")
    totals = visits.group_by("g").rolling_aggregate(n=agg.sum("n"), last=agg.last("n"),
                                                    name="totals")  # fmt: skip
    return {**stages, "totals": totals}


def written(folder: Path, name: str) -> Counter[str]:
    """The output's rows; of totals, which are told again and again, the greatest per key."""
    rows = [json.loads(line) for path in sorted((folder / name).glob("*.json"))
            for line in path.read_text("utf-8").splitlines()]  # fmt: skip
    if name == "totals":
        rows = [max((r for r in rows if r["g"] == g), key=lambda r: r["n"])
                for g in {row["g"] for row in rows}]  # fmt: skip
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


class Alternating:
    """Fused in every other epoch."""

    def __init__(self) -> None:
        self.asked = 0

    def __ge__(self, groups: int) -> bool:
        self.asked += 1
        return self.asked % 2 == 0


SEEDS = [1, *(pytest.param(seed, marks=long) for seed in range(2, 8))]


def input_files(seed: int, spread_ms: int = 900) -> list[list[Row]]:
    rng = random.Random(seed)
    return [
        [
            {"k": rng.choice("abc"), "g": rng.randrange(4), "v": rng.randrange(9),
             "ts": number * 700 + rng.randrange(spread_ms)}
            for _ in range(30)
        ]
        for number in range(6)
    ]  # fmt: skip


def out_of_time(rows: Stage) -> dict[str, Any]:
    """Stages for which rows are late."""
    of_key = rows.group_by("k")
    visits = of_key.window(windows.session("150 ms")).aggregate(
        n=agg.count(), total=agg.sum("v"), high=agg.top_n(2, "v"),
        kinds=agg.approx_count_distinct("g"), name="visits",
    )  # fmt: skip
    mapped = of_key.map_stateful(
        lambda state, row: row, create=int, ttl="1 second", output_schema=SCHEMA, name="mapped"
    )
    return {
        "visits": visits,
        "counts": counted(rows, "counts", "k", "g"),
        "first": rows.deduplicate(on="g", within="300 ms", name="first"),
        "mapped": mapped,
        "numbered": processed(rows, "numbered"),
    }


def played(
    world: World,
    way: str,
    build: Callable[[Stage], dict[str, Any]],
    seed: int = 1,
    lag: str = "1 second",
) -> dict[str, Counter[str]]:
    """Two executions, the second from the state of the first: what they have written. With a lag
    of nothing rows are late: sinks take them."""
    folder, files = world.folder / way, input_files(seed, 900 if lag != "0 ms" else 2_500)
    p = Pipeline(f"job_{way}")
    source = sources.files(f"{folder}/in", format="json", schema=SCHEMA)
    rows = p.read_from(source, name="rows").with_timestamps("ts", allowed_lag=lag)
    stages = build(rows)
    names = list(stages)
    for name, stage in stages.items():
        stage.write_to(sinks.files(f"{folder}/{name}", format="json"), name=f"{name}_out")
        if lag == "0 ms":
            names.append(f"{name}_late")
            stage.late_to(sinks.files(f"{folder}/{name}_late", format="json"), name=f"{name}_l")
    with world.jet() as jet:
        for until, part in {"drained": range(3), "completed": range(3, 6)}.items():
            for number in part:
                write_input(folder / "in", number, files[number])
            config = JobConfig(max_items_per_epoch=30, parallelism=2)
            assert jet.run(p, config, until=until).epochs >= 3
    return {name: written(folder, name) for name in names}


@long  # the rows of each way alone are judged in test_operators.py and test_masters.py
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_those_of_stage_by_stage(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Apart, and in turns with fused."""
    found = {}
    for way, limit in {"apart": -1, "turns": Alternating()}.items():
        monkeypatch.setattr(epoch_driver, "FEW_GROUPS", limit)
        found[way] = played(world, way, every_kind, seed)
    assert all(found["apart"].values())
    assert found["turns"] == found["apart"]


class CountedFrames(EpochFrames):
    """Counts for how many epochs, or kinds of epochs, frames were made."""

    made = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        CountedFrames.made += 1


@pytest.mark.parametrize(
    ("build", "lag"), [(linked, "1 second"), pytest.param(out_of_time, "0 ms", marks=long)]
)
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_those_of_frames_made_in_each_epoch(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int, build: Any, lag: str
) -> None:
    """Rows are also those of frames made for an execution; two stages read the source."""
    for module in (epoch, prepared_frames):
        monkeypatch.setattr(module, "EpochFrames", CountedFrames)
    found, made = {}, {}
    for way, is_prepared in {"once": True, "each_time": False}.items():
        monkeypatch.setattr(prepared_frames, "can_be_prepared", lambda *_, can=is_prepared: can)
        CountedFrames.made = 0
        found[way] = played(world, way, build, seed, lag)
        made[way] = CountedFrames.made
    assert all(found["once"].values())
    assert found["once"] == found["each_time"]
    assert made["once"] <= 4 < 6 <= made["each_time"], "in both executions: with rows, without"


# --- the watermark of an epoch's own rows ---------------------------------------------------------


def test_rows_close_windows_in_the_epoch_that_reads_them(world: World) -> None:
    """Results of closed windows are in the first snapshot, not in the second."""
    rows = [{"k": "a", "ts": ts, "v": 1} for ts in (500, 1_500, 900, 4_600)]
    write_input(world.folder / "in", 1, rows)
    p = Pipeline("at_once")
    read = p.read_from(sources.files(f"{world.folder}/in", format="json", schema=SCHEMA), name="in")
    counts = (
        read.with_timestamps("ts", allowed_lag="500 ms")
        .group_by("k")
        .window(SECOND)
        .aggregate(n=agg.count(), name="counts")
    )
    pairs = counts.group_by("k").window(windows.tumbling("2 seconds"))
    pairs.aggregate(n=agg.sum("n"), name="pairs").write_to(
        sinks.files(f"{world.folder}/out", format="json"), name="out"
    )
    with world.jet() as jet:
        jet.run(p, until="drained", on_event=world.see)
    first = world.events_of(SnapshotCommitted)[0]
    assert first.stages["in"].rows_in == len(rows), "one epoch has read them all"
    found = {name: (s.watermark_ms, s.rows_out) for name, s in first.stages.items()}
    assert found["counts"] == (4_100, 2)
    assert found["pairs"] == (4_100, 1)
    [row] = committed(world.folder / "out", ("k", "n"))
    assert row == ("a", 3)

"""Results that depend on the order of rows are the same however epochs are cut, with 12 tasks."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from dagster_jet import JobConfig, Pipeline, State, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.connectors.files import part_tasks, slices
from dagster_jet.dag import (
    Inbox,
    ItemProcessor,
    Outbox,
    ProcessorContext,
    snapshot_emitter,
)
from dagster_jet.execution import epoch_driver
from dagster_jet.execution.events import EpochCompleted
from dagster_jet.pipeline import Stage
from tests.long import long

from .oracle import committed, difference
from .world import World, write_input

TASKS, ROWS, KEYS, LAG_MS, TTL_MS = 12, 3_000, 40, 500, 700


@pytest.fixture
def many_tasks(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(epoch_driver, "SPARED_ROWS", 0)
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.default.parallelism", str(TASKS))
    yield
    conf.remove("spark.default.parallelism")


def rows_out_of_order() -> list[dict[str, Any]]:
    """One row per 2 ms of event time, each up to the lag ahead of its place."""
    rng = random.Random("order")
    return [
        {"k": rng.randrange(KEYS), "ts": 2 * place + rng.randrange(LAG_MS), "v": place}
        for place in range(ROWS)
    ]


def previous(state: State[int], row: dict[str, Any]) -> dict[str, Any]:
    before, state.value = state.value, row["v"]
    return {"k": row["k"], "v": row["v"], "before": before}


def last_word(key: dict[str, Any], value: int, watermark_ms: int) -> dict[str, Any]:
    return {"k": key["k"], "v": watermark_ms, "before": -value}


def expected(rows: list[dict[str, Any]], order: str, ttl_ms: int | None) -> Counter[Any]:
    """The rows of each key, one after the other."""
    by_key: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows if order == "arrival" else sorted(rows, key=lambda row: row["ts"]):
        by_key[row["k"]].append(row)
    results: Counter[Any] = Counter()
    for k, mine in by_key.items():
        before, touch = 0, mine[0]["ts"]
        for row in mine:
            if ttl_ms is not None and row["ts"] > touch + ttl_ms:
                results[k, touch + ttl_ms + 1, -before] += 1
                before = 0
            results[k, row["v"], before] += 1
            before, touch = row["v"], max(touch, row["ts"])
        if ttl_ms is not None:
            results[k, touch + ttl_ms + 1, -before] += 1
    return results


def pipeline(world: World, order: Any, ttl_ms: int | None) -> Pipeline:
    p = Pipeline("ordered")
    source = sources.files(f"{world.folder}/in", format="json", schema="k long, ts long, v long")
    timed = p.read_from(source, name="rows").with_timestamps("ts", allowed_lag=f"{LAG_MS} ms")
    timed.group_by("k").map_stateful(
        previous,
        create=int,
        output_schema="k long, v long, before long",
        ttl=None if ttl_ms is None else f"{ttl_ms} ms",
        on_evict=None if ttl_ms is None else last_word,
        order=order,
        name="previous",
    ).write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
    for keep in KEPT[order]:
        kept = timed.deduplicate(on="k", within=f"{TTL_MS} ms", keep=keep, order=order, name=keep)
        kept.write_to(sinks.files(f"{world.folder}/{keep}", format="json"), name=f"{keep} out")
    return p


KEPT: dict[str, tuple[Literal["first", "last"], ...]] = {
    "event time": ("first", "last"),
    "arrival": ("first",),
}


def expected_kept(rows: list[dict[str, Any]], order: str, keep: str) -> Counter[Any]:
    """One row after the other, compared with all groups of its key."""
    groups: dict[int, list[list[dict[str, Any]]]] = defaultdict(list)
    for row in rows if order == "arrival" else sorted(rows, key=lambda row: row["ts"]):
        near = [g for g in groups[row["k"]] if abs(g[0]["ts"] - row["ts"]) <= TTL_MS]
        if near:
            near[0].append(row)
        else:
            groups[row["k"]].append([row])
    chosen = [g[0 if keep == "first" else -1] for mine in groups.values() for g in mine]
    return Counter((row["k"], row["v"]) for row in chosen)


@pytest.mark.parametrize(
    "rows_per_epoch", [pytest.param(ROWS, marks=long), pytest.param(170, marks=long), 450]
)
@pytest.mark.parametrize("ttl_ms", [pytest.param(None, marks=long), TTL_MS])
@pytest.mark.parametrize("order", ["event time", pytest.param("arrival", marks=long)])
def test_results_are_those_of_one_row_after_the_other(
    world: World,
    many_tasks: None,
    monkeypatch: pytest.MonkeyPatch,
    order: Any,
    ttl_ms: int | None,
    rows_per_epoch: int,
) -> None:
    for module, name in (
        (slices, "_LEAST_BYTES_TO_CUT"),
        (slices, "_LEAST_BYTES"),
        (part_tasks, "_LEAST_TASK_BYTES"),
    ):
        monkeypatch.setattr(module, name, 2_000)  # one file: several epochs, or twelve tasks
    rows = rows_out_of_order()
    write_input(world.folder / "in", 0, rows)
    epochs = 0

    def see(event: Any) -> None:
        nonlocal epochs
        epochs += isinstance(event, EpochCompleted)

    with world.jet() as jet:
        config = JobConfig(parallelism=TASKS, max_items_per_epoch=rows_per_epoch)
        jet.run(pipeline(world, order, ttl_ms), config, until="completed", on_event=see)
    assert (epochs > 5) == (rows_per_epoch < ROWS), epochs
    found = committed(world.folder / "out", ("k", "v", "before"))
    assert not difference(found, expected(rows, order, ttl_ms))
    for keep in KEPT[order]:
        kept = committed(world.folder / keep, ("k", "v"))
        assert not difference(kept, expected_kept(rows, order, keep)), keep


class Previous(ItemProcessor):
    """Keeps the previous value, as `previous` does."""

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        self.last: dict[int, int] = {}
        self.saving = snapshot_emitter(outbox.offer_to_snapshot)

    def process_item(self, ordinal: int, item: Any) -> bool:
        row = {"k": item["k"], "v": item["v"], "before": self.last.get(item["k"], 0)}
        if not self.outbox.offer(row):
            return False
        self.last[item["k"]] = item["v"]
        return True

    def save_to_snapshot(self) -> bool:
        return self.saving.emit(lambda: list(self.last.items()))

    def restore_from_snapshot(self, inbox: Inbox) -> bool:
        self.last.update(inbox.drain())
        return True


def test_a_processor_gets_rows_one_after_the_other(world: World, many_tasks: None) -> None:
    """Epochs of any size, and a restart in the middle at another parallelism."""
    rows = rows_out_of_order()
    for number in range(3):
        write_input(world.folder / "in", number, rows[number::3])
    p = Pipeline("ordered")
    source = sources.files(f"{world.folder}/in", format="json", schema="k long, ts long, v long")
    for order in ("event time", "arrival"):
        timed = p.read_from(source, name=order).with_timestamps("ts", allowed_lag="1 hour")
        timed.group_by("k").apply_processor(
            Previous, output_schema="k long, v long, before long", order=order, name=f"p {order}"
        ).write_to(sinks.files(f"{world.folder}/out {order}", format="json"), name=f"out {order}")
    for parallelism, until in ((TASKS, "drained"), (5, "completed")):
        with world.jet() as jet:
            jet.run(p, JobConfig(parallelism=parallelism, max_items_per_epoch=1), until=until)
    arrived = [row for number in range(3) for row in rows[number::3]]
    for order in ("event time", "arrival"):
        found = committed(world.folder / f"out {order}", ("k", "v", "before"))
        assert not difference(found, expected(arrived, order, None)), order


@pytest.mark.parametrize(
    ("first_ms", "then_ms"), [(TTL_MS, 90), pytest.param(90, TTL_MS, marks=long)]
)
def test_another_time_to_live_counts_for_the_states_that_are_there(
    world: World, first_ms: int, then_ms: int
) -> None:
    """The restart also has another parallelism, while rows wait."""
    rows = rows_out_of_order()[:400]
    for number, turn in enumerate((first_ms, then_ms)):
        write_input(world.folder / "in", number, rows[number * 200 : (number + 1) * 200])
        with world.jet() as jet:
            config = JobConfig(parallelism=2 + number)
            until = "completed" if number else "drained"
            jet.run(pipeline(world, "event time", turn), config, until=until)
    changed_at = max(row["ts"] for row in rows[:200]) - LAG_MS
    wanted = expected_with_another_ttl(rows, first_ms, then_ms, changed_at)
    assert not difference(committed(world.folder / "out", ("k", "v", "before")), wanted)


def expected_with_another_ttl(
    rows: list[dict[str, Any]], first_ms: int, then_ms: int, changed_at: int
) -> Counter[Any]:
    """Rows before the watermark `changed_at` met the first time to live, the others the second."""
    results: Counter[Any] = Counter()
    states: dict[int, tuple[int, int]] = {}

    def end(k: int) -> int:
        """Time at which the state of a key expires."""
        touch = states[k][1]
        return touch + (first_ms if touch + first_ms < changed_at else then_ms)

    def evict(k: int, at: int) -> None:
        before, _ = states.pop(k)
        results[k, at + 1, -before] += 1

    for row in sorted(rows, key=lambda row: row["ts"]):
        k, ts = row["k"], row["ts"]
        if k in states:
            over = states[k][1] + first_ms if ts < changed_at else end(k)
            if ts > over:
                evict(k, over)
        results[k, row["v"], states.get(k, (0, 0))[0]] += 1
        states[k] = row["v"], ts
    for k in list(states):
        evict(k, end(k))
    return results


def test_timestamps_inside_a_millisecond_are_in_their_order(world: World) -> None:
    """Twenty rows of each key in a millisecond, in any order of arrival, some epochs apart."""
    rng = random.Random("micros")
    rows = [
        {"k": k, "us": us, "v": us * 7_919 % 10_007}
        for k in "abc"
        for us in rng.sample(range(5_000), 100)
    ]
    rng.shuffle(rows)
    for number in range(3):
        write_input(world.folder / "in", number, rows[number::3])
    p = Pipeline("micros")
    source = sources.files(f"{world.folder}/in", format="json", schema="k string, us long, v long")
    stream = p.read_from(source, name="rows").select("*", "timestamp_micros(us) AS at")
    stream = stream.with_timestamps("at", allowed_lag="1 second")
    versions = stream.filter("v % 3 = 0").select("k", "v AS version", "at")
    lagged = stream.group_by("k").running(before="lag(v)", name="lagged")

    def window(rows: Stage, name: str) -> Stage:
        return (
            rows.group_by("k")
            .window(windows.tumbling("1 second"))
            .aggregate(
                first=agg.first("v"), last=agg.last("v"), all=agg.collect_list("v"), name=name
            )
            .select("k", "first", "last", "to_json(all) AS values")
        )

    stages = {
        "lagged": lagged,
        "known": stream.join_as_of(versions, on="k", name="known"),
        "window": window(stream, "window"),
        # In the tasks of the stage before it, whose rows do not go through Spark.
        "behind": window(lagged, "behind"),
    }
    for name, stage in stages.items():
        out = sinks.files(f"{world.folder}/{name}", format="json")
        stage.write_to(out, name=f"{name} out")
    with world.jet() as jet:
        jet.run(p, JobConfig(max_items_per_epoch=1, parallelism=2), until="completed")

    by_key = {
        k: [v for _, v in sorted((r["us"], r["v"]) for r in rows if r["k"] == k)] for k in "abc"
    }
    before, known, wholes = Counter[Any](), Counter[Any](), Counter[Any]()
    for k, values in by_key.items():
        before.update(zip([k] * len(values), values, [None, *values], strict=False))
        version = None
        for v in values:
            version = version if v % 3 else v
            known[k, v, version] += 1
        wholes[k, values[0], values[-1], json.dumps(values, separators=(",", ":"))] += 1
    expected = {"lagged": before, "known": known, "window": wholes, "behind": wholes}
    columns = {"lagged": ("k", "v", "before"), "known": ("k", "v", "version")}
    for name, wanted in expected.items():
        found = committed(world.folder / name, columns.get(name, ("k", "first", "last", "values")))
        assert not difference(found, wanted), name

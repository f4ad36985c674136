"""Pipelines tried out: rows made here, rows collected here or shown; the contract, by Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet import Jet, JobConfig, Pipeline, aggregates, sinks, sources, windows
from dagster_jet.connectors.generated.numbered import NumberedReader
from dagster_jet.connectors.trial import CollectSink, forget
from dagster_jet.contract import CommitContext, Source, TransactionId
from dagster_jet.errors import (
    ArtifactLostError,
    BadRowError,
    ConfigurationError,
    PipelineError,
)
from dagster_jet.store import Store, StoreConfig
from dagster_jet.testing import check_source, collected, run_pipeline
from dagster_jet.testing.typed_rows import TYPES
from tests.long import long

SCHEMA = "k string, at timestamp, v long"


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second, tzinfo=timezone.utc)


def counted() -> Pipeline:
    p = Pipeline("counted")
    rows = p.read_from(
        sources.files("/nowhere", format="json", schema=SCHEMA), name="rows"
    ).with_timestamps("at", allowed_lag="1 second")
    rows.dead_letter_to(sinks.files("/nowhere/bad", format="json"), name="bad")
    counts = (
        rows.group_by("k")
        .window(windows.tumbling("10 seconds"))
        .aggregate(n=aggregates.count(), name="counts")
    )
    counts.late_to(sinks.files("/nowhere/late", format="json"), name="late")
    counts.write_to(sinks.files("/nowhere/out", format="json"), name="out")
    return p


def test_a_pipeline_over_rows_that_are_given():
    rows = [
        {"k": "a", "at": at(1), "v": 1},
        ("a", at(2), 2),
        '{"k": "b", "at": "2026-01-01T00:00:03Z", "v": "no number"}',
        {"k": "b", "at": at(30), "v": 3},
        {"k": "b", "at": at(31), "v": 3},
        {"k": "b", "at": at(5), "v": 4},
        {"k": "b", "v": 5},
    ]
    out = run_pipeline(counted(), {"rows": rows}, config=JobConfig(max_items_per_epoch=1))
    assert sorted((row["k"], row["window_start"], row["n"]) for row in out["out"]) == [
        ("a", at(0), 2),
        ("b", at(30), 2),
    ]
    assert [row["v"] for row in out["late"]] == [4]
    assert [(row["position"], row["reason"]) for row in out["bad"]] == [
        ("row 2", "does not fit the schema"),
        ("row 6", "at is null"),
    ]
    assert out["bad"][0]["raw"] == rows[2]


def test_a_row_that_does_not_fit_ends_the_trial_and_is_named():
    p = Pipeline("strict")
    p.read_from(sources.items([], schema="v long"), name="rows").write_to(
        sinks.console(), name="out"
    )
    with pytest.raises(BadRowError, match=r"row 1: \{\"v\": \"x\"\}"):
        run_pipeline(p, {"rows": [{"v": 1}, {"v": "x"}]})


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({}, "rows are given for no source; the pipeline reads rows"),
        ({"rows": [], "more": []}, "rows are given for more, rows"),
        ({"rows": [{"k": "a", "w": 1}]}, "row 0: there is no column w"),
        ({"rows": [("a",)]}, r"row 0: \('a',\) is not one value for each of k, at, v"),
        ({"rows": [{"k": object()}]}, "row 0: .* has no form in JSON"),
    ],
)
def test_rows_that_cannot_be_are_refused_before_anything_starts(inputs: Any, told: str):
    with pytest.raises(ConfigurationError, match=told):
        run_pipeline(counted(), inputs)


def test_a_source_without_a_schema_cannot_be_tried():
    p = Pipeline("bare")
    p.read_from(sources.files("/nowhere", format="parquet"), name="rows").write_to(
        sinks.console(), name="out"
    )
    with pytest.raises(ConfigurationError, match="the source says no schema"):
        run_pipeline(p, {"rows": []})


def test_connectors_are_replaced_by_name():
    p = counted()
    with pytest.raises(PipelineError, match=r"there is no sink 'outt'.*sinks are bad, late, out"):
        p.with_connectors(sinks={"outt": sinks.console()})
    with pytest.raises(PipelineError, match=r"there is no source 'out'.*sources are rows"):
        p.with_connectors({"out": sources.sequence(rate=1)})
    changed = p.with_connectors(sinks={"out": sinks.collect("x")})
    assert changed.graph["out"].sink.describe() == {"kind": "collect", "name": "x"}
    assert p.graph["out"].sink.describe()["kind"] == "files"


# --- sources that are made ------------------------------------------------------------------------


def numbers_of(spark: Any, source: Any, count: int) -> list[Any]:
    reader = source.open("j", "s", None)
    reader.accept(reader.poll())
    rows = []
    while split := reader.plan(count):
        rows += reader.frame(spark, split).rows.collect()
    return rows


def test_items_of_every_type(spark: Any):
    for ddl, values in TYPES.items():
        if ddl in ("float", "double"):
            values = [value for value in values if value == value]
        rows = numbers_of(spark, sources.items([[v] for v in values], schema=f"v {ddl}"), 10)
        got = [row.asDict(recursive=True)["v"] for row in rows]
        if ddl == "timestamp":
            got = [value.astimezone(timezone.utc) for value in got]
        assert got == [bytearray(v) if isinstance(v, bytes) else v for v in values], ddl


@dataclass
class Growing(Source):
    """Items that more are added to, as the suite does."""

    rows: list[dict[str, Any]]
    rate = bytes_per_row = None

    def describe(self) -> dict[str, str]:
        return {"kind": "items"}

    def row_schema(self) -> str:
        return "id long, text string"

    @property
    def count(self) -> int:
        return len(self.rows)

    def open(self, job: str, stage: str, bad_rows: Any) -> NumberedReader:
        return NumberedReader(self, bad_rows)

    def frames(self, *arguments: Any) -> Any:
        return self.now.frames(*arguments)

    def prepared(self, *arguments: Any) -> Any:
        return self.now.prepared(*arguments)

    def first_bad(self, *arguments: Any) -> Any:
        return self.now.first_bad(*arguments)

    @property
    def now(self) -> Any:
        return sources.items(self.rows, schema=self.row_schema())


@long  # files keep it in test_connector_contracts.py
def test_numbered_rows_keep_the_contract(spark: Any):
    given: list[dict[str, Any]] = []
    check_source(lambda: Growing(given), given.extend, spark)


def test_a_sequence_is_the_same_however_it_is_cut(spark: Any):
    source = sources.sequence(rate=3, count=25_000)
    reader = source.open("j", "s", None)
    reader.restore({"next": 0, "start_ms": 1_000}, None)
    reader.accept(10**10)
    whole = reader.frame(spark, range(25_000)).rows.collect()
    assert [row.value for row in whole] == list(range(25_000))
    assert [row.timestamp.timestamp() for row in whole[:3]] == [1.0, 1.333333, 1.666666]
    for part in (range(7), range(7, 20_000), range(20_000, 25_000)):
        assert reader.frame(spark, part).rows.collect() == whole[part.start : part.stop]


def test_rows_come_at_their_rate():
    reader = sources.sequence(rate=10).open("j", "s", None)
    reader.accept(5_000)
    assert reader.waiting().items == 1
    reader.accept(5_999)
    assert reader.waiting().items == 10
    assert reader.plan(4) == range(4)
    again = sources.sequence(rate=10).open("j", "s", None)
    again.restore(reader.position(), None)
    again.accept(6_000)
    assert again.plan(100) == range(4, 11)
    again.accept(1_000)  # the clock went back
    assert again.waiting().items == 0 and again.plan(1) is None


@pytest.mark.parametrize(
    ("rate", "there"), [(2, range(100, 103)), (10, range(100, 111)), (40, range(100, 141))]
)
def test_a_start_goes_on_at_another_rate(rate: float, there: range):
    """Failed before: at a lower rate nothing came until all rows before would have come at it."""
    reader = sources.sequence(rate=10).open("j", "s", None)
    reader.accept(5_000)
    reader.accept(14_999)
    assert reader.plan(1_000) == range(100)
    again = sources.sequence(rate=rate).open("j", "s", None)
    again.restore(reader.position(), None)
    again.accept(14_999)
    assert again.plan(1_000) is None
    again.accept(16_000)
    assert again.plan(1_000) == there
    once_more = sources.sequence(rate=10).open("j", "s", None)
    once_more.restore(again.position(), None)
    once_more.accept(16_000 + 1_000 // rate)
    assert once_more.plan(1_000)[0] == there.stop


def test_nexmark_is_the_stream_of_the_benchmarks(spark: Any):
    from dagster_jet.connectors.generated.nexmark.event import arrivals
    from dagster_jet.connectors.generated.nexmark.model import Model

    source = sources.nexmark(count=500, seed=7)
    rows = numbers_of(spark, source, 130)
    wanted = list(arrivals(Model(500, 1_000, seed=7)))
    assert [row.number for row in rows] == [event["number"] for event in wanted]
    assert [round(row.date_time.timestamp() * 1000) for row in rows] == [
        event["date_time"] for event in wanted
    ]
    bids = [row.bid.asDict() for row in rows if row.event_type == 2]
    assert bids == [event["bid"] for event in wanted if event["bid"]]
    expires = [row.auction.expires for row in rows if row.event_type == 1]
    assert [round(time.timestamp() * 1000) for time in expires] == [
        event["auction"]["expires"] for event in wanted if event["auction"]
    ]


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float):
    with pytest.raises(ConfigurationError, match="rate"):
        sources.sequence(rate=rate)


# --- sinks to look at -----------------------------------------------------------------------------


def test_collected_rows_are_there_once(tmp_path):
    forget("kept")
    p = Pipeline("kept")
    numbers = p.read_from(sources.items([[1], [2], [3]], schema="v long"), name="numbers")
    numbers.write_to(sinks.collect("kept"), name="kept_here")
    more = p.with_connectors({"numbers": sources.items([[1], [2], [3], [4]], schema="v long")})
    with Jet(store=[f"file://{tmp_path}/a"], backup_count=0, show_progress=False) as jet:
        assert jet.run(p).rows_out == 3
        assert jet.run(more).rows_out == 4
    assert sorted(collected("kept")["v"].to_pylist()) == [1, 2, 3, 4]


def test_a_commit_that_is_repeated_adds_nothing():
    forget("twice")
    config = StoreConfig(("memory://trial",), allow_memory=True, backup_count=0)
    with Store.open(config) as store:
        sink = CollectSink("twice").with_store(store)
        writer = sink.open_writer(TransactionId("j", "s", 1, 1, 7, 0, "a"))
        writer.write(pa.RecordBatch.from_pydict({"v": [1, 2]}))
        artifacts = writer.prepare()
        context = CommitContext("j", "s", 1, 1, recovering=False)
        for _ in range(2):
            sink.open_committer("j", "s").commit(artifacts, context)
        assert collected("twice")["v"].to_pylist() == [1, 2]
        assert sink.area("j", "s").names() == []
        # A process that has died had committed it: its rows were in its memory.
        forget("twice")
        lost = [replace(one, epoch_id=8) for one in artifacts]
        sink.open_committer("j", "s").commit(lost, replace(context, recovering=True))
        with pytest.raises(ArtifactLostError):
            lost = [replace(one, epoch_id=9) for one in artifacts]
            sink.open_committer("j", "s").commit(lost, context)


def test_console_shows_the_first_rows_of_an_epoch(tmp_path, capsys):
    p = Pipeline("shown")
    rows = p.read_from(
        sources.items([{"v": n} for n in range(30)], schema="v long"), name="numbers"
    )
    rows.write_to(sinks.console(num_rows=3), name="shown_here")
    with Jet(store=[f"file://{tmp_path}/a"], backup_count=0, show_progress=False) as jet:
        result = jet.run(p)
    shown = capsys.readouterr().out
    assert result.rows_out == 30
    assert "shown_here, epoch 1: 30 rows" in shown
    assert [line.split("│")[1].strip() for line in shown.splitlines() if "│" in line] == [
        "0", "1", "2"
    ]  # fmt: skip


def _cells(table: str) -> list[str]:
    """Rows of a printed table of one column."""
    return [line.split("│")[1].strip() for line in table.splitlines() if line.count("│") == 2]


def test_a_peek_comes_and_goes_without_a_change_of_state(tmp_path, capsys):
    """Three executions of one job, with and without; totals go on, and the rows are the same."""
    forget("totals")

    def job(count: int, *, peeks: bool) -> Pipeline:
        p = Pipeline("peeked")
        given = sources.items([{"v": n} for n in range(count)], schema="v long")
        rows = p.read_from(given, name="numbers").filter("v % 2 = 0")
        if peeks:
            rows = rows.peek(num_rows=2).peek()
        totals = rows.rolling_aggregate(
            name="totals", n=aggregates.count(), total=aggregates.sum("v")
        )
        (totals.peek() if peeks else totals).write_to(sinks.collect("totals"), name="kept")
        return p

    shown = []
    with Jet(store=[f"file://{tmp_path}/a"], backup_count=0, show_progress=False) as jet:
        for count, peeks in ((10, False), (20, True), (30, False)):
            jet.run(job(count, peeks=peeks))
            shown.append(capsys.readouterr().out)
    assert collected("totals").to_pylist() == [
        {"n": 5, "total": 20}, {"n": 10, "total": 90}, {"n": 15, "total": 210}
    ]  # fmt: skip
    assert [text.count("epoch") for text in shown] == [0, 3, 0]
    # Sinks commit side by side: their tables come in any order.
    tables = dict(re.findall(r"^(\w+), epoch(.*?)(?=^\w+, epoch|\Z)", shown[1], re.M | re.S))
    assert set(tables) == {"filter_1_peek", "filter_1_peek_1", "totals_peek"}
    assert _cells(tables["filter_1_peek"]) == ["10", "12"]
    assert _cells(tables["filter_1_peek_1"]) == ["10", "12", "14", "16", "18"]
    assert "10 │ 90" in tables["totals_peek"]


def test_collected_tables_of_different_columns():
    assert collected("nobody wrote here") == pa.table({})

"""Every aggregate against plain Python: first stage, admission, merging, finish."""

from __future__ import annotations

import math
import random
import re
import struct
import sys
from decimal import Context, Decimal

import pyarrow as pa
import pytest

from dagster_jet.errors import ConfigurationError, PipelineError, ResultError, UserFunctionError
from dagster_jet.operators.aggregates.aggregation import ROW_COUNT, Aggregation
from dagster_jet.operators.aggregates.computation import computation
from dagster_jet.operators.aggregates.grouping import merge_groups
from dagster_jet.pipeline import aggregates as agg

from .frame_stage import FrameStage
from .naive import AGGREGATES, comparable, definitions, expected
from .stage import FINAL


def events_of(seed: int, count: int) -> list[tuple[str | None, int, int | None]]:
    rng = random.Random(seed)
    return [
        (rng.choice(["a", "b", None]), rng.randrange(40), rng.choice([None, *range(-9, 30)]))
        for _ in range(count)
    ]


@pytest.mark.parametrize("name", AGGREGATES)
@pytest.mark.parametrize("steps", [1, 7])
def test_an_aggregate_is_what_plain_python_says_however_rows_arrive(name, steps):
    events = events_of(seed=len(name), count=150)
    stage = FrameStage(40, 40, seed=steps, **definitions(name))
    for number in range(steps):
        stage.step(*events[number::steps])
        if number % 3 == 1:
            stage.restore()
    got = {row["k"]: comparable({name: row[name]}) for row in stage.step(wm=FINAL)}
    groups = {key: [e for e in events if e[0] == key] for key in ("a", "b", None)}
    assert got == {key: comparable(expected(mine, name)) for key, mine in groups.items()}


@pytest.mark.parametrize("name", AGGREGATES)
def test_a_group_without_any_value_has_a_result_all_the_same(name):
    stage = FrameStage(40, 40, **definitions(name))
    stage.step(("a", 1, None))
    stage.step(("a", 2, None))
    (row,) = stage.step(wm=FINAL)
    nothing = [("a", 1, None), ("a", 2, None)]
    assert comparable({name: row[name]}) == comparable(expected(nothing, name))


def test_all_aggregates_together():
    events = events_of(seed=1, count=60)
    stage = FrameStage(20, 10, **definitions())
    stage.step(*events[:30])
    stage.restore()
    stage.step(*events[30:])
    for row in stage.step(wm=FINAL):
        end = round(row["window_end"].timestamp() * 1000)
        mine = [e for e in events if e[0] == row["k"] and end - 20 <= e[1] < end]
        assert comparable({n: row[n] for n in AGGREGATES}) == comparable(expected(mine))


def test_the_result_of_no_rows_has_the_types_of_any_other():
    schema = FrameStage(40, 40, **definitions()).operator.result_schema
    assert schema.field("distinct").type == pa.int64()
    assert schema.field("first").type == pa.int64()
    assert schema.field("top_by").type == pa.list_(pa.field("element", pa.string()))
    assert schema.field("product").type == pa.string()


@pytest.mark.parametrize("count", [100, 5_000, 60_000])
def test_an_approximate_count_is_close_and_does_not_depend_on_the_batches(count):
    def counted(*batches):
        stage = FrameStage(10, 10, about=agg.approx_count_distinct("v"))
        for batch in batches:
            stage.step(*[("a", 1, v) for v in batch])
        return stage.step(wm=FINAL)[0]["about"]

    whole, thirds = counted(range(count)), counted(*[range(i, count, 3) for i in range(3)])
    assert whole == thirds and abs(whole - count) <= 0.05 * count


def test_quantiles_of_a_column_share_a_sketch_and_are_close():
    stage = FrameStage(10, 10, p50=agg.quantile("v", 0.5), p90=agg.quantile("v", 0.9))
    stage.repeatable = False
    assert len(stage.aggregation.partials) == 1
    for part in range(3):
        stage.step(*[("a", 1, v) for v in range(part, 20_000, 3)])
    (row,) = stage.step(wm=FINAL)
    assert abs(row["p50"] - 10_000) < 600 and abs(row["p90"] - 18_000) < 600


def test_a_first_value_at_the_same_time_is_the_smaller_in_any_order():
    for order in ([5, 3, 4], [3, 4, 5], [4, 5, 3]):
        stage = FrameStage(10, 10, f=agg.first("v"), z=agg.last("v"))
        for value in order:
            stage.step(("a", 1, value))
        (row,) = stage.step(wm=FINAL)
        assert (row["f"], row["z"]) == (3, 5)


def test_what_users_functions_raise_names_the_function():
    def broken(accumulator, row):
        raise KeyError("delay")

    custom = agg.custom(list, broken, list.__add__, len, columns=["v"], result_type="bigint")
    with pytest.raises(UserFunctionError, match="broken raised KeyError"):
        FrameStage(10, 10, c=custom).step(("a", 1, 1))


def test_a_fraction_is_no_result_of_whole_numbers():
    custom = agg.custom(
        int, lambda a, row: a + row["v"], int.__add__, lambda a: a / 2,
        columns=["v"], result_type="bigint",
    )  # fmt: skip
    stage = FrameStage(10, 10, c=custom)
    stage.step(("a", 1, 15))
    said = r"lambda> returned a value that is not int64: expected an integer, got a float\..*None\."
    with pytest.raises(UserFunctionError, match=said):
        stage.step(wm=FINAL)


def test_an_accumulator_that_cannot_be_saved_is_refused():
    custom = agg.custom(
        lambda: lambda: None, lambda a, row: a, lambda a, b: a, len,
        columns=["v"], result_type="bigint",
    )  # fmt: skip
    with pytest.raises(UserFunctionError, match="function cannot be saved: value is a function"):
        FrameStage(10, 10, c=custom).step(("a", 1, 1))


@pytest.mark.parametrize(
    "define",
    [
        lambda: agg.top_n(0, "v"),
        lambda: agg.quantile("v", 1.5),
        lambda: agg.quantile("v", 0.5, k=1),
        lambda: agg.approx_count_distinct("v", lg_k=3),
        lambda: agg.custom(list, min, max, len, columns=[], result_type="bigint"),
        lambda: agg.custom(list, min, max, len, columns=["v"], result_type="number"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_written(define):
    with pytest.raises(ConfigurationError):
        define()


def test_sketches_without_their_package_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketches", None)
    for define in (lambda: agg.quantile("v", 0.5), lambda: agg.approx_count_distinct("v")):
        with pytest.raises(ConfigurationError, match=r"dagster-jet\[sketches\]"):
            define()


def test_distinct_values_that_cannot_be_compared_are_refused():
    aggregation = Aggregation((("d", agg.count_distinct("v")),))
    nested = pa.list_(pa.struct([("a", pa.int64())]))
    with pytest.raises(PipelineError, match="xxhash64"):
        aggregation.state_schema(pa.schema([("__distinct(v)", nested)]))


def test_the_sql_of_every_partial():
    aggregation = Aggregation(tuple(definitions().items()))
    sql = dict(aggregation.spark_columns("unix_millis(at)"))
    assert sql == {
        "__count()": "count(1)",
        "__count(v)": "count(`v`)",
        "__sum(v)": "sum(`v`)",
        "__min(x)": "min(`x`)",
        "__max(x)": "max(`x`)",
        "__min(s)": "min(`s`)",
        "__distinct(s)": "collect_set(`s`)",
        "__hll(s,12)": "hll_sketch_agg(xxhash64(`s`), 12) FILTER (WHERE `s` IS NOT NULL)",
        "__first(v)": "min(named_struct('time', unix_millis(at), 'value', `v`)) "
        "FILTER (WHERE `v` IS NOT NULL)",
        "__last(v)": "max(named_struct('time', unix_millis(at), 'value', `v`)) "
        "FILTER (WHERE `v` IS NOT NULL)",
        "__top(2,v,v)": "slice(sort_array(collect_list(named_struct('rank', `v`, 'value', `v`)) "
        "FILTER (WHERE `v` IS NOT NULL AND `v` IS NOT NULL), false), 1, 2)",
        "__top(3,s,x)": "slice(sort_array(collect_list(named_struct('rank', `x`, 'value', `s`)) "
        "FILTER (WHERE `x` IS NOT NULL AND `s` IS NOT NULL), false), 1, 3)",
        "__bottom(2,x,x)": "slice(sort_array(collect_list(named_struct('rank', `x`, 'value', `x`))"
        " FILTER (WHERE `x` IS NOT NULL AND `x` IS NOT NULL), true), 1, 2)",
        "__last(r)": "max(named_struct('time', unix_millis(at), 'value', `r`)) "
        "FILTER (WHERE `r` IS NOT NULL)",
        "__first(l)": "min(named_struct('time', unix_millis(at), 'value', `l`)) "
        "FILTER (WHERE `l` IS NOT NULL)",
        "__min_by(r,d)": "min(named_struct('rank', `d`, 'value', `r`)) "
        "FILTER (WHERE `d` IS NOT NULL AND `r` IS NOT NULL)",
        "__max_by(s,x)": "max(named_struct('rank', `x`, 'value', `s`)) "
        "FILTER (WHERE `x` IS NOT NULL AND `s` IS NOT NULL)",
        "__min(b)": "min(`b`)",
        "__max(b)": "max(`b`)",
        "__distinct(x)": "collect_set(`x`)",
        "__distinct(d)": "collect_set(`d`)",
        "__counts(s)": "collect_list(named_struct('value', `s`, 'count', 1L)) "
        "FILTER (WHERE `s` IS NOT NULL)",
        "__counts(x)": "collect_list(named_struct('value', `x`, 'count', 1L)) "
        "FILTER (WHERE `x` IS NOT NULL)",
        **{name: sql[name] for name in sql if name.startswith("__moments(")},
        "__list(v)": "collect_list(named_struct('time', unix_millis(at), 'value', `v`)) "
        "FILTER (WHERE `v` IS NOT NULL)",
        "__kll(v,200)": "kll_sketch_agg_double(cast(`v` AS double), 200)",
        "__custom(product)": "collect_list(named_struct('v', `v`))",
        "__rows": "count(1)",
    }


@pytest.mark.parametrize(("column", "text"), [("it's", r"it\'s"), ("a\\b", r"a\\b")])
def test_a_column_name_is_quoted_as_text_too(column, text):
    custom = agg.custom(list, min, max, len, columns=[column], result_type="bigint")
    (partial,) = computation(custom).partials
    assert partial.sql("0L") == f"collect_list(named_struct('{text}', `{column}`))"


def test_a_mean_of_integers_is_that_of_a_sum_beyond_what_a_double_holds_exactly():
    stage = FrameStage(10, 10, mean=agg.mean("v"))
    stage.step(*[("a", 1, 1_763_000_000_001)] * 6_000)
    stage.step(("a", 1, 2**53 + 1))
    (row,) = stage.step(wm=FINAL)
    assert row["mean"] == pytest.approx((1_763_000_000_001 * 6_000 + 2**53 + 1) / 6_001)


def test_a_quantile_of_an_integer_that_no_double_is():
    stage = FrameStage(10, 10, median=agg.quantile("v", 0.5))
    stage.step(("a", 1, 2**53 + 1))
    assert stage.step(wm=FINAL)[0]["median"] == 2.0**53


def test_a_sum_is_exact_up_to_the_end_of_its_type_and_refused_beyond():
    stage = FrameStage(10, 10, total=agg.sum("v"), mean=agg.mean("v"))
    for value in (2**62, 2**62 - 1, -5, 5):
        stage.step(("a", 1, value))
    stage.step(("b", 1, 1))
    totals = {row["k"]: row["total"] for row in stage.step(wm=10)}
    assert totals == {"a": 2**63 - 1, "b": 1}
    stage.step(("a", 11, 2**62))
    stage.step(("a", 11, 2**62))
    with pytest.raises(ResultError, match=r"sum\(v\) of a group .*int64.* decimal or double"):
        stage.step(wm=FINAL)


def test_rows_that_come_together_overflow_as_those_that_come_apart():
    with pytest.raises(ResultError, match=r"sum\(v\)"):
        FrameStage(10, 10, total=agg.sum("v")).step(("a", 1, 2**62), ("a", 2, 2**62))


@pytest.mark.parametrize(("digits", "fits"), [(19, True), (20, False), (37, True), (38, False)])
def test_sums_of_decimals(digits, fits):
    kind = pa.decimal128(20 if digits <= 20 else 38, 2)
    most = Decimal("9" * (digits - 2) + ".99")
    least = most.copy_negate()  # not `-most`: that rounds to 28 digits
    table = pa.table({"k": ["a", "a", "b"], "d": pa.array([most, most, least], kind)})
    if not fits:
        with pytest.raises(ResultError, match=re.escape(f"does not fit {kind}")):
            merge_groups(table, ["k"], [("d", "sum")])
        return
    merged = merge_groups(table, ["k"], [("d", "sum")])
    assert merged.schema.field("d").type == kind
    sums = dict(zip(*merged.to_pydict().values(), strict=True))
    assert sums == {"a": Context(prec=40).multiply(most, 2), "b": least}


def test_a_number_that_is_always_the_same_has_no_spread_however_rows_are_divided():
    for values in ([0.1] * 9, [1e9 + 0.1] * 9):
        aggregation = Aggregation((("v", agg.variance("x")), ("c", agg.corr("x", "t"))))
        state = None
        for step in range(9):
            rows = pa.table({"k": ["a"], "x": values[step : step + 1], "t": [step]})
            arrived = aggregation.first_stage(rows, pa.array([step]), ["k"])
            both = arrived if state is None else pa.concat_tables([state, arrived])
            state = aggregation.merge(both, ["k"])
        assert [column.to_pylist() for column in aggregation.finish(state)] == [[0.0], [None]]


def test_a_struct_of_fields_that_are_never_null_may_be_missing():
    """Spark describes `struct(v, w)` with such fields."""
    value = pa.struct([pa.field("v", pa.int64(), nullable=False)])
    kind = pa.struct([("time", pa.int64()), pa.field("value", value, nullable=False)])
    aggregation = Aggregation((("row", agg.last("r")),))
    columns = [pa.array(["a", "b"]), pa.array([None, {"time": 1, "value": {"v": 2}}], kind)]
    arrived = pa.table([*columns, pa.array([1, 1])], ["k", "__last(r)", ROW_COUNT])
    schema = aggregation.state_schema(arrived.schema)
    merged = aggregation.merge(pa.concat_tables([aggregation.admit(arrived)] * 2), ["k"])
    (rows,) = aggregation.finish(merged.cast(schema))
    assert dict(zip(merged["k"].to_pylist(), rows.to_pylist(), strict=True)) == {
        "a": None,
        "b": {"v": 2},
    }


def test_a_truth_is_of_conditions():
    aggregation = Aggregation((("any", agg.bool_or("v")),))
    with pytest.raises(PipelineError, match="take a boolean, not int64"):
        aggregation.result_fields(pa.schema([("__max(v)", pa.int64())]))


@pytest.mark.parametrize(
    ("aggregate", "column"),
    [
        (agg.count_if("v > 1"), "if(v > 1, (1), null)"),
        (agg.count("v", where="a"), "if(a, `v`, null)"),
        (agg.sum("a.b", where="a.c is null"), "if(a.c is null, `a`.`b`, null)"),
        (agg.last("struct(v, w)", where="v > w"), "if(v > w, struct(v, w), null)"),
        (agg.top_n(1, "v", by="w", where="x"), "if(x, `v`, null)"),
        (agg.count(), None),
        (agg.max("a b"), "a b"),
    ],
)
def test_a_condition_makes_null_of_the_other_rows(aggregate, column):
    assert aggregate.column == column


@pytest.mark.parametrize("steps", [1, 5])
def test_distinct_floats_are_counted_as_keys_are_told_apart(steps):
    floats = [0.0, -0.0, math.nan, struct.unpack("d", struct.pack("Q", 0xFFF8000000000001))[0]]
    aggregation = Aggregation((("d", agg.count_distinct("x")),))
    kind = pa.list_(pa.field("element", pa.float64(), nullable=False))
    sets = [floats] if steps == 1 else [[x] for x in [*floats, 1.0]]
    arrived = pa.table({"k": ["a"] * len(sets), "__distinct(x)": pa.array(sets, kind)})
    arrived = arrived.append_column(ROW_COUNT, pa.array([1] * len(sets)))
    merged = aggregation.merge(aggregation.admit(arrived), ["k"])
    (counted,) = aggregation.finish(merged)
    assert counted.to_pylist() == [2 if steps == 1 else 3]

"""`running`, `match` and timers: what is refused, the types of results, and what a change means."""

import json
from itertools import permutations

import pytest
from pyspark.sql.types import (
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from dagster_jet import Pipeline, sinks, sources
from dagster_jet import aggregates as agg
from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.output_type import output_type
from dagster_jet.snapshot.plan import compare_plans


def keyed(p=None):
    source = sources.files("in", format="json", schema="k string, at timestamp, v long")
    p = p or Pipeline("p")
    return p.read_from(source, name="rows").with_timestamps("at").group_by("k")


def untimed():
    source = sources.files("in", format="json", schema="k string, v long")
    return Pipeline("p").read_from(source, name="rows").group_by("k")


def timed(p=None, **options):
    options = {"create": int, "on_timer": max, **options}
    return keyed(p).map_stateful(max, output_schema="n int", name="s", **options)


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (lambda: keyed().running(name="s"), "at least one column"),
        (lambda: keyed().running(a="v + 1", name="s"), "'v \\+ 1' is no call.*Use lag, sum"),
        (lambda: keyed().running(a="median(v)", name="s"), "is no call that running"),
        (lambda: keyed().running(a="sum(v, 2)", name="s"), "is no call that running"),
        (lambda: keyed().running(a="sum(*)", name="s"), "has no column"),
        (lambda: keyed().running(a="lag(v, 0)", name="s"), "offset less than 1"),
        (lambda: keyed().running(a="lead(v)", name="s"), "a: a row would wait.*Give a ttl"),
        (lambda: keyed().match(a="v > 1", within="1 hour", name="s"), "two steps or more"),
        (lambda: keyed().match(a="v", k="v", within="1 hour", name="s"), "named 'k'"),
        (lambda: untimed().match(a="v", b="v", within="1 hour", name="s"), "needs event time"),
        (
            lambda: keyed().match(a="v", b="DATE 'today' > v", within="1 hour", name="s"),
            "always mean the moment at which the job has started.*current_date",
        ),
        (
            lambda: keyed().rolling_aggregate(n=agg.count_if("v > timestamp'now'"), name="s"),
            "always mean the moment",
        ),
        (lambda: timed(order="arrival"), "on_timer needs rows in order of event time"),
        (lambda: timed(timers="wall clock"), "timers='wall clock' is unknown"),
        (lambda: timed(timers="processing time", on_timer=None), "without on_timer"),
        (lambda: timed(timers="processing time", order="event time"), "timers follow the clock"),
        (lambda: timed(timers="processing time", ttl="1 hour"), "not available with ttl"),
        (lambda: timed(ttl="1 hour"), "on_timer is not available with ttl"),
        (lambda: timed(on_error="dead-letter"), 'not available with on_error="dead-letter"'),
        (lambda: timed(in_batches=True), "not available with in_batches=True"),
    ],
)
def test_what_is_refused(stage, said):
    with pytest.raises(PipelineError, match=f"job 'p', stage 's': .*{said}"):
        stage()


def test_types_follow_from_the_stream():
    kinds = (StringType(), IntegerType(), DecimalType(36, 2), FloatType(), DateType())
    stream = StructType([*map(StructField, ("k", "i", "d", "f", "a b"), kinds)])
    given = (
        "*, k2 type_of(k), si TYPE_OF(sum(i)), sd type_of(sum(d)), sf type_of(sum(f)), "
        "ab type_of(a b)"
    )
    assert output_type(given, stream).simpleString() == (
        "struct<k:string,i:int,d:decimal(36,2),f:float,a b:date,"
        "k2:string,si:bigint,sd:decimal(38,2),sf:double,ab:date>"
    )
    with pytest.raises(PipelineError, match=r"stage 's': there is no column 'x'. There are k, i"):
        output_type("n type_of(x)", stream, "s")
    with pytest.raises(PipelineError, match=r"stage 's': .*string: only numbers have a sum"):
        output_type("n type_of(sum(k))", stream, "s")


def test_timers_are_another_state():
    plans = []
    for options in ({}, {"on_timer": None}, {"timers": "processing time"}):
        p = Pipeline("p")
        timed(p, **options).write_to(sinks.files("o", format="json"), name="out")
        plans.append(p.graph.plan())
    for saved, wanted in permutations(plans, 2):
        (change,) = [c for c in compare_plans(saved, wanted) if c.is_refused]
        assert "timers was" in change.reason


def test_bounds_of_another_sum_are_another_state_of_a_join():
    plans = []
    for between in (("0 s", "1 hour"), ("-1 hour", "1 hour")):
        p = Pipeline("p")
        source = sources.files("in", format="json", schema="k string, at timestamp")
        rows = p.read_from(source, name="rows").with_timestamps("at")
        joined = rows.join(rows, on="k", between=between, name="s")
        joined.write_to(sinks.files("o", format="json"), name="out")
        plans.append(p.graph.plan())
    (change,) = [c for c in compare_plans(*plans) if c.is_refused]
    assert change.reason == "skew was 3600000, is 0"


def plan_with(stage):
    p = Pipeline("p")
    stage(keyed(p)).write_to(sinks.files("o", format="json"), name="out")
    return json.loads(json.dumps(p.graph.plan()))


def running(**calls):
    return plan_with(lambda rows: rows.running(**calls, ttl="1 hour", name="s"))


def test_the_last_lead_cannot_be_taken_away_because_rows_wait_for_it():
    without, with_lead = running(n="count(*)"), running(n="count(*)", next="lead(v)")
    (change,) = [c for c in compare_plans(with_lead, without) if c.is_refused]
    assert change.reason.startswith("the last row of each key waits in its state for lead()")
    other = running(n="count(*)", after="lead(k)", next="lead(v)")
    for saved, wanted in ((without, with_lead), (with_lead, other), (other, with_lead)):
        assert not [c for c in compare_plans(saved, wanted) if c.is_refused]
    older = {name: {k: v for k, v in of.items() if k != "lead"} for name, of in with_lead.items()}
    for wanted in (with_lead, without):
        assert not [c for c in compare_plans(older, wanted) if c.is_refused]


def test_none_of_the_three_functions_reads_the_state_of_another():
    options = {"name": "s", "order": "event time"}
    plans = [
        running(n="count(*)", order="event time"),
        plan_with(lambda rows: rows.match(a="v > 1", b="v > 2", within="1 hour", name="s")),
        plan_with(
            lambda rows: rows.map_stateful(
                max, create=list, ttl="1 hour", output_schema="k string", **options
            )
        ),
    ]
    for saved, wanted in permutations(plans, 2):
        (change,) = [c for c in compare_plans(saved, wanted) if c.is_refused]
        assert change.reason.startswith("function was ")
        older = {
            name: {k: v for k, v in of.items() if k != "function"} for name, of in saved.items()
        }
        assert not [c for c in compare_plans(older, wanted) if c.is_refused]


def test_max_lull_changes_the_order_that_nobody_wrote_and_the_refusal_says_how_to_keep_it():
    def plan(max_lull, **order):
        p = Pipeline("p")
        rows = p.read_from(sources.sequence(rate=10), name="rows")
        read = rows.with_ingestion_timestamps(max_lull=max_lull).group_by("value")
        stage = read.running(n="count(*)", ttl="1 day", name="s", **order)
        stage.write_to(sinks.files("o", format="json"), name="out")
        return p.graph.plan()

    saved = plan("0 s")
    (change,) = [c for c in compare_plans(saved, plan("10 s")) if c.is_refused]
    assert change.reason == "order was 'arrival', is 'event time' (order='arrival' keeps it)"
    assert not [c for c in compare_plans(saved, plan("10 s", order="arrival")) if c.is_refused]

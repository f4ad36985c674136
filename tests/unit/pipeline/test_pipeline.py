"""Writing a pipeline: what is refused, and what the graph knows."""

from datetime import timedelta

import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources, tables, windows
from dagster_jet import aggregates as agg
from dagster_jet.core.durations import to_ms
from dagster_jet.errors import ConfigurationError, PipelineError
from dagster_jet.snapshot.plan import compare_plans


def flights(p: Pipeline, name: str = "flights"):
    source = sources.files("in", format="json", schema="origin string, at timestamp, delay double")
    return p.read_from(source, name=name).with_timestamps("at", allowed_lag="2 hours")


def airport_delays() -> Pipeline:
    p = Pipeline("airport_delays")
    late = flights(p).filter("delay > 15", name="late")
    hourly = (
        late.group_by("origin")
        .window(windows.tumbling("1 hour"))
        .aggregate(n=agg.count(), name="h")
    )
    hourly.write_to(sinks.files("out/h", format="json"), name="hourly_out")
    late.write_to(sinks.files("out/l", format="json"), name="late_out")
    return p


def test_lineage_skips_what_has_no_name_of_its_own():
    graph = airport_delays().graph
    assert [n.name for n in graph.sources] == ["flights"]
    assert graph.named_upstreams("h") == ("flights",)
    assert graph.named_upstreams("hourly_out") == ("h",)
    assert graph.named_upstreams("late_out") == ("flights",)


def test_output_that_waits_for_windows():
    assert airport_delays().graph.output_stages() == frozenset(), "late_out gets rows at once"
    p = Pipeline("p")
    once = flights(p).deduplicate(within="1 hour", name="once", on="origin")
    hourly = (
        once.group_by("origin")
        .window(windows.tumbling("1 hour"))
        .aggregate(n=agg.count(), name="h")
    )
    hourly.write_to(sinks.files("out/h", format="json"), name="hourly_out")
    total = hourly.group_by("origin").rolling_aggregate(n=agg.sum("n"), name="total")
    total.write_to(sinks.files("out/t", format="json"), name="total_out")
    assert p.graph.output_stages() == {"h", "total"}
    hourly.late_to(sinks.files("out/late", format="json"), name="late_out")
    assert p.graph.output_stages() == frozenset()


def test_event_time_is_found_across_stages():
    ((node, _),) = airport_delays().graph.upstream_timestamps("hourly_out")
    assert node.timestamps.allowed_lag_ms == 2 * 3600 * 1000


def test_two_stages_of_one_name_are_refused_when_written():
    p = Pipeline("p")
    flights(p)
    with pytest.raises(PipelineError, match="job 'p', stage 'flights': two stages are named"):
        flights(p)


def test_a_pipeline_without_a_sink_is_refused():
    p = Pipeline("p")
    flights(p)
    with pytest.raises(PipelineError, match="the pipeline has no sink"):
        _ = p.graph


def test_a_window_without_event_time_is_refused():
    p = Pipeline("p")
    stage = p.read_from(sources.files("in", format="csv", schema="k string"), name="s")
    with pytest.raises(PipelineError, match="a window needs event time"):
        stage.group_by("k").window(windows.tumbling("1 hour"))


def hourly(stage, *keys, early=None, lateness=None, name="a", **aggregates):
    window = stage.group_by(*keys).window(
        windows.tumbling("1 hour"), early_results=early, allowed_lateness=lateness
    )
    return window.aggregate(name=name, **(aggregates or {"n": agg.count()}))


@pytest.mark.parametrize(
    ("column", "stage"),
    [
        ("window_end", lambda s: hourly(s, "origin", window_end=agg.count())),
        ("window_start", lambda s: hourly(s, "origin", "window_start")),
        ("is_early", lambda s: hourly(s, "is_early", early="1 second")),
        ("origin", lambda s: hourly(s, "origin", origin=agg.count())),
        ("correction", lambda s: hourly(s, "origin", lateness="1 h", correction=agg.count())),
        ("at", lambda s: s.group_by("origin").rolling_aggregate(name="a", at=agg.max("delay"))),
        ("at", lambda s: s.group_by("at").rolling_aggregate(name="a", n=agg.count())),
        ("at", lambda s: s.rolling_aggregate(name="a", at=agg.count())),
        ("k", lambda s: s.deduplicate(on=["k", "k"], within="1 hour", name="a")),
        ("k", lambda s: s.join(s, on=["k", "k"], within="1 hour", name="a")),
    ],
)
def test_two_columns_of_one_name_are_refused(column, stage):
    with pytest.raises(PipelineError, match=f"job 'p', stage 'a': two .* named '{column}'.*select"):
        stage(flights(Pipeline("p")))


def test_a_key_is_named_once():
    with pytest.raises(PipelineError, match="two columns would be named 'k'"):
        flights(Pipeline("p")).group_by("k", "j", "k")


def test_columns_are_taken_only_where_a_stage_adds_them():
    p = Pipeline("p")
    source = sources.files("in", format="json", schema="k string, is_early boolean, at timestamp")
    stage = p.read_from(source, name="in")
    stage.group_by("k").rolling_aggregate(name="untimed", at=agg.max("at"))
    hourly(stage.with_timestamps("at"), "is_early")


def test_a_last_word_needs_a_time_to_live():
    with pytest.raises(PipelineError, match=r"job 'p', stage 'mapped': on_evict .* Give a ttl"):
        mapped(Pipeline("p"), on_evict=print)
    mapped(Pipeline("p"), on_evict=print, ttl="1 hour")


def test_a_time_to_live_of_totals_needs_event_time_and_makes_rows_late():
    p = Pipeline("p")
    untimed = p.read_from(sources.files("in", format="csv", schema="k string"), name="s")
    with pytest.raises(PipelineError, match="job 'p', stage 'a': a ttl needs event time"):
        untimed.rolling_aggregate(name="a", ttl="1 hour", n=agg.count())
    keyed = flights(Pipeline("p")).group_by("origin")
    with pytest.raises(ConfigurationError, match="ttl: '-1 hour' is not a duration"):
        keyed.rolling_aggregate(name="a", ttl="-1 hour", n=agg.count())
    keyed.rolling_aggregate(name="b", ttl="1 hour", n=agg.count()).late_to(
        sinks.console(), name="late"
    )


def test_merging_streams_with_different_event_time_columns_is_refused():
    p = Pipeline("p")
    other = p.read_from(
        sources.files("in2", format="json", schema="t timestamp"), name="other"
    ).with_timestamps("t")
    with pytest.raises(PipelineError, match="different event-time columns"):
        flights(p).merge(other)


def test_a_stage_has_only_the_methods_that_it_supports():
    p = Pipeline("p")
    source = p.read_from(sources.files("in", format="json", schema="at timestamp"), name="source")
    timed, rows = source.with_timestamps("at"), flights(p)
    joined = rows.join(rows, on="origin", within="1 hour", name="joined")
    bad, late = {"dead_letter_to"}, {"late_to"}
    for stage, has in (
        (source, bad),
        (timed, bad),
        (timed.dead_letter_to(sinks.files("bad", format="json"), name="bad"), bad),
        (timed.filter("true"), set()),
        (rows.rolling_aggregate(n=agg.count(), name="rolling"), set()),
        (rows.rolling_aggregate(n=agg.count(), ttl="1 hour", name="expiring"), late),
        (rows.deduplicate(within="1 hour", name="once"), late),
        (hourly(rows, "origin"), late),
        (hourly(rows, "origin", name="more").select("origin"), set()),
        (joined, late),
        (joined.merge(joined, name="merged"), set()),
        (numbered(p, rows), late),
        (mapped(Pipeline("p")), late),
        (mapped(Pipeline("p"), order="arrival"), set()),
        (mapped(Pipeline("p"), order="arrival", ttl="1 hour"), late),
        (mapped(Pipeline("p"), order="arrival", on_error="dead-letter"), bad),
        (mapped(Pipeline("p"), on_error="dead-letter"), bad | late),
        (in_batches(Pipeline("p"), order="arrival"), set()),
        (in_batches(Pipeline("p"), ttl="1 hour"), late),
    ):
        assert {name for name in bad | late if hasattr(stage, name)} == has, stage._node


def test_dead_letters_of_a_function_need_both_the_option_and_the_sink():
    dead, out = sinks.files("dead", format="json"), sinks.files("out", format="json")
    p = Pipeline("p")
    stage = mapped(p, on_error="dead-letter")
    stage.write_to(out, name="out")
    with pytest.raises(PipelineError, match=r"job 'p', stage 'mapped'.*Call dead_letter_to"):
        _ = p.graph

    stage.dead_letter_to(dead, name="dead")
    assert p.graph.named_upstreams("dead") == ("mapped",)


def in_batches(p: Pipeline, **options):
    options = {"state_schema": "n long", "output_schema": "n int", **options}
    keyed = flights(p).group_by("origin")
    return keyed.map_stateful(max, name="mapped", in_batches=True, **options)


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (lambda p: mapped(p, create=None), "create is missing.* for example create=int"),
        (
            lambda p: mapped(p, state_schema="n int"),
            "state_schema is only valid with in_batches=True",
        ),
        (lambda p: in_batches(p, state_schema=None), "needs a state_schema.* Name them"),
        (lambda p: in_batches(p, state_schema=" "), "needs a state_schema"),
        (lambda p: in_batches(p, create=int), "create is not available with in_batches"),
        (lambda p: in_batches(p, state_format="pickle"), "state_format is not available with in"),
        (lambda p: in_batches(p, on_error="dead-letter"), "which row caused it. Filter"),
        (lambda p: in_batches(p, on_evict=print), "on_evict would never be called.* Give a ttl"),
    ],
)
def test_the_options_of_a_function_fit_its_form(stage, said):
    with pytest.raises(PipelineError, match=f"job 'p', stage 'mapped': .*{said}"):
        stage(Pipeline("p"))


def test_a_function_over_tables_is_a_kind_of_its_own():
    """Its state has another form: the plan refuses one in place of the other."""
    p = Pipeline("p")
    stage = in_batches(p, ttl="2 hours", on_evict=print, output_schema="n int, at timestamp")
    stage.late_to(sinks.files("late", format="json"), name="late")
    (node,) = p.graph.stages
    assert node.describe() == {
        "keys": "origin",
        "state": "n long",
        "order": "event time",
        "ttl": "2 hours",
    }
    assert node.output_delay_ms == 7_200_000
    per_row = Pipeline("p")
    mapped(per_row, ttl="2 hours").write_to(sinks.files("o", format="json"), name="late")
    (change,) = [c for c in compare_plans(per_row.graph.plan(), p.graph.plan()) if c.is_refused]
    assert change.reason == "kind was 'map_stateful', is 'map_stateful_in_batches'"


def mapped(p: Pipeline, **options):
    keyed = flights(p).group_by("origin")
    options = {"create": int, **options}
    return keyed.map_stateful(max, output_schema="n int", name="mapped", **options)


def test_functions_get_rows_by_event_time_where_rows_bring_one():
    def order_of(stage, **options):
        mapped = stage.group_by("origin").map_stateful(
            max, create=int, output_schema="n int", name="mapped", **options
        )
        return mapped._builder.nodes["mapped"].in_event_order

    assert order_of(flights(Pipeline("p")))
    assert not order_of(flights(Pipeline("p")), order="arrival")
    assert not order_of(read_just_now(Pipeline("p")))
    assert order_of(read_just_now(Pipeline("p")), order="event time")
    untimed = sources.files("in", format="json", schema="origin string")
    assert not order_of(Pipeline("p").read_from(untimed, name="rows"))
    with pytest.raises(PipelineError, match="stage 'mapped'"):
        order_of(Pipeline("p").read_from(untimed, name="rows"), order="event time")
    with pytest.raises(PipelineError, match="order='time' is unknown"):
        order_of(flights(Pipeline("p")), order="time")


def numbered(p: Pipeline, rows):
    return rows.apply_processor(max, output_schema="n int", name="numbered")


def test_late_rows_of_a_join_are_those_of_one_side():
    p = Pipeline("p")
    joined = flights(p).join(flights(p, "more"), on="origin", within="1 hour", name="joined")
    late = sinks.files("late", format="json")
    for side in (None, "both"):
        with pytest.raises(PipelineError, match=r"stage 'joined': .*'left' or 'right'\. Each side"):
            joined.late_to(late, name="late", side=side)
    joined.late_to(late, name="l", side="left").late_to(late, name="r", side="right")
    assert [(n.name, n.late_input) for n in p.graph.sinks] == [("l", 0), ("r", 1)]


def test_late_rows_of_a_processor_need_event_time():
    p = Pipeline("p")
    late = sinks.files("late", format="json")
    numbered(p, flights(p)).late_to(late, name="late")
    p = Pipeline("p")
    untimed = p.read_from(sources.files("in", format="json", schema="k string"), name="untimed")
    with pytest.raises(PipelineError, match=r"stage 'numbered': no row can be late.*no event time"):
        numbered(p, untimed).late_to(late, name="late")


def read_just_now(p: Pipeline, **options):
    source = sources.files("in", format="json", schema="origin string")
    return p.read_from(source, name="now").with_ingestion_timestamps(**options)


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (lambda p: hourly(read_just_now(p).filter("true"), "origin"), "time of their reading"),
        (lambda p: hourly(read_just_now(p, max_lull="1 second"), "origin"), None),
        (lambda p: hourly(hourly(flights(p), "origin").filter("true"), "origin", name="b"), None),
        (lambda p: mapped(p, ttl="1 hour"), None),
    ],
)
def test_late_rows_are_not_sent_to_a_sink_where_there_can_be_none(stage, said):
    stage, late = stage(Pipeline("p")), sinks.files("late", format="json")
    if said is None:
        stage.late_to(late, name="late")
        return
    with pytest.raises(PipelineError, match=f"no row can be late for the stage: .*{said}"):
        stage.late_to(late, name="late")


@pytest.mark.parametrize("names", [("mine", "its"), ("same", "same")])
def test_streams_of_two_pipelines_are_not_mixed(names):
    mine, its = Pipeline(names[0]), Pipeline(names[1])
    left, right = flights(mine, "here"), flights(its, "there")
    for mix in (
        lambda: left.merge(right),
        lambda: left.merge(flights(mine, "third"), right),
        lambda: left.join(right, on="origin", within="1 hour", name="both"),
    ):
        with pytest.raises(PipelineError, match=f"{names[0]}'.*'there.timestamps'.*'{names[1]}'"):
            mix()


@pytest.mark.parametrize(
    "mix",
    [
        lambda stage, other: stage.merge([other]),
        lambda stage, other: stage.join([other], on="origin", within="1 hour", name="both"),
        lambda stage, other: stage.join_as_of([other], on="origin", name="both"),
    ],
)
def test_what_is_mixed_are_stages(mix):
    p = Pipeline("mine")
    with pytest.raises(PipelineError, match=r"job 'mine'.*a list is not a stage"):
        mix(flights(p, "here"), flights(p, "there"))


@pytest.mark.parametrize(
    ("grouped", "said"),
    [
        (lambda stage: stage.group_by(["origin"]), "group_by.. takes names of columns, not a list"),
        (lambda stage: stage.group_by(len), "group_by.. takes names of columns, not a builtin"),
        (lambda stage: stage.window("1 hour"), r"a str is not a window\. Write windows\.tumbling"),
        (
            lambda stage: stage.group_by("origin").rolling_aggregate(n=agg.sum(5), name="r"),
            "stage 'r': n: an aggregate takes a column or an SQL expression, not 5",
        ),
        (
            lambda stage: stage.group_by("origin").map_stateful(
                len, create=int, output_schema={"n": "int"}, name="m"
            ),
            'a schema is a text of names and types, not a dict. Write "flight string',
        ),
    ],
)
def test_an_argument_of_another_kind(grouped, said):
    """Failed before: an AttributeError or a TypeError, when the job started."""
    with pytest.raises(ConfigurationError, match=said):
        grouped(flights(Pipeline("p")))


def test_items_are_a_list():
    for wrong in ((row for row in ()), "n", {1}):
        with pytest.raises(ConfigurationError, match=r"rows: a \w+ is not a list of rows"):
            sources.items(wrong, schema="n int")


def test_a_reaction_that_does_not_exist():
    with pytest.raises(PipelineError, match="stage 'mapped': on_error='skip' is unknown"):
        mapped(Pipeline("p"), on_error="skip")


def test_the_fingerprint_follows_the_shape_not_the_functions():
    same, changed = airport_delays(), airport_delays()
    assert same.graph.fingerprint() == changed.graph.fingerprint()
    flights(changed, "more").write_to(sinks.files("o", format="json"), name="more_out")
    assert same.graph.fingerprint() != changed.graph.fingerprint()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500 ms", 500),
        ("1 second", 1000),
        ("90 seconds", 90_000),
        ("2 hours", 7_200_000),
        ("1.5 minutes", 90_000),
        (timedelta(days=1), 86_400_000),
    ],
)
def test_durations(text, expected):
    assert to_ms(text, "x") == expected


@pytest.mark.parametrize("text", ["soon", "5", "3 fortnights", timedelta(seconds=-1)])
def test_a_wrong_duration_names_its_field(text):
    with pytest.raises(ConfigurationError, match="allowed_lag"):
        to_ms(text, "allowed_lag")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"snapshot_intervall": "1 second"}, "snapshot_intervall: there is no such setting;"),
        ({"guarantee": "twice"}, "guarantee"),
        ({"parallelism": 0}, "parallelism"),
        ({"snapshot_interval": "soon"}, "^JobConfig: snapshot_interval: 'soon' is not a duration"),
        ({"initial_snapshot": 3}, "initial_snapshot"),
    ],
)
def test_a_wrong_setting_fails_when_it_is_made_and_names_the_field(settings, field):
    with pytest.raises(ConfigurationError, match=field):
        JobConfig(**settings)


@pytest.mark.parametrize(
    "make",
    [
        lambda: sources.files("in", format="xml", schema="a int"),
        lambda: sources.files("in", format="json"),
        lambda: sources.files("in", format="json", schema={"a": "int"}),
        lambda: tables.files("in", format="xlsx"),
        lambda: sinks.files("out", format="orc"),
        lambda: windows.tumbling("0 ms"),
    ],
)
def test_a_connector_that_cannot_work_is_refused_when_written(make):
    with pytest.raises(ConfigurationError):
        make()


def test_a_window_may_be_over_all_rows():
    p = Pipeline("p")
    everything = flights(p).window(windows.tumbling("1 hour"))
    everything.aggregate(n=agg.count(), name="all").write_to(
        sinks.files("out", format="json"), name="out"
    )
    (stage,) = p.graph.stages
    assert stage.shape()["keys"] == []


@pytest.mark.parametrize("how", ["right", "outer"])
def test_a_window_behind_a_join_that_keeps_the_other_side_has_no_event_time(how):
    p = Pipeline("p")
    left, right = (
        p.read_from(
            sources.files(name, format="json", schema="k string, at timestamp"), name=name
        ).with_timestamps("at")
        for name in ("left", "right")
    )
    joined = left.join(right, on="k", within="1 second", how=how, name="joined")
    with pytest.raises(PipelineError, match="a window needs event time"):
        joined.group_by("k").window(windows.tumbling("1 hour"))


@pytest.mark.parametrize(
    ("output_schema", "keeps_time"),
    [
        ("k string, at timestamp", True),
        ("`at` timestamp, k string", True),
        ("at: timestamp", True),
        ("k string, of struct<k: string, at: timestamp>", False),
        ("k string", False),
    ],
)
def test_a_function_keeps_event_time_by_naming_its_column(output_schema, keeps_time):
    p = Pipeline("p")
    source = sources.files("in", format="json", schema="k string, at timestamp")
    mapped = (
        p.read_from(source, name="in")
        .with_timestamps("at")
        .map_stateful(max, create=int, output_schema=output_schema, name="mapped")
    )
    if keeps_time:
        mapped.group_by("k").window(windows.tumbling("1 hour"))
    else:
        with pytest.raises(PipelineError, match="a window needs event time"):
            mapped.group_by("k").window(windows.tumbling("1 hour"))


@pytest.mark.parametrize(
    ("name", "length"), [("x" * 101, 101), ("é" * 51, 102), ("%" * 34, 102), ("1%" * 30, 120)]
)
def test_names_that_keys_and_folders_cannot_hold_are_refused(name: str, length: int) -> None:
    """Failed before at the job's first write, or at the creation of a folder."""
    too_long = f"{name[:40]}'... has {length} bytes, and a name takes at most 100"
    with pytest.raises(PipelineError, match=too_long):
        Pipeline(name)
    p = Pipeline("x" * 100)
    with pytest.raises(PipelineError, match=too_long):
        p.read_from(sources.files("/in", format="json", schema="id long"), name=name)
    assert p.renamed("x" * 240).renamed("y" * 240).name == "y" * 240, "a job of a partition"
    with pytest.raises(PipelineError, match="has 241 bytes, and a name takes at most 240"):
        p.renamed("x" * 241)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a\nb"])
def test_names_that_would_lead_out_of_a_folder_are_refused(name: str) -> None:
    """Failed before: a pipeline named ".." had its folder where those of others are."""
    with pytest.raises(PipelineError, match="is not a valid pipeline name"):
        Pipeline(name)
    with pytest.raises(PipelineError, match="is not a valid stage name"):
        Pipeline("p").read_from(None, name=name)


class LikeAConnector:
    """Has methods of a connector, and none of its base classes."""

    schema = "n int"

    def describe(self):
        return {"kind": "mine", "password": "hunter2"}

    def open(self, job, stage, bad_rows):
        raise AssertionError("nothing is opened while a pipeline is built")

    def __repr__(self):
        return "hunter2"


@pytest.mark.parametrize(
    "wrong",
    [LikeAConnector(), LikeAConnector, sources.files],
    ids=["an object", "its class", "a function"],
)
@pytest.mark.parametrize("kind", ["Source", "Sink", "Table"])
def test_what_is_of_no_base_class_is_refused_when_the_pipeline_is_built(kind, wrong):
    rows = Pipeline("shop").read_from(sources.sequence(rate=1), name="n")
    build = {
        "Source": lambda: Pipeline("shop").read_from(wrong, name="mine"),
        "Sink": lambda: rows.write_to(wrong, name="mine"),
        "Table": lambda: rows.enrich(wrong, on="n", name="mine"),
    }
    said = f"stage 'mine'.* is not a {kind}.*subclass of dagster_jet.contract.{kind}"
    with pytest.raises(PipelineError, match=said) as raised:
        build[kind]()
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "build",
    [
        lambda rows: Pipeline("shop").read_from(sinks.collect("all"), name="mine"),
        lambda rows: rows.write_to(sources.sequence(rate=1), name="mine"),
        lambda rows: rows.enrich(sources.sequence(rate=1), on="n", name="mine"),
    ],
)
def test_a_connector_of_another_kind_is_refused(build):
    with pytest.raises(PipelineError, match=r"is not a (Source|Sink|Table)"):
        build(Pipeline("shop").read_from(sources.sequence(rate=1), name="n"))


def test_a_schema_that_only_the_place_knows_is_not_asked_for():
    source = sources.files("/in", format="parquet")
    Pipeline("shop").read_from(source, name="rows")


def test_the_parts_of_a_split_are_filters():
    p = Pipeline("shop")
    rows = p.read_from(sources.sequence(rate=1), name="n")
    parts = rows.split(large="n > 9", odd="n % 2 = 1")
    assert list(parts) == ["large", "odd", "rest"]
    assert [part._node for part in parts.values()] == [
        f"split_{part}_1" for part in ("large", "odd", "rest")
    ]
    for wrong in ({}, {"rest": "n > 9"}):
        with pytest.raises(PipelineError, match="needs conditions, and no part"):
            rows.split(**wrong)

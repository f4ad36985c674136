"""Writing a pipeline: what is refused, and what the graph knows."""

from datetime import timedelta

import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.errors import ConfigurationError, PipelineError
from dagster_jet.pipeline.durations import to_ms


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
    with pytest.raises(PipelineError, match="nothing is written"):
        _ = p.graph


def test_a_window_without_event_time_is_refused():
    p = Pipeline("p")
    stage = p.read_from(sources.files("in", format="csv", schema="k string"), name="s")
    with pytest.raises(PipelineError, match="a window needs event time"):
        stage.group_by("k").window(windows.tumbling("1 hour"))


def test_an_aggregate_must_not_take_a_column_that_is_there_already():
    p = Pipeline("p")
    window = flights(p).group_by("origin").window(windows.tumbling("1 hour"))
    with pytest.raises(PipelineError, match="window_end"):
        window.aggregate(window_end=agg.count(), name="a")


def test_merging_streams_with_different_event_time_columns_is_refused():
    p = Pipeline("p")
    other = p.read_from(
        sources.files("in2", format="json", schema="t timestamp"), name="other"
    ).with_timestamps("t")
    with pytest.raises(PipelineError, match="different event-time columns"):
        flights(p).merge(other)


def test_dead_letters_belong_to_a_source():
    p = Pipeline("p")
    with pytest.raises(PipelineError, match="directly after read_from"):
        flights(p).filter("true").dead_letter_to(sinks.files("o", format="json"), name="bad")


def mapped(p: Pipeline, **options):
    keyed = flights(p).group_by("origin")
    return keyed.map_stateful(max, create=int, output_schema="n int", name="mapped", **options)


def test_dead_letters_of_a_function_need_both_the_option_and_the_sink():
    dead, out = sinks.files("dead", format="json"), sinks.files("out", format="json")
    p = Pipeline("p")
    with pytest.raises(PipelineError, match=r"job 'p', stage 'mapped'.*on_error=\"dead-letter\""):
        mapped(p).dead_letter_to(dead, name="dead")

    p = Pipeline("p")
    stage = mapped(p, on_error="dead-letter")
    stage.write_to(out, name="out")
    with pytest.raises(PipelineError, match=r"job 'p', stage 'mapped'.*Call dead_letter_to"):
        _ = p.graph

    stage.dead_letter_to(dead, name="dead")
    assert p.graph.named_upstreams("dead") == ("mapped",)
    with pytest.raises(PipelineError, match="directly after"):
        stage.filter("true").dead_letter_to(dead, name="more")


def test_a_reaction_that_does_not_exist():
    with pytest.raises(PipelineError, match="stage 'mapped': on_error='skip' is not known"):
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
        ({"snapshot_intervall": "1 second"}, "snapshot_intervall"),
        ({"guarantee": "twice"}, "guarantee"),
        ({"parallelism": 0}, "parallelism"),
        ({"snapshot_interval": "soon"}, "snapshot_interval"),
        ({"guarantee": "none", "initial_snapshot": 3}, "initial_snapshot"),
        ({"lease_ttl": "10 ms"}, "lease_ttl"),
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

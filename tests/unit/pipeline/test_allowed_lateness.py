"""Windows with an allowed lateness: where they are refused."""

import pytest

from dagster_jet import Pipeline, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.errors import ConfigurationError, PipelineError

from .test_pipeline import flights, hourly


@pytest.mark.parametrize(
    "behind",
    [
        lambda s: s.group_by("origin").rolling_aggregate(name="b", n=agg.sum("n")),
        lambda s: s.map_stateful(print, create=int, output_schema="a int", name="b"),
        lambda s: hourly(s, "origin", name="b"),
        lambda s: s.select("origin", "window_end").deduplicate(within="1 hour", name="b"),
        lambda s: s.merge(s.filter("n > 1")).deduplicate(within="1 hour", name="b"),
    ],
)
def test_no_stage_with_state_counts_a_window_and_its_corrections(behind):
    stage = hourly(flights(Pipeline("p")), "origin", lateness="10 minutes")
    says = r"job 'p', stage 'b': .* corrected window of 'a' .*from the input of 'a'"
    with pytest.raises(PipelineError, match=says):
        behind(stage)
    with pytest.raises(PipelineError, match="corrected window of 'a'"):
        stage.with_timestamps("window_end")
    behind(hourly(flights(Pipeline("p")), "origin"))


def test_lateness_is_refused_where_it_has_no_meaning():
    p = Pipeline("p")
    with pytest.raises(PipelineError, match=r"job 'p'.*not for sessions.* allowed_lag="):
        flights(p).window(windows.session("1 hour"), allowed_lateness="1 hour")
    source = sources.files("in", format="json", schema="k string")
    read = p.read_from(source, name="read").with_ingestion_timestamps()
    with pytest.raises(PipelineError, match="with the time of reading no row is late"):
        read.window(windows.tumbling("1 hour"), allowed_lateness="1 hour")
    with pytest.raises(ConfigurationError, match="allowed_lateness"):
        hourly(flights(p, "others"), "origin", lateness="-1 hour")

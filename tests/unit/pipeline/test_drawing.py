"""A pipeline as text, as a diagram, and in a debugger."""

from __future__ import annotations

import pytest

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.core.html_table import html_table
from dagster_jet.errors import PipelineError


def flights() -> Pipeline:
    p = Pipeline("flights")
    rows = p.read_from(
        sources.files("/in", format="json", schema="k string, at timestamp"), name="rows"
    )
    counts = rows.with_timestamps("at").filter("k > 'a'").group_by("k")
    hourly = counts.window(windows.tumbling("1 hour")).aggregate(n=agg.count(), name="hourly")
    hourly.late_to(sinks.files("/late", format="json"), name="late")
    hourly.write_to(sinks.files("/out", format="json"), name="out")
    return p


def test_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    flights().show()
    assert capsys.readouterr().out.splitlines() == [
        "flights",
        "  rows    files: /in, json  (source)",
        "  hourly  keys k; window tumbling, 1 hour; aggregates n = count(*)  (aggregate)  <- rows",
        "  late    files: /late, json  (sink)  <- hourly",
        "  out     files: /out, json  (sink)  <- hourly",
    ]


def test_as_a_diagram(capsys: pytest.CaptureFixture[str]) -> None:
    flights().show(format="mermaid")
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "flowchart LR" and shown[1] == '    n0(["rows<br>files: /in, json"])'
    assert shown[-3:] == ["    n0 --> n1", "    n1 --> n2", "    n1 --> n3"]
    with pytest.raises(PipelineError, match="format='svg' is unknown"):
        flights().show(format="svg")


def test_in_a_debugger() -> None:
    p = flights()
    assert repr(p) == "<Pipeline 'flights': sources rows; stages hourly; sinks late, out>"
    assert repr(Pipeline("new")) == "<Pipeline 'new': empty>"
    stage = Pipeline("p").read_from(sources.sequence(rate=1), name="numbers")
    assert repr(stage) == "<SourceStage 'numbers' of the pipeline 'p'>"


def test_in_a_notebook() -> None:
    shown = flights()._repr_html_()
    assert shown.startswith("<table><caption>Pipeline flights</caption><tr><th>name</th>")
    assert "<tr><td>hourly</td><td>aggregate</td><td>keys k; window" in shown
    assert (
        "<td>out</td><td>sink</td><td>files: /out, json</td><td>hourly</td></tr></table>" in shown
    )
    assert "<td>a&lt;b</td>" in html_table("t", (), [("a<b", 1)])

"""A changed pipeline keeps, adds, drops or refuses saved state."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.pipeline import Stage
from dagster_jet.pipeline.stateful import RollingNode
from dagster_jet.pipeline.windows import Window
from dagster_jet.snapshot.plan import Change, compare_plans

Build = Callable[[Stage, Stage], Stage]
SCHEMA = "k string, g long, t timestamp, v double"
HOURLY = windows.tumbling("1 hour")
SLIDE = "size or slide of its windows was 1 hour, is "


def plan(build: Build | None) -> dict[str, Any]:
    """Plan of two sources and the stages that `build` adds, read back from a manifest's JSON."""
    p = Pipeline("p")
    streams = []
    for name in ("rows", "others"):
        source = p.read_from(sources.files("in", format="json", schema=SCHEMA), name=name)
        streams.append(source.with_timestamps("t"))
    stage = streams[0] if build is None else build(*streams)
    stage.write_to(sinks.files("out", format="json"), name="out")
    return json.loads(json.dumps(p.graph.plan()))


def change(before: Build | None, after: Build | None) -> tuple[Change, str]:
    """Change of the stage `s`. The sources are the same, so their positions stay."""
    changes = {c.stage: c for c in compare_plans(plan(before), plan(after))}
    assert changes["rows"].change is changes["others"].change is Change.KEPT
    assert changes["s"].is_refused == (changes["s"].change in (Change.DROPPED, Change.INCOMPATIBLE))
    return changes["s"].change, changes["s"].reason


def window(
    window: Window = HOURLY, keys: tuple[str, ...] = ("k",), **aggregates: agg.Aggregate
) -> Build:
    found = aggregates or {"n": agg.count(), "total": agg.sum("v")}
    return lambda rows, _: rows.group_by(*keys).window(window).aggregate(name="s", **found)


def sliding(size: str) -> Window:
    return windows.sliding(size, "1 hour")


def rolling(ttl: str | None = None, **aggregates: agg.Aggregate) -> Build:
    return lambda rows, _: rows.group_by("k").rolling_aggregate(name="s", ttl=ttl, **aggregates)


def distinct(*on: str, within: str = "1 hour") -> Build:
    return lambda rows, _: rows.deduplicate(on=on, within=within, name="s")


def join(how: Any = "inner", within: str = "1 hour") -> Build:
    return lambda rows, others: rows.join(others, on="k", within=within, how=how, name="s")


def behind_windows(build: Build) -> Build:
    def built(rows: Stage, others: Stage) -> Stage:
        hours = rows.group_by("k").window(HOURLY).aggregate(v=agg.sum("v"), name="hours")
        return build(hours, others)

    return built


def mapped(ttl: str | None, create: Callable[[], Any] = int, **options: Any) -> Build:
    return lambda rows, _: rows.group_by("k").map_stateful(
        lambda state, row: row, create=create, ttl=ttl, output_schema="k string", name="s",
        **options,
    )  # fmt: skip


def custom(state_format: str) -> Build:
    own = agg.custom(
        int, max, max, int, columns=["v"], result_type="int", state_format=state_format
    )
    return window(n=agg.count(), own=own)


def processor(state_format: str) -> Build:
    return lambda rows, _: rows.apply_processor(
        max, output_schema="k string", name="s", state_format=state_format
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (window(), window()),
        (
            window(windows.sliding("2 hours", "1 hour")),
            window(windows.sliding("9 hours", "1 hour")),
        ),
        (window(HOURLY), window(windows.sliding("3 hours", "1 hour"))),
        (window(windows.session("1 hour")), window(windows.session("9 hours"))),
        # Results are finished from what is saved: another name, or another finish of the same.
        (
            window(n=agg.count(), total=agg.sum("v"), mean=agg.mean("v")),
            window(rows=agg.count(), mean=agg.mean("v")),
        ),
        (rolling(n=agg.count()), rolling(count=agg.count())),
        (distinct("k"), distinct("k", within="9 hours")),
        (join("left"), join("left", "9 hours")),
        (mapped("1 hour"), mapped("9 hours", lambda: 1)),
    ],
    ids=["same", "size", "slides now", "gap", "results", "names", "within", "of a join", "ttl"],
)
def test_state_is_kept(before: Build, after: Build) -> None:
    assert change(before, after) == (Change.KEPT, "")


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (window(), window(keys=("k", "g")), "keys was ['k'], is ['k', 'g']"),
        (window(keys=("g", "k")), window(keys=("k", "g")), "keys was ['g', 'k'], is ['k', 'g']"),
        (window(), window(windows.tumbling("2 hours")), f"{SLIDE}2 hours"),
        (
            window(),
            window(windows.tumbling("1 hour", offset="1 minute")),
            f"{SLIDE}1 hour with offset 1 minute",
        ),
        (window(), window(windows.session("1 hour")), f"{SLIDE}none (sessions)"),
        (window(n=agg.count()), window(n=agg.count("v")), "partials was ['__count()'], is ["),
        (
            rolling(m=agg.approx_count_distinct("v", lg_k=12)),
            rolling(m=agg.approx_count_distinct("v", lg_k=10)),
            "is ['__hll(v,10)']",
        ),
        (window(n=agg.count()), rolling(n=agg.count()), "kind was 'aggregate', is 'rolling_"),
        (distinct("k"), distinct("g"), "keys was ['k'], is ['g']"),
        (join("left"), join("outer"), "how was 'left', is 'outer'"),
        (mapped(None), mapped("1 hour"), "ttl was False, is True"),
    ],
)
def test_state_that_would_not_mean_the_same_is_refused(
    before: Build, after: Build, reason: str
) -> None:
    found, why = change(before, after)
    assert found is Change.INCOMPATIBLE
    assert reason in why


@pytest.mark.parametrize("build", [lambda f: mapped(None, state_format=f), processor, custom])
def test_pickled_state_goes_on_only_where_it_is_asked_for(build: Callable[[str], Build]) -> None:
    """So does state of versions whose plans name no formats: they pickled everything."""
    older = {name: {k: v for k, v in of.items() if k != "plain"} for name, of in
             plan(build("plain")).items()}  # fmt: skip
    for saved in (older, plan(build("pickle"))):
        (refused,) = [c for c in compare_plans(saved, plan(build("plain"))) if c.is_refused]
        assert refused.change is Change.INCOMPATIBLE
        assert 'set state_format="pickle"' in refused.reason
    for saved in (older, plan(build("plain")), plan(build("pickle"))):
        assert not [c for c in compare_plans(saved, plan(build("pickle"))) if c.is_refused]


def test_every_difference_is_told() -> None:
    _, why = change(window(), window(windows.tumbling("1 day"), ("g",)))
    assert why.startswith(
        "keys was ['k'], is ['g']; size or slide of its windows was 1 hour, is 1 day"
    )


def test_a_stage_that_was_not_there_begins_empty() -> None:
    assert change(None, window()) == (Change.NEW, "")


def test_a_stage_that_is_gone_is_refused_and_comes_last() -> None:
    changes = compare_plans(plan(window()), plan(None))
    assert [(c.stage, c.kind, c.change) for c in changes] == [
        ("rows", "source", Change.KEPT),
        ("others", "source", Change.KEPT),
        ("s", "aggregate", Change.DROPPED),
    ]
    assert changes[-1].is_refused


def test_a_source_that_is_gone_is_refused_too() -> None:
    """Its position says which rows were read: reading all again would count them twice."""
    wanted = {name: of for name, of in plan(window()).items() if name != "others"}
    (gone,) = [c for c in compare_plans(plan(window()), wanted) if c.is_refused]
    assert (gone.stage, gone.change) == ("others", Change.DROPPED)


def test_state_of_a_newer_format_is_refused_and_of_an_older_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build = rolling(n=agg.count())
    today = plan(build)
    monkeypatch.setattr(RollingNode, "state_format", 2)
    later = plan(build)
    (newer,) = [c for c in compare_plans(later, today) if c.is_refused]
    assert newer.change is Change.INCOMPATIBLE
    assert newer.reason == "its state was written by a newer version of dagster-jet"
    assert not [c for c in compare_plans(today, later) if c.is_refused]


def test_a_time_to_live_of_totals_and_a_maximum_of_sessions_are_another_state() -> None:
    """Their values may change."""
    bounded = [windows.session("1 hour", max_duration=most) for most in ("2 hours", "3 hours")]
    for plain, with_it, changed in (
        (rolling(n=agg.count()), *(rolling(ttl=ttl, n=agg.count()) for ttl in ("1 h", "2 h"))),
        (window(windows.session("1 hour")), *map(window, bounded)),
    ):
        assert change(plain, with_it)[0] is change(with_it, plain)[0] is Change.INCOMPATIBLE
        assert change(with_it, changed)[0] is Change.KEPT


def test_before_the_first_snapshot_everything_is_new() -> None:
    assert {c.change for c in compare_plans({}, plan(window()))} == {Change.NEW}


@pytest.mark.parametrize(
    "build", [window(), window(windows.session("1 hour")), distinct("k"), join()]
)
def test_another_event_time_of_rows_is_refused(build: Build) -> None:
    """The old event time decided the frame of each row, and the rows that it joined."""
    now = plan(behind_windows(build))
    written = {name: dict(stage) for name, stage in now.items()}
    del written["s"]["event_time"]
    for before, after in ((written, now), (now, written)):
        reasons = {c.stage: c.reason for c in compare_plans(before, after) if c.is_refused}
        assert list(reasons) == ["s"] and "event time" in reasons["s"], "the windows in front go on"
    assert not [c for c in compare_plans(now, now) if c.is_refused]
    assert change(behind_windows(build), build)[0] is Change.INCOMPATIBLE


def test_totals_and_functions_behind_windows_have_no_event_time_in_their_state() -> None:
    for build in (rolling(n=agg.count()), mapped("1 hour")):
        assert plan(behind_windows(build))["s"] == plan(build)["s"]

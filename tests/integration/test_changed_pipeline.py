"""A pipeline that changed under its saved state: what can go on goes on; what cannot is planned so,
refused at the start by name, and damages nothing: the old pipeline goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.errors import JetError, SnapshotInvalidError
from dagster_jet.pipeline.windows import Window
from dagster_jet.snapshot.plan import Change

from .oracle import Rows, committed, input_rows, visible_files, windowed
from .world import WINDOW_COLUMNS, World

SECONDS = windows.tumbling("1 second")
Pipelines = Callable[..., Pipeline]


@pytest.fixture
def pipeline(world: World) -> Pipelines:
    """Makes the pipeline as it was, or with a change."""

    def make(
        keys: tuple[str, ...] = ("k",),
        window: Window = SECONDS,
        name: str = "counts",
        schema: str = "k string, ts long, v long",
        *,
        key: str = "k",
        with_rows: bool = False,
    ) -> Pipeline:
        p = Pipeline("changing")
        source = sources.files(f"{world.folder}/in/left", format="json", schema=schema)
        read = p.read_from(source, name="rows").with_timestamps("ts", allowed_lag="500 ms")
        rows = read.select(f"{key} AS k", "ts", "v")
        counts = (
            rows.group_by(*keys)
            .window(window)
            .aggregate(n=agg.count(), total=agg.sum("v"), name=name)
        )
        counts.write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
        if with_rows:
            total = rows.rolling_aggregate(n=agg.count(), name="total")
            total.write_to(sinks.files(f"{world.folder}/total", format="json"), name="total_out")
        return p

    return make


def expected(world: World) -> Rows:
    return windowed(input_rows(world.folder / "in" / "left"), 1000)


def test_a_change_that_state_cannot_follow_is_planned_refused_and_harmless(
    world: World, pipeline: Pipelines
) -> None:
    world.fill(3)
    config = JobConfig(parallelism=2)
    with world.jet() as jet:
        jet.run(pipeline(), config, until="drained")
        before, state = visible_files(world.folder / "out"), jet.read_state("changing", "counts")
        world.fill(3, first=3)
        refused = {
            "keys was ['k'], is ['k', 'v']": pipeline(keys=("k", "v")),
            "frames was [1000, 0], is [2000, 0]": pipeline(window=windows.tumbling("2 seconds")),
        }
        for reason, changed in refused.items():
            (change,) = [c for c in jet.plan(changed) if c.is_refused]
            assert (change.stage, change.change) == ("counts", Change.INCOMPATIBLE)
            assert change.reason == reason
            with pytest.raises(
                JetError, match="Take the change back, or give the stage a new"
            ) as e:
                jet.run(changed, config, until="drained")
            assert "job 'changing', stage 'counts'" in str(e.value) and reason in str(e.value)
        renamed = pipeline(name="sums")
        assert [(c.stage, c.change) for c in jet.plan(renamed)] == [
            ("rows", Change.KEPT),
            ("sums", Change.NEW),
            ("counts", Change.DROPPED),
        ]
        with pytest.raises(JetError, match=r"state of counts, .*Bring the stage back"):
            jet.run(renamed, config, until="drained")
        assert visible_files(world.folder / "out") == before
        assert jet.read_state("changing", "counts").equals(state)
        assert not [c for c in jet.plan(pipeline()) if c.change is not Change.KEPT]
        jet.run(pipeline(), config, until="completed")
    assert committed(world.folder / "out", WINDOW_COLUMNS) == expected(world)


def test_a_stage_that_is_added_begins_empty_and_the_others_go_on(
    world: World, pipeline: Pipelines
) -> None:
    world.fill(3)
    with world.jet() as jet:
        jet.run(pipeline(), until="drained")
        world.fill(3, first=3)
        more = pipeline(with_rows=True)
        assert {c.stage: c.change for c in jet.plan(more)} == {
            "rows": Change.KEPT,
            "counts": Change.KEPT,
            "total": Change.NEW,
        }
        jet.run(more, JobConfig(parallelism=3), until="completed")
    assert committed(world.folder / "out", WINDOW_COLUMNS) == expected(world)
    totals = [
        json.loads(line)["n"]
        for path in (world.folder / "total").glob("*.json")
        for line in path.read_text("utf-8").splitlines()
    ]
    assert max(totals) == 3 * 12, "what was read before it was there is not read again"


def test_a_key_of_another_type_is_refused_at_the_restore(world: World, pipeline: Pipelines) -> None:
    """The plan knows columns by name only; what was saved knows their types."""
    world.fill(2)
    with world.jet() as jet:
        jet.run(pipeline(), JobConfig(parallelism=2), until="drained")
        before = visible_files(world.folder / "out")
        changed = pipeline(schema="k binary, ts long, v long")
        said = r"stage 'counts': .* has 'k' as string, it is binary now. Take the change back"
        with pytest.raises(SnapshotInvalidError, match=said):
            jet.run(changed, until="drained")
        assert visible_files(world.folder / "out") == before
        # Whether it may be null is no other type: it goes on so, and back again.
        for turn, key in enumerate(("coalesce(k, '')", "k", "coalesce(k, '')"), start=1):
            world.fill(2, first=2 * turn)
            until = "completed" if turn == 3 else "drained"
            jet.run(pipeline(key=key), JobConfig(parallelism=2), until=until)
    assert committed(world.folder / "out", WINDOW_COLUMNS) == expected(world)

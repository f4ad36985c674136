"""`sinks.foreach_epoch` in a job: frames of decided epochs, and the same again after an error."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dagster_jet import JobConfig, Pipeline, sinks, sources
from dagster_jet.execution.events import ExecutionRestarting

from .oracle import input_rows
from .world import World


def test_a_function_that_fails_gets_the_same_rows_and_id_again(world: World) -> None:
    world.fill(3)
    calls: list[tuple[str, Counter[tuple[Any, ...]]]] = []

    def load(rows: Any, epoch: str) -> None:
        calls.append((epoch, Counter(map(tuple, rows.select("k", "ts", "v").collect()))))
        if len(calls) == 2:
            raise RuntimeError("the warehouse has answered, and nobody has heard it")

    p = Pipeline("loading")
    source = sources.files(
        f"{world.folder}/in/left", format="json", schema="k string, ts long, v long"
    )
    p.read_from(source, name="rows").write_to(sinks.foreach_epoch(load), name="out")
    with world.jet() as jet:
        jet.run(p, JobConfig(max_items_per_epoch=1), until="completed", on_event=world.see)
    assert len(world.events_of(ExecutionRestarting)) == 1
    assert calls[1] == calls[2], "the same rows and the same id"
    by_id = dict(calls)
    assert len(by_id) == len(calls) - 1 == 3
    wanted = Counter((r["k"], r["ts"], r["v"]) for r in input_rows(world.folder / "in" / "left"))
    assert sum(by_id.values(), Counter()) == wanted

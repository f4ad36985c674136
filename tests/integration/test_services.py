"""`map_using_service`: what is committed when calls are repeated, and what a failing call says."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources
from dagster_jet.errors import PipelineError, UserFunctionError
from tests.long import long_but_for

from . import child, service_child
from .crash_table import AFTER_DECISION
from .oracle import committed
from .service_child import asking_pipeline, pipeline
from .world import World, write_input

ROWS, FILES = 40, 2


def rows_of(number: int) -> list[dict[str, Any]]:
    times = [datetime.fromtimestamp(100 * number + n, timezone.utc) for n in range(ROWS)]
    return [
        {"k": n % 5, "v": number * ROWS + n, "at": at.isoformat()} for n, at in enumerate(times)
    ]


def assert_one_answer_each(folder: Path, files: int) -> None:
    everything = Counter((v,) for v in range(files * ROWS))
    low, high = (committed(folder / name, ("v", "answer")) for name in ("low", "high"))
    assert Counter((v,) for v, _ in (low + high).elements()) == everything
    assert max(answer for _, answer in low) < "8" <= min(answer for _, answer in high)
    assert committed(folder / "counts", ("k", "n", "size")).total() == 5
    calls = Counter((int(v),) for v in (folder / "calls").read_text().split())
    assert calls.keys() == everything.keys()


def test_each_row_has_one_answer_although_calls_are_repeated(world: World) -> None:
    folder = world.folder

    for number in range(FILES):
        write_input(folder / "in", number, rows_of(number))
    for until, parallelism in (("drained", 3), ("completed", 2)):
        with world.jet() as jet:
            config = JobConfig(max_items_per_epoch=1, parallelism=parallelism)
            jet.run(asking_pipeline(folder), config, until=until)
        for number in range(FILES, 2 * FILES) if until == "drained" else ():
            write_input(folder / "in", number, rows_of(number))
    assert_one_answer_each(folder, 2 * FILES)
    created = [path.name for path in (folder / "created").iterdir()]
    processes = {name.partition("-")[0] for name in created}
    assert len(created) <= 2 * len(processes), "one per process and pipeline, not per task"


@pytest.mark.parametrize("rules", long_but_for(("manifest.after:3=kill", AFTER_DECISION)))
def test_killed_between_the_calls_and_the_commit(
    world: World, monkeypatch: pytest.MonkeyPatch, rules: str
) -> None:
    """Rows are sent again before the decision; after it their answers count."""
    monkeypatch.setattr(World, "driver", staticmethod(service_child.main))
    for number in range(2 * FILES):
        write_input(world.folder / "in", number, rows_of(number))
    world.run_child(rules)
    called = (world.folder / "calls").read_text().split()
    with world.jet() as jet:
        config = JobConfig(**child.CONFIG)
        jet.run(asking_pipeline(world.folder), config, until="completed")
    assert_one_answer_each(world.folder, 2 * FILES)
    again = set((world.folder / "calls").read_text().split()[len(called) :])
    decided = set(map(str, range(3 * ROWS)))
    assert set(called) >= decided and bool(again & decided) == (rules != AFTER_DECISION)


def test_a_call_that_fails_for_good_fails_the_job(world: World) -> None:
    def ask(service: object, rows: pa.Table) -> pa.Table:
        if pc.max(rows["v"]).as_py() > 20:
            raise ValueError("no such model")
        return rows.append_column("answer", rows["k"].cast("string")).append_column(
            "size", rows["k"]
        )

    write_input(world.folder / "in", 0, rows_of(0))
    said = r"job 'served', stage 'asked': .*test_services\.py:\d+.* raised ValueError: no such "
    said += r"model\. It was given 3 times 7 rows; the first: \{.*\"v\":21"
    with world.jet() as jet, pytest.raises(UserFunctionError, match=said):
        jet.run(pipeline(world.folder, ask), until="drained")
    assert not committed(world.folder / "low", ("v",))


def test_a_wrong_schema_is_refused_at_the_start(world: World) -> None:
    p = Pipeline("served")
    rows = p.read_from(sources.items([{"v": 1}], schema="v long"), name="rows")
    rows.map_using_service(
        lambda service, rows: rows, create=list, output_schema="*, v long", name="asked"
    ).write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
    with world.jet() as jet, pytest.raises(PipelineError, match=r"'asked': .*v"):
        jet.run(p, until="drained")
    with pytest.raises(PipelineError, match="retries=-1 is less than 0"):
        rows.map_using_service(len, create=list, output_schema="*", retries=-1)

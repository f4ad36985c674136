"""`map_using_service`: what is committed when calls are repeated, and what a failing call says."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.errors import PipelineError, UserFunctionError

from .oracle import committed
from .world import World, write_input

ROWS, FILES = 40, 2


def rows_of(number: int) -> list[dict[str, Any]]:
    times = [datetime.fromtimestamp(100 * number + n, timezone.utc) for n in range(ROWS)]
    return [
        {"k": n % 5, "v": number * ROWS + n, "at": at.isoformat()} for n, at in enumerate(times)
    ]


def pipeline(folder: Path, use: Callable[..., Any]) -> Pipeline:
    """Behind the service: two sinks that divide its answers, and a window over all of them."""

    def create() -> list[str]:
        (folder / "created").mkdir(exist_ok=True)
        (folder / "created" / f"{os.getpid()}-{uuid.uuid4().hex}").touch()
        return ["a client"]

    p = Pipeline("served")
    schema = "k long, v long, at timestamp"
    source = sources.files(f"{folder}/in", format="json", schema=schema)
    rows = p.read_from(source, name="rows").with_timestamps("at", allowed_lag="1 hour")
    answers = rows.map_using_service(
        use, create=create, output_schema="*, answer string, size int", batch_rows=7,
        concurrency=3, retries=2, name="asked",
    )  # fmt: skip
    for name, condition in (("low", "answer < '8'"), ("high", "answer >= '8'")):
        out = sinks.files(f"{folder}/{name}", format="json")
        answers.filter(condition).write_to(out, name=name)
    counts = answers.group_by("k").window(windows.tumbling("1 hour"))
    counts.aggregate(n=agg.count(), size=agg.max("size"), name="counts").write_to(
        sinks.files(f"{folder}/counts", format="json"), name="counts_out"
    )
    return p


def test_each_row_has_one_answer_although_calls_are_repeated(world: World) -> None:
    folder = world.folder

    def ask(service: list[str], rows: pa.Table) -> pa.Table:
        """Another answer at each call, and an error at every other one."""
        assert service == ["a client"] and 0 < rows.num_rows <= 7
        if os.urandom(1)[0] % 4 == 0:
            raise TimeoutError("no answer")
        answers = pa.array([uuid.uuid4().hex for _ in range(rows.num_rows)])
        sizes = pa.array([rows.num_rows] * rows.num_rows)
        with (folder / "calls").open("a") as calls:
            calls.write("".join(f"{v}\n" for v in rows["v"].to_pylist()))
        return rows.append_column("answer", answers).append_column("size", sizes)

    for number in range(FILES):
        write_input(folder / "in", number, rows_of(number))
    for until, parallelism in (("drained", 3), ("completed", 2)):
        with world.jet() as jet:
            config = JobConfig(max_items_per_epoch=1, parallelism=parallelism)
            jet.run(pipeline(folder, ask), config, until=until)
        for number in range(FILES, 2 * FILES) if until == "drained" else ():
            write_input(folder / "in", number, rows_of(number))
    everything = Counter((v,) for v in range(2 * FILES * ROWS))
    low, high = (committed(folder / name, ("v", "answer")) for name in ("low", "high"))
    assert Counter((v,) for v, _ in (low + high).elements()) == everything
    assert max(answer for _, answer in low) < "8" <= min(answer for _, answer in high)
    assert committed(folder / "counts", ("k", "n", "size")).total() == 5
    calls = Counter((int(v),) for v in (folder / "calls").read_text().split())
    assert calls.keys() == everything.keys()
    created = [path.name for path in (folder / "created").iterdir()]
    processes = {name.partition("-")[0] for name in created}
    assert len(created) <= 2 * len(processes), "one per process and pipeline, not per task"


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

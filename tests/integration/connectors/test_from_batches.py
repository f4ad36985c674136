"""`sources.from_batches`: the contract of sources, by folders of Parquet files; a job that is
killed, while further days come; what a function must not return."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources
from dagster_jet.errors import SourceError, UserFunctionError
from dagster_jet.testing import collected
from dagster_jet.testing.check_source import check_source
from dagster_jet.testing.typed_rows import Typed
from tests.long import long_but_for

from .. import child
from ..crash_table import AFTER_DECISION
from ..oracle import committed, windowed
from ..world import WINDOW_COLUMNS, World, random_rows
from . import days_child
from .days_child import day_folders

ROW = ("k", "ts", "v")


def test_folders_by_day_keep_the_contract(tmp_path: Path, spark: Any) -> None:
    root, days = tmp_path / "days", itertools.count()
    root.mkdir()

    def send(rows: list[dict[str, Any]], folder: Path = root, schema: str = "") -> None:
        frame = spark.createDataFrame(rows, schema or "id long, text string")
        frame.coalesce(1).write.parquet(f"{folder}/day={next(days):05}")

    @contextmanager
    def away() -> Iterator[None]:
        root.rename(tmp_path / "away")
        yield
        (tmp_path / "away").rename(root)

    other = tmp_path / "typed"
    other.mkdir()
    schema = Typed(partial(day_folders, str(other)), send).schema
    check_source(
        partial(day_folders, str(root), "id long, text string"),
        send,
        spark,
        outages={"a folder that is not mounted": away},
        typed=Typed(partial(day_folders, str(other)), partial(send, folder=other, schema=schema)),
    )


class DaysWorld(World):
    """A world whose child reads days."""

    driver = staticmethod(days_child.main)

    def write_days(self, first: int, count: int) -> None:
        for day in range(first, first + count):
            rows = random_rows(day, 30, seed=7)
            with (self.folder / "written").open("a") as lines:
                lines.writelines(json.dumps(row) + "\n" for row in rows)
            folder = self.folder / "days" / f"day={day:05}"
            folder.mkdir(parents=True)
            pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")
            (folder / "_SUCCESS").touch()

    def assert_exactly_once(self) -> None:
        rows = [json.loads(line) for line in (self.folder / "written").read_text().splitlines()]
        assert committed(self.folder / "out" / "rows", ROW) == Counter(
            (row["k"], row["ts"], row["v"]) for row in rows
        )
        counts = committed(self.folder / "out" / "counts", WINDOW_COLUMNS)
        assert counts == windowed(rows, child.WINDOW_MS)


@pytest.mark.parametrize(
    "rules",
    long_but_for(["epoch.acked:3=kill", AFTER_DECISION, "manifest.after:2=kill"], AFTER_DECISION),
)
def test_killed_and_gone_on_with_more_days(world: World, rules: str) -> None:
    days = DaysWorld(world.folder, world.fail_points, world.spark)
    days.write_days(0, 5)
    days.run_child(rules)
    days.write_days(5, 2)
    with days.jet() as jet:
        config = JobConfig(**child.CONFIG)
        jet.run(days_child.pipeline(days.folder), config, until="completed")
    days.assert_exactly_once()


def read_numbers(spark: Any, start: int | None, end: int) -> Any:
    return spark.range((start or 0) + 1, end + 1)


def test_a_range_is_as_large_as_the_epoch_bears(world: World) -> None:
    limits: list[int] = []

    def limit(start: int | None, latest: int, max_rows: int) -> int:
        limits.append(max_rows)
        return min(latest, (start or 0) + max_rows)

    p = Pipeline("limited")
    source = sources.from_batches(
        read_numbers, schema="id long", latest_offset=lambda: 25, limit_offset=limit
    )
    p.read_from(source, name="numbers").write_to(sinks.collect("limited"), name="out")
    with world.jet() as jet:
        jet.run(p, JobConfig(max_items_per_epoch=10), until="completed")
    assert sorted(collected("limited").column("id").to_pylist()) == [*range(1, 26)]
    assert limits == [10, 10, 10]


@pytest.mark.parametrize(
    ("read", "kind", "said"),
    [
        (
            lambda spark, start, end: read_numbers(spark, start, end).selectExpr(
                "int(id) id", "1 a"
            ),
            SourceError,
            r"stage 'numbers': a frame .* has the columns id int, a int; its schema says "
            r"id bigint\. Select and cast .*from-batches.md",
        ),
        (
            lambda spark, start, end: None,
            SourceError,
            "<lambda> returned NoneType, not a DataFrame of Spark",
        ),
        (
            lambda spark, start, end: read_numbers(spark, start, end).selectExpr(
                "id div (id - 2) id"
            ),
            UserFunctionError,
            "stage 'numbers': a row could not be processed: .*DIVIDE_BY_ZERO",
        ),
    ],
)
def test_what_a_range_must_not_be(
    world: World, read: Any, kind: type[Exception], said: str
) -> None:
    p = Pipeline("wrong")
    source = sources.from_batches(read, schema="id long", latest_offset=lambda: 3)
    p.read_from(source, name="numbers").write_to(sinks.collect("wrong"), name="out")
    with world.jet() as jet, pytest.raises(kind, match=said):
        jet.run(p, until="completed")

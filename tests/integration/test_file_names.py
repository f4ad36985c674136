"""Names of input files as Spark meets them: whatever is in one, the file of that name is read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources, tables
from dagster_jet.errors import BadRowError

from . import oracle
from .world import World

# Each that is a pattern stands beside a name that it matches.
NAMES = [
    "part-1",
    "part-[1]",
    "a",
    "b",
    "{a,b}",
    "*",
    "?",
    "with space",
    "with%20space",
    "100%",
    "a#b",
    "back\\slash",
    "\\[1\\]",
    "}{",
    "[^a]",
    "größe",
]


def write(folder: Path, name: str, format: str, number: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{format}"
    if format == "parquet":
        pq.write_table(pa.table({"v": [number]}), path)
    else:
        path.write_text(f"{number}\n" if format == "csv" else json.dumps({"v": number}) + "\n")
    return path


def run(world: World, path: str, format: str) -> Counter[tuple[object, ...]]:
    p = Pipeline("copy")
    rows = p.read_from(sources.files(path, format=format, schema="v long"), name="rows")
    rows.write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
    with world.jet() as jet:
        jet.run(p, JobConfig(restart_attempts_max=0), until="completed")
    return oracle.committed(world.folder / "out", "v")


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_names_are_not_patterns(world: World, format: str) -> None:
    folder = world.folder / "in [1] {a}"
    for number, name in enumerate(NAMES):
        write(folder, name, format, number)
    assert run(world, str(folder), format) == Counter((n,) for n in range(len(NAMES)))


def test_a_pattern_of_the_source_finds_them_too(world: World) -> None:
    for number, name in enumerate(NAMES):
        write(world.folder / "in", name, "json", number)
    assert run(world, f"{world.folder}/in/*[[]1].json", "json") == Counter([(1,)])


def test_a_bad_row_in_a_file_whose_name_is_a_pattern(world: World) -> None:
    write(world.folder / "in", "part-1", "json", 1)
    bad = write(world.folder / "in", "part-[1] %20", "json", 2)
    bad.write_text('{"v": 2}\n{"v": "two"}\n')
    with pytest.raises(BadRowError) as told:
        run(world, f"{world.folder}/in", "json")
    assert f"{bad}:2" in str(told.value)


def test_a_table_whose_name_is_a_pattern(world: World) -> None:
    write(world.folder, "table-1", "json", 1)
    path = write(world.folder, "table-[1]", "json", 2)
    frame = tables.files(str(path), format="json", schema="v long").frame(world.spark)
    assert [row.v for row in frame.collect()] == [2]

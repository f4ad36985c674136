"""Windows with an allowed lateness: their last versions are those of a batch over all rows that are
not late, wherever epochs and executions are cut."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pytest

from dagster_jet import JobConfig
from tests.long import long
from tests.unit.connectors.iceberg_rows import by_library

from . import child, lateness_child
from .lateness_child import ICEBERG, KINDS, corrected
from .oracle import committed, difference, input_rows
from .test_operators import iso
from .world import World, write_input

ROWS, STEP_MS, DISORDER_MS = 240, 15, 1_500
VERSION = ("k", "window_end", "n", "total", "correction")


class CorrectedWorld(World):
    """A world whose child runs the pipeline of `lateness_child`."""

    driver = staticmethod(lateness_child.main)

    def fill(self, *_: int, seed: int = 1, quarter: int | None = None, **__: int) -> CorrectedWorld:
        """The same rows for each seed, cut into other files: all of them, or a quarter."""
        rng = random.Random("lateness")
        rows = [
            {"k": rng.choice("abc"), "ts": STEP_MS * n + rng.randrange(DISORDER_MS), "v": n}
            for n in range(ROWS)
        ]
        rng = random.Random(f"cuts {seed}")
        cuts = sorted(rng.sample(range(1, ROWS), 11))
        for number, (first, last) in enumerate(zip([0, *cuts], [*cuts, ROWS], strict=True)):
            if quarter in (None, number // 3):
                write_input(self.folder / "in", number, rows[first:last])
        if not quarter:
            with closing(sqlite3.connect(self.folder / "sliding.db")) as database:
                database.execute(
                    "create table results (k text, window_end text, n bigint, total bigint, "
                    "correction bigint, primary key (k, window_end))"
                )
        return self

    def late(self, name: str) -> Counter[Any]:
        return committed(self.folder / "out" / f"{name}_late", ("k", "ts", "v"))

    def kept_in_map(self) -> Counter[Any]:
        with self.jet() as jet:
            entries = dict(jet.map("sliding").items())
        assert any(value["correction"] > 1 for value in entries.values())
        return Counter((*key, value["n"], value["total"]) for key, value in entries.items())

    def table(self, name: str) -> Counter[Any]:
        if name == "tumbling":
            table = deltalake.DeltaTable(self.folder / "out" / f"{name}_table").to_pyarrow_table()
            rows = [(r["k"], f"{r['window_end']}", r["n"], r["total"]) for r in table.to_pylist()]
        elif name == "iceberg":
            found = by_library(self.folder / "lake", ICEBERG)
            rows = [(r["k"], f"{r['window_end']}", r["n"], r["total"]) for r in found]
        else:
            with closing(sqlite3.connect(self.folder / f"{name}.db")) as database:
                sql = "select k, window_end, n, total from results"
                rows = database.execute(sql).fetchall()
        return Counter((k, end[:19].replace(" ", "T"), n, total) for k, end, n, total in rows)

    def check(self) -> None:
        everything = Counter((r["k"], r["ts"], r["v"]) for r in input_rows(self.folder / "in"))
        for name in KINDS:
            expected = check_versions(self.folder, name, everything)
            shown = Counter((k, iso(end)[:19], n, total) for k, end, n, total in expected)
            assert not difference(self.table(name), shown), name
            if name == "tumbling":
                assert not difference(self.table("iceberg"), shown), name
            else:
                assert not difference(self.kept_in_map(), expected), name
        fours = committed(self.folder / "out" / "fours", ("k", "ts", "total", "first"))
        assert fours and not difference(fours, by_fours(everything - self.late("fours")))


def check_versions(folder: Path, name: str, everything: Counter[Any]) -> Counter[Any]:
    """Compares the last versions in the files with a batch over the rows that are not late, and
    returns that."""
    late = committed(folder / "out" / f"{name}_late", ("k", "ts", "v"))
    assert late and not late - everything
    expected = batch(everything - late, KINDS[name].size_ms, KINDS[name].slide_ms)
    assert not difference(last_versions(folder, name), expected), name
    return expected


def last_versions(folder: Path, name: str) -> Counter[Any]:
    """A version counts once."""
    numbers: dict[Any, list[Any]] = defaultdict(list)
    for k, end, n, total, correction in committed(folder / "out" / name, VERSION).elements():
        numbers[k, end].append((correction, n, total))
    assert all(len({c for c, *_ in mine}) == len(mine) for mine in numbers.values())
    assert max(map(len, numbers.values())) > 2, "some are corrected more than once"
    return Counter((*key, *max(mine)[1:]) for key, mine in numbers.items())


def batch(rows: Counter[Any], size: int, slide: int) -> Counter[Any]:
    found: dict[Any, list[int]] = defaultdict(list)
    for k, ts, v in rows.elements():
        first = ts - ts % slide + slide
        for end in range(first, first + size, slide):
            found[k, end].append(v)
    return Counter((k, end, len(vs), sum(vs)) for (k, end), vs in found.items())


def by_fours(rows: Counter[Any]) -> Counter[Any]:
    """Rows of one time arrive in the order of their values."""
    of_key: dict[str, list[Any]] = defaultdict(list)
    for k, ts, v in sorted(rows):
        of_key[k].append((ts, v))
    return Counter(
        (k, mine[n + 3][0], sum(v for _, v in mine[n : n + 4]), mine[n][1])
        for k, mine in of_key.items()
        for n in range(0, len(mine) - 3, 4)
    )


@pytest.fixture
def world(world: World) -> CorrectedWorld:
    return CorrectedWorld(world.folder, world.fail_points, world.spark)


@long
def test_killed_and_rescaled(world: CorrectedWorld) -> None:
    world.fill()
    world.run_child("files.commit.file:9=kill", sharded=True)
    with world.jet() as jet:
        config = JobConfig(**{**child.CONFIG, "parallelism": 12})
        jet.run(corrected(world.folder), config, until="completed")
    world.check()


@long
def test_a_lateness_that_changes_between_executions(world: CorrectedWorld) -> None:
    """Other cuts, and no window is ever shown without rows that were taken."""
    late = [0]
    for number, lateness in enumerate(("300 ms", "3 seconds", "0 ms", "1 second")):
        world.fill(seed=9, quarter=number)
        with world.jet() as jet:
            config = JobConfig(**{**child.CONFIG, "parallelism": number + 1})
            until: Any = "completed" if number == 3 else "drained"
            jet.run(corrected(world.folder, lateness), config, until=until)
        late.append(world.late("tumbling").total())
    world.check()
    assert len(set(late)) > 2, late

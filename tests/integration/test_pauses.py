"""Sessions with a maximum duration, and totals that begin anew after a pause: those of a batch over
all rows that are not late, wherever epochs and executions are cut."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from dagster_jet import JobConfig
from tests.long import long

from . import child, pauses_child
from .oracle import committed, difference, input_rows
from .pauses_child import GAP_MS, MOST_MS, pauses
from .world import World, write_input

ROWS, STEP_MS, DISORDER_MS = 300, 15, 250
Event = tuple[str, int, int]


class PausesWorld(World):
    """A world whose child runs the pipeline of `pauses_child`."""

    driver = staticmethod(pauses_child.main)

    def fill(self, *_: int, seed: int = 1, **__: int) -> PausesWorld:
        """The same rows for each seed, cut into other files, each of which is an epoch."""
        rng = random.Random("pauses")
        rows = [
            {"k": rng.choice("aab"), "ts": STEP_MS * n + rng.randrange(DISORDER_MS), "v": n}
            for n in range(ROWS)
            if n % 40 < 28
        ]
        rng = random.Random(f"cuts {seed}")
        cuts = sorted(rng.sample(range(1, len(rows)), 13))
        for number, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True)):
            write_input(self.folder / "in", number, rows[first:last])
        return self

    def timely(self, late_to: str) -> list[Event]:
        rows = Counter((r["k"], r["ts"], r["v"]) for r in input_rows(self.folder / "in"))
        late = committed(self.folder / "out" / late_to, ("k", "ts", "v"))
        assert late and not late - rows
        return sorted((rows - late).elements())

    def check(self) -> None:
        columns = ("k", "window_start", "window_end", "n", "total", "vs")
        found = committed(self.folder / "out" / "sessions", columns)
        expected = Counter(sessions(self.timely("late")))
        assert any(end - start == MOST_MS for _, start, end, *_ in expected), "some are cut"
        assert any(end - start < MOST_MS for _, start, end, *_ in expected), "some are not"
        assert not difference(found, expected)
        self.check_totals()

    def check_totals(self) -> None:
        """The last row of each key has the totals since its last pause."""
        with self.jet() as jet:
            entries = dict(jet.map("totals").items())
        found = {k: tuple(value.values()) for k, value in entries.items()}
        given, expected = by_key(self.timely("late_totals")), {}
        for k, mine in given.items():
            life: list[tuple[int, int]] = []
            for ts, v in mine:
                life = [*(life if life and ts <= life[-1][0] + GAP_MS else ()), (ts, v)]
            values = [v for _, v in life]
            expected[k] = (life[-1][0], len(life), sum(values), as_text(values))
        assert found == expected and any(len(given[k]) > n for k, (_, n, *_) in expected.items())


def as_text(values: list[int]) -> str:
    return str(values).replace(" ", "")


def by_key(rows: Iterable[Event]) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for k, ts, v in sorted(rows):
        found[k].append((ts, v))
    return found


def sessions(rows: Iterable[Event]) -> Iterator[tuple[Any, ...]]:
    """One row after the other."""
    for k, mine in by_key(rows).items():
        open_: list[tuple[int, int]] = []
        for ts, v in [*mine, (10**12, 0)]:
            end = min(open_[-1][0] + GAP_MS, open_[0][0] + MOST_MS) if open_ else 0
            if open_ and ts >= end:
                values = [each for _, each in open_]
                yield (k, open_[0][0], end, len(values), sum(values), as_text(values))
                open_ = []
            open_.append((ts, v))


@pytest.fixture
def world(world: World) -> PausesWorld:
    return PausesWorld(world.folder, world.fail_points, world.spark)


@long
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=long), pytest.param(3, marks=long)])
def test_killed_and_rescaled(world: PausesWorld, seed: int) -> None:
    """Other cuts for each seed; killed in the middle of its sessions, and again; then 12 shards."""
    world.fill(seed=seed)
    world.run_child("files.commit.file:7=kill", sharded=True)
    world.run_child("epoch.acked:3=kill")
    with world.jet() as jet:
        config = JobConfig(**{**child.CONFIG, "parallelism": 12})
        jet.run(pauses(world.folder), config, until="completed")
    world.check()

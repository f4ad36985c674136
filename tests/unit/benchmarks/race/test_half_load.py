"""Each committed row is matched with the file that it waited for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.race.committed import Piece
from benchmarks.race.data import LAG_MS, SENTINELS
from benchmarks.race.half_load import emissions
from benchmarks.race.observer import Seen
from benchmarks.race.pace import Pace
from benchmarks.race.queries import QUERIES
from benchmarks.race.run import half_of_slowest

PACE = Pace(rate=10_000, seconds=0.3)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return PACE.write(tmp_path_factory.mktemp("cache"))


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def bids(path: Path) -> list[dict[str, Any]]:
    return [row["bid"] | {"date_time": row["date_time"]} for row in rows_of(path) if row["bid"]]


def seen(folder: Path, *looks: tuple[float, list[dict[str, Any]]]) -> list[Seen]:
    found = []
    for place, (at, rows) in enumerate(looks):
        path = folder / f"out-{place}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        found.append(Seen(at, len(rows), (Piece(path, 0, path.stat().st_size),)))
    return found


def test_the_pace_has_a_file_every_tenth_of_a_second(source: Path) -> None:
    files = sorted(source.glob("*.json"))
    assert len(files) == PACE.files + SENTINELS == 3 + SENTINELS
    assert [len(rows_of(path)) for path in files[:3]] == [1000] * 3
    assert sorted(row["number"] for row in rows_of(files[2])) == list(range(2000, 3000))
    last = [row for path in files[3:] for row in rows_of(path)]
    assert min(row["number"] for row in last) == PACE.events
    assert {row["bid"]["auction"] for row in last if row["bid"]} == {-1}


def test_a_bid_waits_from_the_file_it_is_in(source: Path, tmp_path: Path) -> None:
    first, second = (bids(source / f"{number:06d}.json") for number in (0, 1))
    looks = seen(tmp_path, (1.0, first), (2.5, second))
    found = emissions(QUERIES["q1"], looks, source, tmp_path / "pieces")
    assert sorted(found) == [(1.0, 0)] * len(first) + [(2.5, 1)] * len(second)


def test_a_bid_that_is_committed_twice_waited_until_the_first_time(
    source: Path, tmp_path: Path
) -> None:
    rows = bids(source / "000000.json")
    looks = seen(tmp_path, (1.0, rows), (9.0, rows))
    found = emissions(QUERIES["q1"], looks, source, tmp_path / "pieces")
    assert found == [(1.0, 0)] * len(rows)


def test_a_window_waits_for_the_file_that_closes_it(source: Path, tmp_path: Path) -> None:
    row = {"auction": 1, "num": 1, "window_start": 0}
    early = row | {"window_end": PACE.stream.model.time_ms(0) - LAG_MS - 200}
    # Events are newer than this one's end, but only the sentinels by as much as rows may be late.
    late = row | {"window_end": PACE.stream.model.time_ms(1500)}
    looks = seen(tmp_path, (1.0, [early]), (2.0, [late]))
    found = emissions(QUERIES["q5"], looks, source, tmp_path / "pieces")
    assert sorted(found) == [(1.0, 0), (2.0, PACE.files)]


def test_a_pace_of_part_of_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="2500 events"):
        Pace(rate=1_000, seconds=2.5)


def test_the_pace_is_half_of_the_slowest_engine() -> None:
    assert half_of_slowest([90_000, 41_000, float("nan"), 0]) == 20_000
    assert half_of_slowest([100]) == 1000
    assert half_of_slowest([]) == 10_000

"""A simulated year of epochs: bytes, keys and memory are flat."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.year import Size, Year
from tests.long import long


@pytest.fixture
def memory_disk(tmp_path: Path) -> Iterator[Path]:
    """No disk is synced: a thousand epochs would wait for it for minutes."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(tmp_path)
    with tempfile.TemporaryDirectory(dir=place, prefix="jet-year-") as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("days", "epochs_per_day", "remember"),
    [
        (40, 8, "3 days"),
        pytest.param(365, 24, "7 days", marks=[long, pytest.mark.timeout(3600)]),
    ],
)
def test_a_year_of_epochs_leaves_what_a_season_leaves(
    memory_disk: Path, days: int, epochs_per_day: int, remember: str
) -> None:
    year = Year(memory_disk, epochs_per_day, remember=remember)
    sizes: list[Size] = []
    try:
        for month in range(10):
            began = time.process_time()
            for _ in range(days * epochs_per_day // 10):
                year.epoch()
            sizes.append(year.size())
            shown = sizes[-1].shown()
            spent = time.process_time() - began
            print(f"tenth {month + 1} ({spent:.0f} CPU-s): {shown}", flush=True)
        year.check()
        print(f"files {len(year.read):,}, deaths {sum(year.deaths.values())}: {dict(year.deaths)}")
    finally:
        year.close()
    # First fills what is kept: days of files, 64 turns of each chain, twice of the journal's.
    filled, later = sizes[4:7], sizes[7:]
    for name in vars(sizes[0]):
        most = max(getattr(size, name) for size in filled)
        assert all(getattr(size, name) <= 1.25 * most for size in later), (name, sizes)

"""The flights of `make dev`: made once, whole or not at all; the next start goes on."""

from __future__ import annotations

from pathlib import Path

from demo.dev import flights_to_depart, make_tables
from demo.replay import BAD_LINES_COUNT, FILES_COUNT

from .browser.project import FLIGHTS, first_days


def test_made_once_and_gone_on_with(tmp_path: Path) -> None:
    days = first_days()
    make_tables(days, tmp_path)
    assert (tmp_path / "reference" / "weather.csv").exists()
    # Somebody has pressed Ctrl-C while they were written.
    (tmp_path / "departing.unfinished").mkdir()
    (tmp_path / "departing.unfinished" / "flights-0000.json").write_text("half a li")

    paths = flights_to_depart(days, tmp_path)
    assert len(paths) == FILES_COUNT
    rows = [line for path in paths for line in path.read_text("utf-8").splitlines()]
    assert len(rows) == FLIGHTS + BAD_LINES_COUNT

    for path in paths[:2]:
        path.rename(tmp_path / "inbox" / path.name)
    assert flights_to_depart(days, tmp_path) == paths[2:]

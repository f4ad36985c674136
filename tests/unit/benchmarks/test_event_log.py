"""A report's size in Dagster's event log is bounded."""

from __future__ import annotations

from pathlib import Path

from benchmarks.event_log import cost_of_report, new_rows, waiting

ROUNDS = 3


def test_a_report_is_no_longer_than_the_pages_say(tmp_path: Path) -> None:
    """Two materializations of 2.7 KB and an observation of 2.0; 0.43 KB for each of ten columns."""
    plain = cost_of_report(tmp_path / "plain", ROUNDS, new_rows, warm_up=0)
    wide = cost_of_report(tmp_path / "wide", ROUNDS, new_rows, columns=5, warm_up=0)
    assert plain.events == wide.events == 3
    assert plain.text_bytes < 8_000
    assert plain.text_bytes < wide.text_bytes < plain.text_bytes + 2 * 5 * 475


def test_a_sign_of_life_costs_as_much(tmp_path: Path) -> None:
    idle = cost_of_report(tmp_path / "idle", ROUNDS, waiting, warm_up=1)
    assert idle.events == 3
    assert idle.text_bytes < 8_000

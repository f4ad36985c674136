"""What a report costs Dagster's event log for ever is bounded."""

from __future__ import annotations

from pathlib import Path

from benchmarks import event_log


def test_a_report_is_no_longer_than_the_pages_say(tmp_path: Path) -> None:
    """Of two assets and a source: three events, with five columns each of the assets."""
    plain, _ = event_log.bytes_per_round(tmp_path / "plain", 20, event_log._rows)
    wide, _ = event_log.bytes_per_round(tmp_path / "wide", 20, event_log._rows, with_columns=True)
    assert plain / 3 < 10_000
    assert plain < wide < plain + 2 * 5 * 1_200

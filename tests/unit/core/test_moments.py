"""Any number of milliseconds is shown as a time."""

from __future__ import annotations

import pytest

from dagster_jet.cli.output import when
from dagster_jet.core.moments import moment

YEAR_1_MS = -62_135_596_800_000


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (YEAR_1_MS, "0001-01-01 00:00:00"),
        (YEAR_1_MS - 1, "before the year 1"),
        (-(2**63), "before the year 1"),
        (-1, "1969-12-31 23:59:59"),
        (253_402_300_799_999, "9999-12-31 23:59:59"),
        (253_402_300_800_000, "at the end"),
        (9_000_000_000_000_000, "at the end"),
        (2**63 - 1, "at the end"),
    ],
)
def test_a_time_of_the_calendar_and_beyond(ms: int, shown: str) -> None:
    assert moment(ms) == shown
    assert when(ms) == (f"{shown} UTC" if shown[0].isdigit() else shown)

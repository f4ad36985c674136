"""Times as text for people."""

from __future__ import annotations

from datetime import datetime, timedelta

_EPOCH = datetime(1970, 1, 1)


def moment(ms: int, zone: str = "") -> str:
    """Returns a time in UTC as text. A watermark may be any number: the final one is in no year of
    a calendar, and one behind a row of the year 1, as a time that is not set often is, is before
    the first year.

    Args:
        ms: ms since 1970.
        zone: text after a time of the calendar.

    Example:
        >>> moment(1_700_000_000_000), moment(-62_135_596_800_000, " UTC")
        ('2023-11-14 22:13:20', '0001-01-01 00:00:00 UTC')
        >>> moment(9_000_000_000_000_000), moment(-62_135_596_805_000)
        ('at the end', 'before the year 1')
    """
    try:
        return f"{(_EPOCH + timedelta(milliseconds=ms)).isoformat(' ', 'seconds')}{zone}"
    except OverflowError:
        return "at the end" if ms > 0 else "before the year 1"

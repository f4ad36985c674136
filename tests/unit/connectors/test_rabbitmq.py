"""RabbitMQ's reader without a server: its tables, and what each snapshot has of it."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from dagster_jet.connectors.rabbitmq.message_table import Message, table_of


def message(message_id: str, timestamp: int | None = None) -> Message:
    return Message(message_id, b"1", f"c/{message_id}", "e", "r", False, timestamp, None)


@pytest.mark.parametrize(
    ("sent", "year"),
    [
        (None, None),
        (0, 1970),
        (1_700_000_000, 2023),
        (253_402_300_799, 9999),
        (253_402_300_800, None),
        (1_700_000_000_000, None),
        (1_700_000_000_000_000, None),
        (1_700_000_000_000_000_000, None),
        (2**64 - 1, None),
    ],
)
def test_a_timestamp_that_is_not_in_seconds_is_null(sent: int | None, year: int | None) -> None:
    """The message is read: a publisher's mistake ends no job."""
    table = table_of([message("a", sent), message("b", 1)], "q", with_metadata=True)
    at, other = table.column("_timestamp").to_pylist()
    assert (None if at is None else at.year) == year
    assert other == datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
    assert table.column("_message_id").to_pylist() == ["a", "b"]

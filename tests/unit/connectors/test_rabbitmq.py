"""RabbitMQ's reader without a server: its tables, and what each snapshot has of it."""

from __future__ import annotations

import socket
from datetime import datetime, timezone

import pytest

from dagster_jet import sources
from dagster_jet.connectors.message_reader import Found
from dagster_jet.connectors.rabbitmq.message_table import Message, table_of
from dagster_jet.connectors.rabbitmq.server import RabbitServer
from dagster_jet.errors import SourceUnavailableError


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


@pytest.mark.parametrize(("guarantee", "kept"), [("exactly-once", 50), ("at-least-once", 0)])
def test_ids_that_cannot_match_are_in_no_snapshot(guarantee: str, kept: int) -> None:
    """Each connection breaks before its acknowledgement."""
    made = sources.rabbitmq("amqp://h", queue="q", schema="v long", guarantee=guarantee)
    reader = made.open("j", "in", None)
    for connection in range(5):
        found = tuple(message(f"{connection}-{n}") for n in range(10))
        reader.accept(Found(found, (), 1.0))
        reader.plan(10)
        assert len(reader.unacknowledged()) == 10
        reader.acknowledge(reader.unacknowledged())
    assert reader.unacknowledged() == {}
    position = reader.position()
    assert (len(position["unproven"]), position["remembered"]) == (kept, [])
    again = made.open("j", "in", None)
    again.restore(position, None)
    again.restore_unacknowledged({"left": "c/1"})
    again.acknowledge(again.unacknowledged())
    assert len(again.position()["unproven"]) == (kept + 1 if kept else 0)


def test_a_start_knows_the_ids_that_its_snapshot_has_acknowledged() -> None:
    """The connection is away, so the acknowledgement is not confirmed, and no snapshot follows."""
    made = sources.rabbitmq("amqp://h", queue="q", schema="v long")
    reader = made.open("j", "in", None)
    reader.accept(Found((message("a"), message("b")), (), 1.0))
    reader.plan(2)
    position, messages = reader.position(), reader.unacknowledged()
    assert reader.acknowledge(messages) is False
    again = made.open("j", "in", None)
    again.restore(position, None)
    assert again.position()["remembered"] == ["a", "b"], "also of a snapshot that is confirmed"
    again.restore_unacknowledged(messages)
    assert again.position()["unproven"].keys() == messages.keys()
    assert again.read.is_acknowledged("a"), "a poll acknowledges it at once"
    again.accept(Found((message("a"), message("c")), (), 1.0))
    assert [one.message_id for one in again.plan(9) or ()] == ["c"]


def test_acknowledgements_that_need_no_confirmation_count_as_confirmed() -> None:
    made = sources.rabbitmq("amqp://h", queue="q", schema="v long", guarantee="at-least-once")
    reader = made.open("j", "in", None)
    reader.restore_unacknowledged({"a": "c/1"})
    assert reader.position()["unproven"] == {} and reader.acknowledge({"a": "c/1"}) is True


def test_a_handshake_without_an_answer_is_an_outage() -> None:
    """A frozen server, or a proxy before it, takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        place = RabbitServer(f"amqp://127.0.0.1:{frozen.getsockname()[1]}/?stack_timeout=0.2")
        with (
            pytest.raises(SourceUnavailableError, match="Timeout during AMQP handshake"),
            place.as_source_errors("q", "j", "in"),
        ):
            place.connect()

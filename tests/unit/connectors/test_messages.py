"""Messages of an acknowledging queue: each counts once, however often it is delivered."""

from __future__ import annotations

from dagster_jet.connectors.messages import ReadMessages


def test_a_message_is_new_once_whether_it_waits_was_read_or_was_acknowledged() -> None:
    read = ReadMessages()
    assert read.deliver("a", 1) and not read.deliver("a", 2), "it waits"
    assert read.unacknowledged() == {}, "what no split has is the broker's to deliver again"
    read.handed_out({"a": 2})
    assert not read.deliver("a", 3) and read.unacknowledged() == {"a": 3}, "the newest handle"
    read.acknowledged({"a": 3})
    assert read.unacknowledged() == {} and read.remembered() == ["a"]
    assert not read.deliver("a", 4) and read.unacknowledged() == {"a": 4}, "and told again"


def test_a_delivery_that_comes_while_another_is_acknowledged_is_acknowledged_next() -> None:
    read = ReadMessages()
    read.deliver("a", 1)
    read.handed_out({"a": 1})
    on_its_way = read.unacknowledged()
    read.deliver("a", 2)
    read.acknowledged(on_its_way)
    assert read.unacknowledged() == {"a": 2}


def test_a_restored_reader_drops_what_the_snapshot_has() -> None:
    read = ReadMessages()
    read.restore(["old"])
    read.restore_unacknowledged({"a": 1})
    assert not read.deliver("a", 2) and not read.deliver("old", 1) and read.deliver("new", 1)


def test_only_the_newest_are_remembered() -> None:
    read = ReadMessages(remembered_max=2)
    for message_id in "abac":
        read.acknowledged({message_id: 1})
    assert read.remembered() == ["a", "c"]
    read.handed_out({"d": 1})
    assert read.remembered() == ["c", "d"], "the snapshot that acknowledges it has it"
    none = ReadMessages(remembered_max=0)
    none.handed_out({"a": 1})
    assert none.remembered() == []

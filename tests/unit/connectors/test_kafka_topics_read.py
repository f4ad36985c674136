"""Topics that a pattern matches, and topics of sinks: a job does not read what it writes."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_jet import sinks, sources
from dagster_jet.connectors.kafka.offsets import Topics
from dagster_jet.errors import ConfigurationError

HELD: dict[str, Any] = {"transactions": "held"}
OWN: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "the pattern matches it": ({"pattern": "orders.*"}, {"topic": "orders-out"}, True),
    "it matches another": ({"pattern": "orders-.*"}, {"topic": "orders"}, False),
    "it matches one of several": (
        {"pattern": "b|d"}, {"topics": ["a", "b"], "topic_column": "t"}, True,
    ),
    "markers of another name": (
        {"pattern": ".*-markers"}, {"topic": "t", "marker_topic": "our-markers"}, True,
    ),
    "held markers of another name": (
        {"pattern": "m-held"}, {"topic": "t", "marker_topic": "m", **HELD}, True,
    ),
    "the usual markers": ({"pattern": "dagster-jet.*"}, {"topic": "t", **HELD}, False),
    "a topic of retries by its name": ({"topics": ["t", "again"]}, {"topic": "again"}, False),
}  # fmt: skip


def test_a_pattern_matches_no_topics_of_markers() -> None:
    """Failed before: their messages were bad rows of the stream."""
    every = Topics(pattern=".*")
    names = ("orders", "dagster-jet", "__consumer_offsets", "dagster-jet-markers")
    assert [every.has(name) for name in names] == [True, True, False, False]
    assert not every.has("dagster-jet-markers-held")
    assert Topics(("dagster-jet-markers",)).has("dagster-jet-markers"), "by its name it is read"


@pytest.mark.parametrize(("read", "written", "is_own"), OWN.values(), ids=OWN)
def test_a_pattern_that_matches_the_jobs_own_output(
    read: dict[str, Any], written: dict[str, Any], is_own: bool
) -> None:
    source = sources.kafka("h:1", schema="v long", **read)
    assert source.reads_output_of(sinks.kafka("h:1", **written)) is is_own
    assert not source.reads_output_of(sinks.kafka("elsewhere:1", **written))
    assert not source.reads_output_of(sinks.files("/out", format="json"))


def test_messages_do_not_go_where_markers_are() -> None:
    """Failed before: messages went into the topic of markers, which compacts them."""
    with pytest.raises(ConfigurationError, match="marker_topic: messages would go to 'm', where"):
        sinks.kafka("h:1", topic="m", marker_topic="m")
    with pytest.raises(ConfigurationError, match="messages would go to 'dagster-jet-markers'"):
        sinks.kafka("h:1", topics=["t", "dagster-jet-markers"], topic_column="to")
    assert sinks.kafka("h:1", topic="m-held", marker_topic="m")
    with pytest.raises(ConfigurationError, match="messages would go to 'm-held'"):
        sinks.kafka("h:1", topic="m-held", marker_topic="m", **HELD)


def test_a_column_is_in_a_key_once() -> None:
    """Failed before: the key's JSON object had the field twice."""
    with pytest.raises(ConfigurationError, match="key: a, b, a has a name twice"):
        sinks.kafka("h:1", topic="t", key=["a", "b", "a"])

"""Sources acknowledge the messages of a committed snapshot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dagster_jet.execution.acknowledging import acknowledge


@pytest.mark.parametrize(
    ("messages", "answer", "is_confirmed"),
    [
        ({"q": {"a": 1}}, True, True),
        ({"q": {"a": 1}}, None, True),
        ({"q": {"a": 1}}, False, False),
        ({"q": {"a": 1}, "gone": {"b": 2}}, True, False),
        ({"q": {"a": 1}, "gone": {}}, True, True),
    ],
)
def test_messages_of_a_source_that_has_left_are_not_confirmed(
    messages: dict[str, dict[str, int]], answer: bool | None, is_confirmed: bool
) -> None:
    retrying: Any = SimpleNamespace(
        until_done=lambda call, *_: call(), ending=SimpleNamespace(is_set=None), ends_at_once=None
    )
    polling: Any = SimpleNamespace(readers={"q": None}, acknowledge=lambda *_: answer)
    assert acknowledge(polling, retrying, messages) is is_confirmed

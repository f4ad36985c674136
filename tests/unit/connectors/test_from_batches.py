"""`sources.from_batches`: offsets that are refused, and errors of the user's functions."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from dagster_jet import sources
from dagster_jet.contract import SourceReader
from dagster_jet.errors import (
    ConfigurationError,
    Reaction,
    SourceError,
    SourceUnavailableError,
)
from dagster_jet.execution.epoch_driver import SPARED_ROWS

FEW_ROWS = 2 * SPARED_ROWS
"""Few rows on two cores; on more cores one task reads fewer."""


def reader(
    latest: Any, limit: Any = None, read: Any = lambda spark, start, end: None
) -> SourceReader:
    source = sources.from_batches(read, schema="id long", latest_offset=latest, limit_offset=limit)
    return source.open("j", "in", None)


def polled(one: SourceReader) -> SourceReader:
    one.accept(one.poll())
    return one


def test_offsets_of_any_kind_are_kept() -> None:
    newest: list[Any] = [None]
    one = reader(lambda: newest[0])
    assert polled(one).plan(10) is None and one.position() == {"end": None}
    newest[0] = {"a": [1, 2]}
    split = polled(one).plan(10)
    assert str(split) == "(None, {'a': [1, 2]}]" and one.plan(10) is None
    later = reader(lambda: newest[0])
    later.restore(one.position(), None)
    assert polled(later).plan(10) is None and later.waiting().items == 0
    newest[0] = {"a": [1, 3]}
    assert str(polled(later).plan(10)) == "({'a': [1, 2]}, {'a': [1, 3]}]"


def test_as_many_rows_wait_as_the_densest_range_had_per_offset() -> None:
    """Otherwise an epoch of few rows would not be gathered into one task."""
    newest: list[Any] = [10]
    one = polled(reader(lambda: newest[0]))
    assert one.waiting().items > FEW_ROWS, "nothing is known yet"
    one.verify(one.plan(1), 7)
    for latest, expected, rows in ((30, FEW_ROWS + 1, 40), (80, 100, 0), (90, 20, 50), (91, 5, 5)):
        newest[0] = latest
        found = polled(one).waiting().items
        assert found == expected or (found > FEW_ROWS and expected > FEW_ROWS)
        one.verify(one.plan(1), rows)
        assert one.waiting().items == 0
    for start, end in (("a", "b"), ([1], [2])):
        newest[0] = end
        one = reader(lambda: newest[0])
        one.restore({"end": start}, None)
        one.verify(polled(one).plan(1), 5)
        newest[0] = [*end, "c"] if isinstance(end, list) else "c"
        assert polled(one).waiting().items > FEW_ROWS, "texts and lists say nothing"


@pytest.mark.parametrize("offset", [datetime.date(2026, 1, 1), (1, 2), {1: 2}, float("nan")])
def test_an_offset_that_json_does_not_keep_is_refused(offset: Any) -> None:
    with pytest.raises(SourceError, match=r"job 'j', stage 'in': .*<lambda> returned .*JSON") as e:
        reader(lambda: offset).poll()
    assert e.value.reaction is Reaction.FAIL


def test_an_offset_that_goes_back_is_refused() -> None:
    one = reader(lambda: "9")
    one.restore({"end": "10"}, None)
    assert polled(one).plan(1) is not None, "as texts"
    one = reader(lambda: "10")
    one.restore({"end": "9"}, None)
    with pytest.raises(SourceError, match=r"returned '10', which is less than '9'.* pad them"):
        polled(one)


@pytest.mark.parametrize("end", [None, 3, 2, 9])
def test_a_limit_outside_of_what_waits_is_refused(end: int | None) -> None:
    one = reader(lambda: 8, lambda start, latest, max_rows: end)
    one.restore({"end": 3}, None)
    with pytest.raises(SourceError, match=f"returned {end} for a range .* after 3; .* is 8"):
        polled(one).plan(1)


@pytest.mark.parametrize(
    ("error", "kind", "reaction"),
    [
        (TimeoutError("slow"), SourceUnavailableError, Reaction.RETRY),
        (KeyError("v"), SourceError, Reaction.RESTART),
    ],
)
def test_an_error_names_the_line_and_says_what_follows(
    error: Exception, kind: type[SourceError], reaction: Reaction
) -> None:
    def fail(*_: Any) -> None:
        raise error

    said = r"stage 'in': .*test_from_batches.py:\d+ `raise error`: .*fail raised"
    for call in (
        reader(fail).poll,
        lambda: polled(reader(lambda: 1, fail)).plan(1),
        lambda: (one := polled(reader(lambda: 1, read=fail))).frame(None, one.plan(1)),
    ):
        with pytest.raises(kind, match=said) as caught:
            call()
        assert type(caught.value) is kind and caught.value.reaction is reaction


@pytest.mark.parametrize("wrong", [{"read": 3}, {"latest_offset": "x"}, {"limit_offset": 5}])
def test_what_cannot_be_called_is_refused(wrong: Any) -> None:
    arguments = {"read": print, "schema": "id long", "latest_offset": lambda: 1, **wrong}
    with pytest.raises(ConfigurationError, match="cannot be called"):
        sources.from_batches(**arguments)

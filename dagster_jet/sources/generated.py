"""Sources of rows that need no outside system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster_jet.connectors.generated.items import ItemsSource
    from dagster_jet.connectors.generated.nexmark.nexmark_source import NexmarkSource
    from dagster_jet.connectors.generated.sequence import SequenceSource


def items(
    rows: Sequence[Mapping[str, Any] | Sequence[Any] | str],
    *,
    schema: str,
    rate: float | None = None,
) -> ItemsSource:
    """Return a source of the given rows, in order, for experiments and tests.

    Args:
        rows: each is a mapping by column, a sequence of values, or the text of a JSON object as in
            a message, valid or not. Times are `datetime` or ISO text.
        schema: column names and types as DDL.
        rate: rows per second from the start of the job; by default all rows are available at once.

    Raises:
        ConfigurationError: a row's columns differ from the schema, or the rate is not above 0.

    Example:
        >>> trades = items([{"symbol": "A", "price": 1.5}], schema="symbol string, price double")
    """
    from dagster_jet.connectors.generated.items import ItemsSource

    return ItemsSource.of(rows, schema, rate)


def sequence(*, rate: float, count: int | None = None) -> SequenceSource:
    """Return a source of the numbers 0, 1, 2, ...: columns ``value long, timestamp timestamp``.

    The first number is emitted when the job starts for the first time. Numbers that were due while
    the job was down are read afterwards, with their original times. If a start has another rate,
    the next number comes when it was due, and later ones at the new rate.

    Args:
        rate: rows per second.
        count: number of rows; by default unlimited.

    Raises:
        ConfigurationError: the rate is not above 0.

    Example:
        >>> ticks = sequence(rate=1_000)
    """
    from dagster_jet.connectors.generated.sequence import SequenceSource

    return SequenceSource(rate, count)


def nexmark(
    *,
    count: int = 1_000_000,
    rate: float | None = None,
    events_per_second: int = 1_000,
    seed: int = 2026,
) -> NexmarkSource:
    """Return a source of the auction events of the NEXMark benchmark.

    Columns: ``number long, event_type int`` (0 a person, 1 an auction, 2 a bid), ``date_time``, and
    the structs ``person``, ``auction`` and ``bid``, of which only the event's is not null. Events
    within one tenth of a second are out of order. Equal arguments give equal streams.

    Args:
        count: number of events.
        rate: rows per second from the start of the job; by default all rows are available at once.
        events_per_second: events per second of event time, which starts at 2026-07-15 18:59 UTC.
        seed: seed of the random numbers.

    Raises:
        ConfigurationError: a number is not above 0.

    Example:
        >>> auctions = nexmark(count=50_000)
    """
    from dagster_jet.connectors.generated.nexmark.model import Model
    from dagster_jet.connectors.generated.nexmark.nexmark_source import NexmarkSource

    group = max(1, events_per_second // 10)
    return NexmarkSource(Model(count, events_per_second, group=group, seed=seed), rate)

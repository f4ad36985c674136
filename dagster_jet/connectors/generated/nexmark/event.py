"""Events of a stream; each depends on the seed and its number alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dagster_jet.connectors.generated.nexmark.model import (
    AUCTION,
    CATEGORIES,
    FIRST_CATEGORY,
    FIRST_ID,
    HOT_BATCH,
    LEAD,
    PERSON,
    Model,
    kind_of,
    newest_auction,
    newest_person,
)

Event = dict[str, Any]

_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = (
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle",
    "Kent", "Cheyenne",
)  # fmt: skip
_FIRST_NAMES = (
    "Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter",
)  # fmt: skip
_LAST_NAMES = (
    "Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris",
)  # fmt: skip
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_CHANNELS = 10_000
_MASK = (1 << 64) - 1


class Draw:
    """Random numbers of one event, by splitmix64; events share no state."""

    def __init__(self, seed: int, number: int) -> None:
        self._state = _mix(seed ^ number)

    def bits(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        return _mix(self._state)

    def below(self, bound: int) -> int:
        """Returns 0 to `bound` - 1; the bias is below bound / 2^64."""
        return self.bits() % bound

    def one_of(self, values: tuple[str, ...]) -> str:
        return values[self.below(len(values))]

    def price(self) -> int:
        """Price in cents, from 1 to 1,000,000 units of money, log-uniform."""
        return round(10 ** (6 * self.bits() / (1 << 64)) * 100)

    def text(self, length: int) -> str:
        """Letters from a random position of a fixed page."""
        start = self.below(len(_LETTERS))
        turns = (start + length) // len(_LETTERS) + 1
        return (_LETTERS * turns)[start : start + length]

    def filler(self, length: int, wanted: int) -> str:
        """Text that extends `length` bytes to about `wanted`, within 20 % of the difference."""
        missing = max(0, wanted - length)
        spread = round(missing * 0.2)
        return self.text(missing - spread + (self.below(2 * spread) if spread else 0))


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


_LETTERS = "".join(chr(ord("a") + _mix(place) % 26) for place in range(4096))


def event(model: Model, number: int) -> Event:
    """Event `number`, with times in milliseconds since 1970."""
    draw, kind, time_ms = Draw(model.seed, number), kind_of(number), model.time_ms(number)
    row: Event = {
        "number": number,
        "event_type": kind,
        "date_time": time_ms,
        "person": None,
        "auction": None,
        "bid": None,
    }
    if kind == PERSON:
        row["person"] = _person(model, number, draw)
    elif kind == AUCTION:
        row["auction"] = _auction(model, number, time_ms, draw)
    else:
        row["bid"] = _bid(model, number, draw)
    return row


def _person(model: Model, number: int, draw: Draw) -> Event:
    row = {
        "id": FIRST_ID + newest_person(number),
        "name": f"{draw.one_of(_FIRST_NAMES)} {draw.one_of(_LAST_NAMES)}",
        "email_address": f"{draw.text(7)}@{draw.text(5)}.com",
        "credit_card": " ".join(f"{draw.below(10_000):04d}" for _ in range(4)),
        "city": draw.one_of(_CITIES),
        "state": draw.one_of(_STATES),
    }
    return _filled(row, model.person_bytes, draw)


def _auction(model: Model, number: int, time_ms: int, draw: Draw) -> Event:
    initial_bid = draw.price()
    row = {
        "id": FIRST_ID + newest_auction(number),
        "item_name": draw.text(20),
        "description": draw.text(100),
        "initial_bid": initial_bid,
        "reserve": initial_bid + draw.price(),
        "expires": time_ms + 1 + draw.below(model.auction_life_ms),
        "seller": FIRST_ID + _someone(model, number, model.hot_sellers, 0, draw),
        "category": FIRST_CATEGORY + draw.below(CATEGORIES),
    }
    return _filled(row, model.auction_bytes, draw)


def _bid(model: Model, number: int, draw: Draw) -> Event:
    newest = newest_auction(number)
    if draw.below(model.hot_auctions) > 0:
        auction = newest - newest % HOT_BATCH
    else:
        oldest = max(0, newest - model.auctions_in_flight)
        auction = oldest + draw.below(newest - oldest + 1 + LEAD)
    if draw.below(2) > 0:
        channel = draw.one_of(_HOT_CHANNELS)
    else:
        channel = f"channel-{draw.below(_CHANNELS)}"
    row = {
        "auction": FIRST_ID + auction,
        # Hot bidders have the ids after those of hot sellers.
        "bidder": FIRST_ID + _someone(model, number, model.hot_bidders, 1, draw),
        "price": draw.price(),
        "channel": channel,
        "url": f"https://www.nexmark.com/{draw.text(5)}/item.htm?query=1",
    }
    return _filled(row, model.bid_bytes, draw)


def _someone(model: Model, number: int, hot: int, beside: int, draw: Draw) -> int:
    """Number of a person, from 0: the hot one, or one of the newest, or one of the next `LEAD`."""
    newest = newest_person(number)
    if draw.below(hot) > 0:
        return newest - newest % HOT_BATCH + beside
    active = min(newest + 1, model.active_people)
    return newest + 1 - active + draw.below(active + LEAD)


def _filled(row: Event, wanted: int, draw: Draw) -> Event:
    length = sum(len(value) if isinstance(value, str) else 8 for value in row.values())
    return {**row, "extra": draw.filler(length, wanted)}


def arrivals(model: Model, first: int = 0, stop: int | None = None) -> Iterator[Event]:
    """Events from place `first` to before `stop`, in order of arrival."""
    for place in range(first, model.events if stop is None else stop):
        yield event(model, model.number(place))

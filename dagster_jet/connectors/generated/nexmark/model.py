"""NEXMark's world in numbers: who exists at which event, and when it happens.

Of 50 events the first is a new person, the next three are new auctions, the others are bids. What
an event refers to follows from its number alone, so any part of the stream can be made anywhere.

Source: the data model of the Flink suite (github.com/nexmark/nexmark), in code of its own. Two
things differ on purpose: every draw depends on the seed and the event's number (the suite's runs
all differ), and a bidder's id gets the offset of first ids once (there twice, so that many bidders
never register).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from dagster_jet.errors import ConfigurationError

PERSONS, AUCTIONS, ROUND = 1, 3, 50
"""Of so many events in a row, the first are persons, the next auctions, the rest bids."""
PERSON, AUCTION, BID = 0, 1, 2
FIRST_ID = 1000
"""Of persons and of auctions."""
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_BATCH = 100
"""Of each so many auctions (persons) in a row one is hot for as long as they are the newest."""
LEAD = 10
"""Bids and auctions may name so many auctions and persons that are yet to come."""
T0_MS = round(datetime(2026, 7, 15, 18, 59, tzinfo=timezone.utc).timestamp() * 1000)
"""A minute before q14's day time ends."""
_STRIDE = 953
"""The suite's: a prime, so that it visits every place of a group of any other size."""


@dataclass(frozen=True)
class Model:
    """Size, speed and order of a stream; the suite's ratios. Equal models are equal streams.

    Attributes:
        events: how many there are.
        events_per_second: of event time.
        group: events arrive in groups of so many in event-time order, and out of order within one.
        auctions_in_flight: a bid that is not on the hot auction is on one of so many newest ones;
            auctions last about as long as it takes to open so many.
        active_people: sellers and bidders that are not hot are among so many newest persons.
        hot_auctions, hot_sellers, hot_bidders: all but one of so many bids (auctions, bids) name
            the hot one.
        person_bytes, auction_bytes, bid_bytes: average sizes, by a filler in column ``extra``.
    """

    events: int
    events_per_second: int = 1000
    group: int = 100
    auctions_in_flight: int = 100
    active_people: int = 1000
    hot_auctions: int = 2
    hot_sellers: int = 4
    hot_bidders: int = 4
    person_bytes: int = 200
    auction_bytes: int = 500
    bid_bytes: int = 100
    seed: int = 2026

    def __post_init__(self) -> None:
        if self.group < 1 or self.group % _STRIDE == 0:
            raise ConfigurationError(f"group: {self.group} is 0 or a multiple of {_STRIDE}.")

    def number(self, place: int) -> int:
        """The number of the event that arrives at `place` in the stream."""
        return place - place % self.group + _STRIDE * place % self.group

    def time_ms(self, number: int) -> int:
        return T0_MS + number * 1000 // self.events_per_second

    @property
    def disorder_ms(self) -> int:
        """No event arrives after one that is later by more than this."""
        return -(-self.group * 1000 // self.events_per_second)

    @property
    def horizon_ms(self) -> int:
        """How long it takes to open as many auctions as are in flight; auctions last as long on
        average."""
        return self.auctions_in_flight * ROUND * 1000 // (AUCTIONS * self.events_per_second)

    @property
    def auction_life_ms(self) -> int:
        """No auction lasts longer."""
        return 2 * max(1, self.horizon_ms)


def kind_of(number: int) -> int:
    """PERSON, AUCTION or BID."""
    place = number % ROUND
    if place < PERSONS:
        return PERSON
    return AUCTION if place < PERSONS + AUCTIONS else BID


def newest_person(number: int) -> int:
    """Counted from 0: the last person registered when event `number` happens, or just now."""
    return number // ROUND * PERSONS + min(number % ROUND, PERSONS - 1)


def newest_auction(number: int) -> int:
    """Counted from 0, -1 if there is none yet: the last auction opened, or just now."""
    opened = min(max(number % ROUND - PERSONS + 1, 0), AUCTIONS)
    return number // ROUND * AUCTIONS + opened - 1

"""NEXMark's model: which persons and auctions exist at an event, and its event time.

Of 50 events the first is a new person, the next three are new auctions, the others are bids. The
ids in an event depend on its number alone, so any part of the stream can be generated anywhere.

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
"""Each `ROUND` events begin with the persons; auctions follow, and then bids."""
PERSON, AUCTION, BID = 0, 1, 2
FIRST_ID = 1000
"""First id of persons and of auctions."""
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_BATCH = 100
"""One of each batch of this many auctions (persons) is hot while the batch is the newest."""
LEAD = 10
"""Bids and auctions may refer to this many auctions and persons that do not exist yet."""
T0_MS = round(datetime(2026, 7, 15, 18, 59, tzinfo=timezone.utc).timestamp() * 1000)
"""One minute before the end of q14's day time."""
_STRIDE = 953
"""The suite's prime; visits every place of a group unless the group's size is a multiple."""


@dataclass(frozen=True)
class Model:
    """Size, speed and order of a stream, with the suite's ratios. Equal models give equal streams.

    Attributes:
        events: number of events.
        events_per_second: rate in event time.
        group: size of the groups in event-time order; events arrive out of order within a group.
        auctions_in_flight: bids that are not on the hot auction are on one of this many newest
            auctions; auctions last about as long as it takes to open this many.
        active_people: sellers and bidders that are not hot are among this many newest persons.
        hot_auctions, hot_sellers, hot_bidders: of this many bids (auctions, bids) all but one name
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
        """Number of the event that arrives at `place` in the stream."""
        return place - place % self.group + _STRIDE * place % self.group

    def time_ms(self, number: int) -> int:
        return T0_MS + number * 1000 // self.events_per_second

    @property
    def disorder_ms(self) -> int:
        """Maximum disorder: no event arrives after one that is later by more than this."""
        return -(-self.group * 1000 // self.events_per_second)

    @property
    def horizon_ms(self) -> int:
        """Time to open `auctions_in_flight` auctions, which is an auction's average duration."""
        return self.auctions_in_flight * ROUND * 1000 // (AUCTIONS * self.events_per_second)

    @property
    def auction_life_ms(self) -> int:
        """Maximum duration of an auction."""
        return 2 * max(1, self.horizon_ms)


def kind_of(number: int) -> int:
    """PERSON, AUCTION or BID."""
    place = number % ROUND
    if place < PERSONS:
        return PERSON
    return AUCTION if place < PERSONS + AUCTIONS else BID


def newest_person(number: int) -> int:
    """Number, from 0, of the last person registered up to event `number`."""
    return number // ROUND * PERSONS + min(number % ROUND, PERSONS - 1)


def newest_auction(number: int) -> int:
    """Number, from 0, of the last auction opened up to event `number`; -1 if there is none."""
    opened = min(max(number % ROUND - PERSONS + 1, 0), AUCTIONS)
    return number // ROUND * AUCTIONS + opened - 1

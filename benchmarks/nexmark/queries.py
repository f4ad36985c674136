"""NEXMark's queries as pipelines: each takes the events and returns the stage with its answer.

The SQL in the docstrings is the suite's, shortened, with our column names. Where a query departs
from it, the docstring says how and why; `oracle.py` has the SQL that the answer must equal, row
by row. Two departures come back:

- A join of two streams without end needs state without end. Ours pair rows at most
  `Events.auction_life` apart, which no auction outlasts.
- Rows that SQL would update in place come as further rows ("upserts"); the last of each key is
  the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.nexmark.events import Events
from dagster_jet import Stage, windows
from dagster_jet import aggregates as agg
from dagster_jet.operators.user.state import State


def q1(events: Events) -> Stage:
    """Currency: prices in euro.

    SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bid

    The price is an exact decimal.
    """
    return events.bids.select("auction", "bidder", "0.908 * price AS price", "date_time", "extra")


def q2(events: Events) -> Stage:
    """Selection: bids on some auctions.

    SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0
    """
    return events.bids.filter("auction % 123 = 0").select("auction", "price", "date_time")


def q3(events: Events) -> Stage:
    """Local items: who sells something of category 10 in three states?

    SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
    WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')

    Departure: auctions that open within an auction's longest life of the seller's registration.
    The suite keeps every person for ever.
    """
    sellers = events.persons.filter("state IN ('OR', 'ID', 'CA')")
    sellers = sellers.select("id AS seller", "name", "city", "state", "date_time")
    items = events.auctions.filter("category = 10").select("seller", "id", "date_time")
    local = items.join(sellers, on="seller", within=events.auction_life, name="local_items")
    return local.select("name", "city", "state", "id", "date_time")


def q4(events: Events) -> Stage:
    """Average price for a category: of the winning bids of its auctions.

    SELECT category, AVG(final) FROM (
        SELECT MAX(b.price) AS final, a.category FROM auction a JOIN bid b ON a.id = b.auction
        WHERE b.date_time BETWEEN a.date_time AND a.expires GROUP BY a.id, a.category)
    GROUP BY category

    Upserts per category. Departure: the suite's average moves with every higher bid; ours takes
    in an auction once, when no further bid can come, so an update tells of finished auctions
    only. `closed`, their number, is an addition. The last rows are those of the suite.

    The join's rows have the event time of their auction. So all of an auction are in one window,
    whichever its size, and it closes when the last chance to find a bid has passed.
    """
    auctions = events.auctions.select("id AS auction", "category", "expires", "date_time")
    bids = events.bids.select("auction", "price", "date_time")
    offers = auctions.join(bids, on="auction", within=events.auction_life, name="offers")
    valid = offers.filter("date_time_right BETWEEN date_time AND expires")
    winning = (
        valid.group_by("auction", "category")
        .window(windows.tumbling("1 second"))
        .aggregate(final=agg.max("price"), name="winning_bids")
    )
    return winning.group_by("category").rolling_aggregate(
        average=agg.mean("final"), closed=agg.count(), name="category_averages"
    )


def q5(events: Events) -> Stage:
    """Hot items: the auctions with most bids in the last 10 seconds, every 2 seconds.

    WITH counts AS (SELECT auction, COUNT(*) AS num, window_start, window_end
        FROM HOP(bid, 2 seconds, 10 seconds) GROUP BY auction, window_start, window_end)
    SELECT auction, num FROM counts c WHERE num >= (
        SELECT MAX(num) FROM counts WHERE window_end = c.window_end)

    The window's bounds are an addition. Ties are all in, as in the suite.

    The counts are made once and read twice. Those of one window end have the same event time, the
    last millisecond of their window, so a window as long as the slide holds them and no others, and
    ends where they do.
    """
    counts = (
        events.bids.group_by("auction")
        .window(windows.sliding("10 seconds", "2 seconds"))
        .aggregate(num=agg.count(), name="bid_counts")
    )
    most = counts.window(windows.tumbling("2 seconds")).aggregate(
        most=agg.max("num"), name="most_bids"
    )
    most = most.select("most", "window_end")
    pairs = counts.join(most, on="window_end", within="0 seconds", name="hot_items")
    return pairs.filter("num >= most").select("auction", "num", "window_start", "window_end")


def q7(events: Events) -> Stage:
    """Highest bid: of every 10 seconds, all bids that reach it.

    SELECT b.auction, b.price, b.bidder, b.date_time, b.extra FROM bid b JOIN (
        SELECT MAX(price) AS price, window_end FROM TUMBLE(bid, 10 seconds) GROUP BY window_end) m
    ON b.price = m.price
    WHERE b.date_time BETWEEN m.window_end - INTERVAL '10' SECOND AND m.window_end

    Departure: a window does not include its end. The suite's BETWEEN does, and so counts a bid
    at that very time for two windows.
    """
    highest = events.bids.window(windows.tumbling("10 seconds")).aggregate(
        price=agg.max("price"), name="highest_prices"
    )
    bids = events.bids.select("auction", "price", "bidder", "date_time", "extra")
    reached = bids.join(highest, on="price", within="10 seconds", name="highest_bids")
    inside = reached.filter("date_time >= window_start AND date_time < window_end")
    return inside.select("auction", "price", "bidder", "date_time", "extra")


def q8(events: Events) -> Stage:
    """New users: who registers and opens an auction in the same 10 seconds?

    SELECT p.id, p.name, p.window_start FROM
        (SELECT id, name, window_start FROM TUMBLE(person, 10 seconds) GROUP BY ...) p
    JOIN (SELECT seller, window_start FROM TUMBLE(auction, 10 seconds) GROUP BY ...) a
    ON p.id = a.seller AND p.window_start = a.window_start
    """
    ten_seconds = windows.tumbling("10 seconds")
    registered = (
        events.persons.group_by("id", "name")
        .window(ten_seconds)
        .aggregate(registrations=agg.count(), name="new_persons")
    )
    sellers = events.auctions.select("seller AS id", "date_time")
    opened = sellers.group_by("id").window(ten_seconds)
    selling = opened.aggregate(auctions=agg.count(), name="new_sellers")
    both = registered.join(selling, on=("id", "window_start"), within="0 seconds", name="new_users")
    return both.select("id", "name", "window_start", "window_end")


def q11(events: Events) -> Stage:
    """User sessions: how many bids does a bidder make without a pause of 10 seconds?

    SELECT bidder, COUNT(*) AS bid_count, SESSION_START(...), SESSION_END(...) FROM bid
    GROUP BY bidder, SESSION(date_time, INTERVAL '10' SECOND)

    Departure: a pause of exactly 10 seconds ends a session here; Flink's sessions merge when they
    touch.
    """
    return (
        events.bids.group_by("bidder")
        .window(windows.session("10 seconds"))
        .aggregate(bid_count=agg.count(), name="bid_sessions")
    )


def q12(events: Events) -> Stage:
    """Processing-time windows: how many bids of a bidder are read in every 10 seconds?

    SELECT bidder, COUNT(*) AS bid_count, window_start, window_end
    FROM TUMBLE((SELECT *, PROCTIME() AS p_time FROM bid), p_time, 10 seconds)
    GROUP BY bidder, window_start, window_end

    Departure: the time is that of planning the epoch, one for all of its bids. Which window a bid
    is in depends on when it was read and is never the same twice; that it is in one is not: the
    counts of a bidder add up to the bids, whatever crashes in between.
    """
    return (
        events.bids_as_read.group_by("bidder")
        .window(windows.tumbling("10 seconds"))
        .aggregate(bid_count=agg.count(), name="bids_as_read")
    )


def q14(events: Events) -> Stage:
    """Calculation: a conversion, a case, a count of letters, over expensive bids.

    SELECT auction, bidder, 0.908 * price AS price, CASE WHEN HOUR(date_time) BETWEEN 8 AND 18
        THEN 'dayTime' WHEN HOUR(date_time) <= 6 OR HOUR(date_time) >= 20 THEN 'nightTime'
        ELSE 'otherTime' END AS bid_time_type, date_time, extra, count_char(extra, 'c')
    FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000

    Hours are UTC's. Departure: `count_char` is SQL here, in the suite a function in Java.
    """
    bids = events.bids.filter("0.908 * price > 1000000 AND 0.908 * price < 50000000")
    return bids.select(
        "auction",
        "bidder",
        "0.908 * price AS price",
        "CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime' "
        "WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' "
        "ELSE 'otherTime' END AS bid_time_type",
        "date_time",
        "extra",
        "length(extra) - length(replace(extra, 'c', '')) AS c_counts",
    )


def q18(events: Events) -> Stage:
    """Last bid: of every bidder on every auction.

    SELECT auction, bidder, price, channel, url, date_time, extra FROM (SELECT *, ROW_NUMBER()
        OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) AS n FROM bid) WHERE n <= 1

    Upserts per bidder and auction: a bid comes out if it is later than all of its pair before it.
    Bids of one millisecond are ordered by number; the suite takes any. The state is bounded and
    the last rows are the suite's all the same: a pair can be forgotten as soon as the watermark
    has passed its last bid, because only a later one can follow.
    """
    columns = "auction bigint, bidder bigint, price bigint, channel string, url string"
    return events.bids.group_by("bidder", "auction").map_stateful(
        _if_later,
        create=_before_all,
        ttl="0 seconds",
        output_schema=f"{columns}, date_time timestamp, number bigint, extra string",
        name="last_bids",
    )


def _before_all() -> tuple[Any, ...]:
    return ()


def _if_later(last: State[tuple[Any, ...]], bid: dict[str, Any]) -> dict[str, Any] | None:
    this = (bid["date_time"], bid["number"])
    if this < last.value:
        return None
    last.value = this
    return bid


def q20(events: Events) -> Stage:
    """Bids with their auction, of category 10.

    SELECT b.*, a.* FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10

    Departure: bids within an auction's longest life of its opening. The suite keeps both streams
    for ever; what this leaves out are bids on the hot auction after it has ended.
    """
    auctions = events.auctions.filter("category = 10").select(
        "id AS auction", "item_name", "description", "initial_bid", "reserve", "expires", "seller",
        "category", "date_time AS opened", "extra AS auction_extra", "date_time",
    )  # fmt: skip
    expanded = events.bids.join(
        auctions, on="auction", within=events.auction_life, name="expanded_bids"
    )
    return expanded.transform(lambda frame: frame.drop("number", "date_time_right"))


QUERIES: dict[str, Callable[[Events], Stage]] = {
    query.__name__: query for query in (q1, q2, q3, q4, q5, q7, q8, q11, q12, q14, q18, q20)
}

"""The six queries of the race: the answer, and how far an answer's row says the engine has come.

Every engine writes JSON lines with these columns. Times are texts (ISO 8601) or milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.nexmark.oracle import ANSWERS

GAP_MS = 10_000
"""Session gap of q11."""
# Whether rows exactly a gap apart are one session differs between engines, and both are right.
_EXACTLY_A_GAP = f"""
    SELECT bidder FROM bid
    QUALIFY ms - lag(ms) OVER (PARTITION BY bidder ORDER BY ms) = {GAP_MS}
"""


@dataclass(frozen=True)
class Query:
    """One of NEXMark's, as it is raced.

    Attributes:
        columns: of the committed JSON lines.
        found: SQL over `committed`, whose columns are texts: the columns of `expected`.
        progress: SQL over a committed row: event time in ms that the engine has passed.
        is_open: how many rows come depends on the engine, so that only silence shows the end.
        sentinel_rows: the sentinels themselves come out.
        expected: SQL over the views `person`, `auction`, `bid`.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    expected: str
    found: str
    progress: str
    is_open: bool = False
    sentinel_rows: bool = False


_WINDOWED = "ms(window_start), ms(window_end) FROM committed"


QUERIES: Mapping[str, Query] = {
    query.name: query
    for query in (
        Query(
            "q1",
            "stateless map",
            ("auction", "bidder", "price", "date_time", "extra"),
            ANSWERS["q1"].expected,
            "SELECT auction::BIGINT, bidder::BIGINT, round(price::DOUBLE * 1000)::BIGINT, "
            "ms(date_time), extra FROM committed WHERE auction::BIGINT >= 0",
            "ms(date_time)",
            sentinel_rows=True,
        ),
        Query(
            "q5",
            "top auctions per sliding window",
            ("auction", "num", "window_start", "window_end"),
            ANSWERS["q5"].expected,
            f"SELECT auction::BIGINT, num::BIGINT, {_WINDOWED}",
            "ms(window_end)",
        ),
        Query(
            "q7",
            "highest bids per window",
            ("auction", "price", "bidder", "date_time", "extra"),
            ANSWERS["q7"].expected,
            "SELECT auction::BIGINT, price::BIGINT, bidder::BIGINT, ms(date_time), extra "
            "FROM committed",
            "(ms(date_time) // 10000 + 1) * 10000",
        ),
        Query(
            "q8",
            "join of two windows",
            ("id", "person_id", "name", "window_start", "window_end"),
            ANSWERS["q8"].expected,
            # Pathway has no columns of the name `id`.
            f"SELECT coalesce(id, person_id)::BIGINT, name, {_WINDOWED}",
            "ms(window_end)",
        ),
        Query(
            "q11",
            "sessions",
            ("bidder", "bid_count", "window_start", "window_end"),
            f"FROM ({ANSWERS['q11'].expected}) WHERE bidder NOT IN ({_EXACTLY_A_GAP})",
            f"SELECT bidder::BIGINT, bid_count::BIGINT, {_WINDOWED} "
            f"WHERE bidder::BIGINT NOT IN ({_EXACTLY_A_GAP})",
            "ms(window_end)",
            is_open=True,
        ),
        Query(
            "q18",
            "last row per key",
            ("auction", "bidder", "price", "channel", "url", "date_time", "number", "extra"),
            ANSWERS["q18"].expected,
            "SELECT auction::BIGINT, bidder::BIGINT, price::BIGINT, channel, url, ms(date_time), "
            "number::BIGINT, extra FROM committed WHERE auction::BIGINT >= 0 QUALIFY row_number() "
            "OVER (PARTITION BY bidder, auction ORDER BY ms(date_time) DESC, number::BIGINT DESC) "
            "= 1",
            "ms(date_time)",
            is_open=True,
            sentinel_rows=True,
        ),
    )
}

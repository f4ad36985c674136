"""Every query as batch SQL in DuckDB over the same files, and the comparison with what came out.

It shares the columns' names and types with the pipelines, and nothing else. Windows are worked
out from milliseconds, sessions from gaps between rows, joins are joins.

How answers are compared, as multisets of rows in all cases:

- Queries that append: all committed rows.
- Queries that update (q4, q18): the last row of each key, by the number of the epoch that
  committed it and, within one, by the query's own order. Besides, no update may come twice, and
  a later epoch's update may not be older: both would show that a crash left traces.
- q12, whose windows follow the clock: the sum over the windows of each key; no window twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb

from benchmarks.nexmark.generator import Format
from dagster_jet.connectors.generated.nexmark.model import Model
from dagster_jet.connectors.generated.nexmark.schema import VIEWS, duckdb_types


@dataclass(frozen=True)
class Answer:
    """Expected answer of a query.

    Attributes:
        expected: SQL over the views `person`, `auction` and `bid`, whose `ms` is the event time in
            milliseconds; `$life_ms` is the longest life of an auction.
        found: SQL over `committed`: the sink's rows, and the `epoch` of each.
        traces: SQL over `committed` for rows that there must not be.
    """

    expected: str
    found: str
    traces: str = "SELECT 1 WHERE false"


ANSWERS: Mapping[str, Answer] = {
    "q1": Answer(
        "SELECT auction, bidder, price * 908 AS milli_euro, ms, extra FROM bid",
        "SELECT auction, bidder, (price * 1000)::BIGINT, epoch_ms(date_time), extra FROM committed",
    ),
    "q2": Answer(
        "SELECT auction, price, ms FROM bid WHERE auction % 123 = 0",
        "SELECT auction, price, epoch_ms(date_time) FROM committed",
    ),
    "q3": Answer(
        """
        SELECT p.name, p.city, p.state, a.id, a.ms FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA') AND abs(a.ms - p.ms) <= $life_ms
        """,
        "SELECT name, city, state, id, epoch_ms(date_time) FROM committed",
    ),
    "q4": Answer(
        """
        SELECT category, sum(final) / count(*) AS average, count(*) AS closed FROM (
            SELECT a.category, max(b.price)::DOUBLE AS final
            FROM auction a JOIN bid b ON a.id = b.auction
            WHERE b.date_time BETWEEN a.date_time AND a.expires GROUP BY a.id, a.category)
        GROUP BY category
        """,
        """
        SELECT category, average, closed FROM committed
        QUALIFY row_number() OVER (PARTITION BY category ORDER BY epoch DESC) = 1
        """,
        # Each update tells of more auctions than the one before.
        """
        SELECT * FROM committed QUALIFY closed <= lag(closed, 1, 0)
            OVER (PARTITION BY category ORDER BY epoch, closed)
        """,
    ),
    "q5": Answer(
        """
        SELECT auction, num, stop - 10000, stop FROM (
            SELECT auction, count(*) AS num, stop FROM (
                SELECT auction, unnest(
                    generate_series(ms - ms % 2000 + 2000, ms - ms % 2000 + 10000, 2000)) AS stop
                FROM bid)
            GROUP BY auction, stop)
        QUALIFY num = max(num) OVER (PARTITION BY stop)
        """,
        "SELECT auction, num, epoch_ms(window_start), epoch_ms(window_end) FROM committed",
    ),
    "q7": Answer(
        """
        SELECT auction, price, bidder, ms, extra FROM bid
        QUALIFY price = max(price) OVER (PARTITION BY ms // 10000)
        """,
        "SELECT auction, price, bidder, epoch_ms(date_time), extra FROM committed",
    ),
    "q8": Answer(
        """
        SELECT DISTINCT p.id, p.name, p.ms // 10000 * 10000, p.ms // 10000 * 10000 + 10000
        FROM person p JOIN auction a ON p.id = a.seller AND p.ms // 10000 = a.ms // 10000
        """,
        "SELECT id, name, epoch_ms(window_start), epoch_ms(window_end) FROM committed",
    ),
    "q11": Answer(
        """
        SELECT bidder, count(*), min(ms), max(ms) + 10000 FROM (
            SELECT *, count_if(pause) OVER (PARTITION BY bidder ORDER BY ms) AS session FROM (
                SELECT bidder, ms,
                    ms - lag(ms, 1, ms) OVER (PARTITION BY bidder ORDER BY ms) >= 10000 AS pause
                FROM bid))
        GROUP BY bidder, session
        """,
        "SELECT bidder, bid_count, epoch_ms(window_start), epoch_ms(window_end) FROM committed",
    ),
    "q12": Answer(
        "SELECT bidder, count(*) FROM bid GROUP BY bidder",
        "SELECT bidder, sum(bid_count)::BIGINT FROM committed GROUP BY bidder",
        "SELECT bidder, window_end FROM committed GROUP BY ALL HAVING count(*) > 1",
    ),
    "q14": Answer(
        """
        SELECT auction, bidder, price * 908 AS milli_euro, CASE
                WHEN ms // 3600000 % 24 IN (7, 19) THEN 'otherTime'
                WHEN ms // 3600000 % 24 BETWEEN 8 AND 18 THEN 'dayTime' ELSE 'nightTime' END,
            ms, extra, len(regexp_extract_all(extra, 'c'))
        FROM bid WHERE price * 908 > 1000000000 AND price * 908 < 50000000000
        """,
        """
        SELECT auction, bidder, (price * 1000)::BIGINT, bid_time_type, epoch_ms(date_time), extra,
            c_counts
        FROM committed
        """,
    ),
    "q18": Answer(
        """
        SELECT auction, bidder, price, channel, url, ms, number, extra FROM bid
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY ms DESC, number DESC) = 1
        """,
        """
        SELECT auction, bidder, price, channel, url, epoch_ms(date_time), number, extra
        FROM committed QUALIFY row_number() OVER (
            PARTITION BY bidder, auction ORDER BY epoch DESC, date_time DESC, number DESC) = 1
        """,
        """
        SELECT * FROM committed
        WINDOW w AS (PARTITION BY bidder, auction ORDER BY epoch, date_time, number)
        QUALIFY (date_time, number) <= lag((date_time, number)) OVER w
        """,
    ),
    "q20": Answer(
        """
        SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.ms, b.extra, a.item_name,
            a.description, a.initial_bid, a.reserve, a.ms, epoch_ms(a.expires), a.seller,
            a.category, a.extra
        FROM bid b JOIN auction a ON b.auction = a.id
        WHERE a.category = 10 AND abs(b.ms - a.ms) <= $life_ms
        """,
        """
        SELECT auction, bidder, price, channel, url, epoch_ms(date_time), extra, item_name,
            description, initial_bid, reserve, epoch_ms(opened), epoch_ms(expires), seller,
            category, auction_extra
        FROM committed
        """,
    ),
}


@dataclass(frozen=True)
class Verdict:
    """Comparison of an answer with the expected one, as multisets."""

    query: str
    expected: int
    committed: int
    """Rows in the sink; of queries that update, more than there are keys."""
    missing: int
    extra: int
    traces: int

    @property
    def is_exact(self) -> bool:
        return self.missing == self.extra == self.traces == 0


def check(query: str, model: Model, source: Path, output: Path, format: Format = "json") -> Verdict:
    """Computes the answer from the files in `source` and compares it with the sink's.

    Args:
        output: the folder of the query's sink, which writes Parquet.
    """
    answer = ANSWERS[query]
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        make_views(db, source, format)
        life = {"life_ms": model.auction_life_ms} if "$life_ms" in answer.expected else {}
        db.execute(f"CREATE TABLE expected AS {answer.expected}", life)
        expected = _count(db, "expected")
        files = committed_files(output)
        if not files:
            return Verdict(query, expected, committed=0, missing=expected, extra=0, traces=0)
        db.execute(
            r"CREATE TABLE committed AS SELECT * EXCLUDE (filename), "
            r"regexp_extract(filename, 'part-(\d+)-', 1)::BIGINT AS epoch "
            r"FROM read_parquet($files, filename = true)",
            {"files": files},
        )
        db.execute(f"CREATE TABLE found AS {answer.found}")
        return Verdict(
            query,
            expected,
            committed=_count(db, "committed"),
            missing=_count(db, "(FROM expected EXCEPT ALL FROM found)"),
            extra=_count(db, "(FROM found EXCEPT ALL FROM expected)"),
            traces=_count(db, f"({answer.traces})"),
        )


def make_views(db: duckdb.DuckDBPyConnection, source: Path, format: Format = "json") -> None:
    """`person`, `auction` and `bid`, each with `number`, `date_time` and `ms`."""
    if format == "json":
        types = ", ".join(f"{name}: '{type_}'" for name, type_ in duckdb_types().items())
        reader = (
            f"read_json('{source}/*.json', format = 'newline_delimited', columns = {{{types}}})"
        )
    else:
        reader = f"read_parquet('{source}/*.parquet')"
    db.execute(f"CREATE TABLE events AS SELECT *, epoch_ms(date_time) AS ms FROM {reader}")
    for kind, view in enumerate(VIEWS):
        db.execute(
            f"CREATE VIEW {view} AS SELECT number, date_time, ms, unnest({view}) FROM events "
            f"WHERE event_type = {kind}"
        )


def committed_files(output: Path) -> list[str]:
    """The files that the sink's epoch manifests name; others are not output."""
    markers = sorted((output / "_epochs").glob("*.json"))
    parts = [part for m in markers for part in json.loads(m.read_text("utf-8"))["files"]]
    return [str(output / part["name"]) for part in parts]


def _count(db: duckdb.DuckDBPyConnection, rows: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {rows}").fetchall()[0][0])


__all__ = ["ANSWERS", "Answer", "Verdict", "check", "committed_files", "make_views"]

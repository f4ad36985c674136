"""docs/examples/recipes.py: every recipe in one job of many epochs, compared with DuckDB and plain
Python."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources
from dagster_jet.testing import run_pipeline
from tests.long import long

from .oracle import by_manifest
from .recipe_rows import HOUR, MINUTE, Row, asked, of, streams
from .world import World, wait_until, write_input

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))

import recipes


@pytest.fixture(scope="module")
def given() -> dict[str, list[Row]]:
    return streams()


class Risks(BaseHTTPRequestHandler):
    """A service that is not there at its first request."""

    requests = 0

    def do_POST(self) -> None:
        Risks.requests += 1
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(503 if Risks.requests == 1 else 200)
        self.end_headers()
        answer = [f"{'high' if row['amount'] > 99 else 'low'} {row['order_id']}" for row in rows]
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def found(given: dict[str, list[Row]], spark: Any) -> Iterator[dict[str, list[Row]]]:
    config = JobConfig(max_items_per_epoch=50, parallelism=3)
    with ThreadingHTTPServer(("localhost", 0), Risks) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        pipeline = recipes.gallery(f"http://localhost:{server.server_port}")
        yield run_pipeline(pipeline, given, config=config)
        server.shutdown()


SQL = {
    "paid": (
        "order_id paid",
        "select order_id, paid from orders join payments using (order_id) "
        "where payments.ts - orders.ts between 0 and 3600000",
    ),
    "unpaid": (
        "order_id",
        "select order_id from orders anti join (select order_id from orders join payments "
        "using (order_id) where payments.ts - orders.ts between 0 and 3600000) using (order_id)",
    ),
    "largest_order": (
        "user order_id large",
        'select "user", arg_max(order_id, amount), count(*) filter (where amount > 50) '
        'from orders group by "user", ts // 3600000',
    ),
    "most_visited": (
        "page n users",
        "select unnest(max_by({'page': page, 'n': n, 'users': users}, n * 1000 - ascii(page))) "
        'from (select page, count(*) as n, count(distinct "user") as users, ts // 3600000 as h '
        "from clicks group by page, h) group by h",
    ),
    "running_values": (
        "order_id before total n",
        "select order_id, lag(amount) over w, sum(amount) over w::bigint, row_number() over w "
        'from orders window w as (partition by "user" order by ts)',
    ),
    "next_order": (
        "order_id next_id",
        "select order_id, case when lead(ts) over w <= ts + 3600000 then lead(order_id) over w end "
        'from orders window w as (partition by "user" order by ts)',
    ),
    "balances": (
        "order_id at open",
        "select order_id, ts, (sum(due) over (partition by order_id order by ts))::bigint from "
        "(select order_id, ts, amount as due from orders union all "
        "select order_id, ts, -paid from payments)",
    ),
    "every_third": (
        "user total",
        'select "user", total::bigint from (select "user", sum(amount) over '
        "(w rows 2 preceding) as total, row_number() over w as n from orders "
        'window w as (partition by "user" order by ts)) where n % 3 = 0',
    ),
    "despite_wrong_clocks": (
        "clicks",
        "select count(*) from phones group by ts // 3600000",
    ),
    "scored": ("order_id score", "select order_id, amount * 0.5 + 3 from orders"),
    "checked": (
        "order_id risk",
        "select order_id, case when amount > 99 then 'high ' else 'low ' end || order_id "
        "from orders",
    ),
    "dollars": ("order_id", "select order_id from orders where currency = 'USD'"),
    "small": ("order_id", "select order_id from orders where currency <> 'USD' and amount < 100"),
    "rest": ("order_id", "select order_id from orders where currency <> 'USD' and amount >= 100"),
    "in_euros": (
        "order_id euros",
        "select order_id, amount * rate from orders asof left join rates "
        "on orders.currency = rates.currency and orders.ts >= rates.ts",
    ),
    "flagged": (
        "order_id rule",
        "select order_id, rule from orders, rules where amount > above and rules.ts <= orders.ts "
        "and rules.ts = (select max(ts) from rules as other where other.rule = rules.rule "
        "and ts <= orders.ts)",
    ),
}


@long  # test_first_weeks.py runs the jobs of a page, too
@pytest.mark.parametrize("name", SQL)
def test_a_recipe_gives_what_a_query_over_all_rows_gives(
    given: dict[str, list[Row]], found: dict[str, list[Row]], name: str
) -> None:
    columns, query = SQL[name]
    rows = of(found[f"{name}_out"], columns)
    assert rows and rows == asked(given, query)


def grouped(rows: list[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["at"]):
        groups[tuple(row[key] for key in keys)].append(row)
    return groups


def bursts(rows: list[Row], within: int, *, from_last: bool) -> list[list[Row]]:
    """Rows of one key, cut where one is further away than `within` from the last, or the first."""
    cut: list[list[Row]] = []
    for row in rows:
        if not cut or row["at"] > cut[-1][-1 if from_last else 0]["at"] + within:
            cut.append([])
        cut[-1].append(row)
    return cut


@long
def test_sessions_bursts_and_silence(
    given: dict[str, list[Row]], found: dict[str, list[Row]]
) -> None:
    clicks = given["clicks"]
    visits, last, first, silent = Counter(), Counter(), Counter(), Counter()
    short, newest = Counter(), {}
    for (user,), mine in grouped(clicks, "user").items():
        apart = bursts(mine, 30 * MINUTE - 1, from_last=True)
        visits.update((user, len(v)) for v in apart)
        hours = [h for v in apart for h in bursts(v, HOUR - 1, from_last=False)]
        short.update((user, len(h)) for h in hours)
        pause = bursts(mine, 30 * MINUTE, from_last=True)[-1]
        newest[user] = (len(pause), len({row["page"] for row in pause}))
        last.update((user, b[-1]["at"]) for b in bursts(mine, 10 * MINUTE, from_last=False))
        silent.update((user, b[-1]["at"]) for b in bursts(mine, HOUR, from_last=True))
    for key, mine in grouped(clicks, "user", "page").items():
        first.update((*key, b[0]["at"]) for b in bursts(mine, 10 * MINUTE, from_last=False))
    assert of(found["sessions_out"], "user clicks") == visits
    assert short.total() > visits.total()
    assert of(found["visits_of_at_most_an_hour_out"], "user clicks") == short
    so_far = sorted(found["since_last_pause_out"], key=lambda row: (row["at"], row["clicks"]))
    assert {row["user"]: (row["clicks"], row["pages"]) for row in so_far} == newest
    assert of(found["last_of_each_burst_out"], "user at") == last
    assert of(found["silent_users_out"], "user silent_since") == silent
    assert of(found["without_duplicates_out"], "user page at") == first


@long
def test_the_last_result_of_each_hour_is_corrected(
    given: dict[str, list[Row]], found: dict[str, list[Row]]
) -> None:
    rows = sorted(found["corrected_hours_out"], key=lambda row: row["correction"])
    last = {(row["currency"], row["window_end"]): row for row in rows}
    expected = asked(
        given,
        "select currency, count(*), sum(amount)::bigint from late_orders "
        "group by currency, ts // 3600000",
    )
    assert len(last) < len(rows), "some come again"
    assert of(last.values(), "currency orders amount") == expected


@long
def test_patterns_and_reminders(given: dict[str, list[Row]], found: dict[str, list[Row]]) -> None:
    back: Counter[tuple[Any, ...]] = Counter()
    reminded: Counter[tuple[Any, ...]] = Counter()
    for (user,), mine in grouped(given["clicks"], "user").items():
        for n, first in enumerate(mine):
            later = [row for row in mine[n + 1 :] if row["at"] <= first["at"] + HOUR]
            pages = "".join(row["page"] for row in later).partition("c")[0]
            away = pages.find("b")
            home = pages.find("a", away) if away >= 0 else -1
            if first["page"] == "a" and home >= 0:
                back[user, later[home]["at"], first["at"]] += 1
            ends = [row["at"] for row in mine[n + 1 :] if row["page"] in "ab"]
            for times in (1, 2):
                due = first["at"] + times * HOUR
                if first["page"] == "a" and all(end > due for end in ends[:1]):
                    reminded[user, due, times] += 1
    assert back and of(found["there_and_back_out"], "user at since") == back
    assert reminded and of(found["reminders_out"], "user at n") == reminded


def test_silence_by_the_wall_clock(world: World) -> None:
    """The job idles, and no watermark moves: only the clock does."""
    clicks = [{"user": user, "page": "a", "at": at} for user, at in (("ann", 5), ("bob", 7))]
    write_input(world.folder / "in", 0, [*clicks, {**clicks[0], "at": 3}])
    p = Pipeline("silence")
    source = sources.files(f"{world.folder}/in", format="json", schema=recipes.CLICKS)
    read = p.read_from(source, name="clicks").with_timestamps("at")
    alerts = recipes.silent_by_the_clock(read, after_ms=2_000)
    alerts.write_to(sinks.files(f"{world.folder}/out", format="json"), name="alerts_out")

    def silent() -> Counter[tuple[Any, ...]]:
        return by_manifest(world.folder / "out", ("user", "silent_since"))

    with world.jet() as jet:
        job = jet.submit(p, JobConfig(parallelism=3))
        wait_until(lambda: silent().total() > 1 or job.done.is_set(), "both are silent", 60)
        job.complete(60)
    assert silent() == Counter({("ann", 3): 1, ("bob", 7): 1}), "each once, with its last click"

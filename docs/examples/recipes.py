"""Recipes to copy: each function builds one stage. `gallery` is all of them as one pipeline.

Event times are milliseconds since 1970; a timestamp column works alike.
"""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet import Pipeline, Stage, State, sinks, sources, windows
from dagster_jet import aggregates as agg

CLICKS = "user string, page string, at long"
ORDERS = "order_id string, user string, currency string, amount long, at long"
PAYMENTS = "order_id string, paid long, at long"
RATES = "currency string, rate long, at long"
RULES = "rule string, above long, at long"


def sessions(clicks: Stage) -> Stage:
    """Visits of a user: clicks with less than half an hour between them."""
    visits = clicks.group_by("user").window(windows.session("30 minutes"))
    return visits.aggregate(clicks=agg.count(), name="sessions")


def visits_of_at_most_an_hour(clicks: Stage) -> Stage:
    """The same, but a visit ends after an hour: users who never pause have results, too."""
    visits = clicks.group_by("user").window(windows.session("30 minutes", max_duration="1 hour"))
    return visits.aggregate(clicks=agg.count(), name="visits_of_at_most_an_hour")


def since_last_pause(clicks: Stage) -> Stage:
    """What a user has done since the last pause of half an hour, so far. In a table with
    `mode="upsert"` and the key user the last row stays."""
    return clicks.group_by("user").rolling_aggregate(
        clicks=agg.count(), pages=agg.count_distinct("page"), ttl="30 minutes",
        name="since_last_pause",
    )  # fmt: skip


def despite_wrong_clocks(phones: Stage) -> Stage:
    """Clicks of each hour. A click of 2099, of a phone with a wrong clock, makes no other late."""
    clicks = phones.with_timestamps("at", allowed_lag="10 minutes", max_ahead="1 hour")
    hourly = clicks.window(windows.tumbling("1 hour"))
    return hourly.aggregate(clicks=agg.count(), name="despite_wrong_clocks")


def without_duplicates(clicks: Stage) -> Stage:
    """The first click of a user on a page within ten minutes."""
    return clicks.deduplicate(on=["user", "page"], within="10 minutes", name="without_duplicates")


def last_of_each_burst(clicks: Stage) -> Stage:
    """The last click of a user within ten minutes of the first one."""
    return clicks.deduplicate(on="user", within="10 minutes", keep="last", name="last_of_burst")


def most_visited(clicks: Stage) -> Stage:
    """The page with most clicks of each hour, and how many of them are of different users."""
    hour = windows.tumbling("1 hour")
    pages = clicks.group_by("page").window(hour)
    counts = pages.aggregate(
        n=agg.count(), users=agg.count_distinct("user"), name="clicks_per_page"
    )
    best = agg.max_by("struct(page, n, users)", "n * 1000 - ascii(page)")
    found = counts.window(hour).aggregate(best=best, name="most_visited")
    return found.select("window_end", "best.page AS page", "best.n AS n", "best.users AS users")


def largest_order(orders: Stage) -> Stage:
    """The largest order of each user and hour, as a whole row, with a count under a condition."""
    hourly = orders.group_by("user").window(windows.tumbling("1 hour"))
    return hourly.aggregate(
        best=agg.max_by("struct(order_id, amount)", "amount"),
        large=agg.count_if("amount > 50"),
        name="largest_order",
    ).select("user", "window_end", "best.order_id AS order_id", "large")


def corrected_hours(orders: Stage) -> Stage:
    """Orders of each hour, at its end, and corrected while orders of the last day come later. In a
    table with `mode="upsert"` and the key currency, window_end the last result stays."""
    hourly = orders.group_by("currency").window(
        windows.tumbling("1 hour"), allowed_lateness="1 day"
    )
    return hourly.aggregate(
        orders=agg.count(), amount=agg.sum("amount"), name="corrected_hours"
    ).select("currency", "window_end", "orders", "amount", "correction")


def paid(orders: Stage, payments: Stage) -> Stage:
    """A funnel: orders with their payments, up to an hour later."""
    return orders.join(payments, on="order_id", between=("0 s", "1 hour"), name="paid")


def unpaid(orders: Stage, payments: Stage) -> Stage:
    """Orders without a payment within an hour."""
    return orders.join(
        payments, on="order_id", between=("0 s", "1 hour"), how="anti", name="unpaid"
    )


def running_values(orders: Stage) -> Stage:
    """Each order beside the amount of the user's order before it, and the total so far."""
    return orders.group_by("user").running(
        before="lag(amount)", total="sum(amount)", n="count(*)", name="running_values"
    )


def next_order(orders: Stage) -> Stage:
    """Each order beside the user's next one, if that comes within an hour."""
    return orders.group_by("user").running(
        next_id="lead(order_id)", ttl="1 hour", name="next_order"
    )


def every_third(orders: Stage) -> Stage:
    """A window by count: the amounts of each three orders of a user."""
    threes = orders.group_by("user").window(windows.count(3))
    return threes.aggregate(total=agg.sum("amount"), name="every_third")


def there_and_back(clicks: Stage) -> Stage:
    """A pattern: page a, then b, then a again within an hour, and never c between them."""
    found = clicks.group_by("user").match(
        there="page = 'a'", away="page = 'b'", back="page = 'a'",
        unless="page = 'c'", within="1 hour", name="there_and_back",
    )  # fmt: skip
    return found.select("user", "at", "there.at AS since")


def reminders(clicks: Stage) -> Stage:
    """Reminders an hour and two hours after page a, if the user does not open page b."""

    def watch(state: State[int], row: dict[str, Any]) -> None:
        if row["page"] == "b":
            state.clear()
        elif row["page"] == "a":
            state.value = 0
            state.set_timer(row["at"] + 3_600_000)

    def remind(state: State[int], key: dict[str, Any], time_ms: int) -> dict[str, Any]:
        state.value += 1
        if state.value < 2:
            state.set_timer(time_ms + 3_600_000)
        return {"user": key["user"], "at": time_ms, "n": state.value}

    return clicks.group_by("user").map_stateful(
        watch, create=int, on_timer=remind,
        output_schema="user string, at long, n int", name="reminders",
    )  # fmt: skip


def balances(orders: Stage, payments: Stage) -> Stage:
    """Two streams in one function: what of an order is open after each order and payment."""
    both = orders.select("order_id", "at", "amount", "0L AS paid").merge(
        payments.select("order_id", "at", "0L AS amount", "paid")
    )

    def step(state: State[int], row: dict[str, Any]) -> dict[str, Any]:
        state.value += row["amount"] - row["paid"]
        return {**row, "open": state.value}

    return both.group_by("order_id").map_stateful(
        step, create=int, output_schema="*, open long", name="balances"
    )


def by_currency(orders: Stage) -> dict[str, Stage]:
    """Dollars to one place, small orders to another, what is left to a third."""
    return orders.split(dollars="currency = 'USD'", small="amount < 100")


def silent_users(clicks: Stage) -> Stage:
    """An alert for a user without a click for an hour: the state expires, and says since when."""

    def note(state: State[int], row: dict[str, Any]) -> None:
        state.value = row["at"]

    def alert(key: dict[str, Any], last: int, watermark_ms: int) -> dict[str, Any]:
        return {"user": key["user"], "silent_since": last}

    return clicks.group_by("user").map_stateful(
        note, create=int, ttl="1 hour", on_evict=alert,
        output_schema="user string, silent_since long", name="silent_users",
    )  # fmt: skip


def silent_by_the_clock(clicks: Stage, after_ms: int = 300_000) -> Stage:
    """An alert five minutes after a user's last click was read, also if no other row comes."""

    def note(state: State[int], row: dict[str, Any]) -> None:
        state.value = row["at"]
        state.set_timer(state.now_ms + after_ms)

    def alert(state: State[int], key: dict[str, Any], time_ms: int) -> dict[str, Any]:
        last = state.value
        state.clear()
        return {"user": key["user"], "silent_since": last, "due": time_ms}

    return clicks.group_by("user").map_stateful(
        note, create=int, on_timer=alert, timers="processing time",
        output_schema="user string, silent_since long, due long", name="silent_by_the_clock",
    )  # fmt: skip


def in_euros(orders: Stage, rates: Stage) -> Stage:
    """Orders with the exchange rate as of their time."""
    rated = orders.join_as_of(rates, on="currency", name="in_euros")
    return rated.select("order_id", "amount * rate AS euros")


def flagged(orders: Stage, rules: Stage) -> Stage:
    """Orders with each rule that they break; rules come and change while the job runs."""

    def is_above(pairs: pa.Table) -> pa.ChunkedArray:
        return pc.greater(pairs["amount"], pairs["above"])

    hits = orders.join_as_of(
        rules, on=[], versions_of="rule", condition=is_above, how="inner", name="flagged"
    )
    return hits.select("order_id", "rule")


def scored(orders: Stage) -> Stage:
    """Orders with the score of a model, which each worker process loads once."""

    def load() -> np.ndarray:
        return np.array([0.5, 3.0])  # joblib.load("/models/fraud.joblib")

    def score(model: np.ndarray, rows: pa.Table) -> pa.Table:
        inputs = np.column_stack([rows["amount"].to_numpy(), np.ones(rows.num_rows)])
        return rows.append_column("score", pa.array(inputs @ model))

    return orders.map_using_service(
        score, create=load, output_schema="*, score double", name="scored"
    )


def checked(orders: Stage, url: str) -> Stage:
    """Orders with the answer of an HTTP service: four requests at once, each tried three times."""

    def connect() -> urllib.request.OpenerDirector:
        client = urllib.request.build_opener()
        client.addheaders = [("Authorization", f"Bearer {os.environ.get('RISK_TOKEN')}")]
        return client

    def ask(client: urllib.request.OpenerDirector, rows: pa.Table) -> pa.Table:
        body = json.dumps(rows.select(["order_id", "amount"]).to_pylist()).encode()
        with client.open(url, body, timeout=10) as answer:
            return rows.append_column("risk", pa.array(json.load(answer)))

    return orders.map_using_service(
        ask, create=connect, output_schema="*, risk string",
        batch_rows=10, concurrency=4, retries=2, name="checked",
    )  # fmt: skip


def gallery(service_url: str = "http://localhost:8000") -> Pipeline:
    p = Pipeline("gallery")

    def untimed(name: str, schema: str) -> Stage:
        return p.read_from(sources.files(f"/in/{name}", format="json", schema=schema), name=name)

    def read(name: str, schema: str) -> Stage:
        return untimed(name, schema).with_timestamps("at", allowed_lag="10 minutes")

    clicks, orders = read("clicks", CLICKS), read("orders", ORDERS)
    payments, rates = read("payments", PAYMENTS), read("rates", RATES)
    stages = {
        "sessions": sessions(clicks),
        "visits_of_at_most_an_hour": visits_of_at_most_an_hour(clicks),
        "since_last_pause": since_last_pause(clicks),
        "despite_wrong_clocks": despite_wrong_clocks(untimed("phones", CLICKS)),
        "without_duplicates": without_duplicates(clicks),
        "last_of_each_burst": last_of_each_burst(clicks),
        "most_visited": most_visited(clicks),
        "silent_users": silent_users(clicks),
        "largest_order": largest_order(orders),
        "corrected_hours": corrected_hours(read("late_orders", ORDERS)),
        "paid": paid(orders, payments),
        "unpaid": unpaid(orders, payments),
        "balances": balances(orders, payments),
        "running_values": running_values(orders),
        "next_order": next_order(orders),
        "every_third": every_third(orders),
        "there_and_back": there_and_back(clicks),
        "reminders": reminders(clicks),
        "in_euros": in_euros(orders, rates),
        "flagged": flagged(orders, read("rules", RULES)),
        "scored": scored(orders),
        "checked": checked(orders, service_url),
        **by_currency(orders),
    }
    for name, stage in stages.items():
        stage.write_to(sinks.files(f"/out/{name}", format="json"), name=f"{name}_out")
    return p

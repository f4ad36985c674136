"""Everyday jobs to copy: each function builds one stage. `gallery` is all of them as one pipeline.

What takes more than a line or two is in `recipes.py`. Event times are milliseconds since 1970.
"""

from __future__ import annotations

from dagster_jet import Pipeline, Stage, sinks, sources, tables, windows
from dagster_jet import aggregates as agg
from dagster_jet.contract import Table

CLICKS = "user string, page string, at long"
ORDERS = "order_id string, user string, currency string, amount long, at long"
PAYMENTS = "order_id string, paid long, at long"
CUSTOMERS = "user string, city string"


def page_views(clicks: Stage) -> Stage:
    """Clicks of each page and ten minutes."""
    pages = clicks.group_by("page").window(windows.tumbling("10 minutes"))
    return pages.aggregate(n=agg.count(), name="page_views")


def visitors(clicks: Stage) -> Stage:
    """Clicks of each hour over all keys, and how many users they are of."""
    hourly = clicks.window(windows.tumbling("1 hour"))
    return hourly.aggregate(n=agg.count(), users=agg.count_distinct("user"), name="visitors")


def moving_average(orders: Stage) -> Stage:
    """The mean amount of the last hour, each half an hour."""
    last_hour = orders.group_by("currency").window(windows.sliding("1 hour", "30 minutes"))
    return last_hour.aggregate(mean=agg.mean("amount"), name="moving_average")


def spread(orders: Stage) -> Stage:
    """Smallest and largest amount of each hour, and their standard deviation."""
    hourly = orders.group_by("currency").window(windows.tumbling("1 hour"))
    found = hourly.aggregate(
        lowest=agg.min("amount"),
        highest=agg.max("amount"),
        deviation=agg.stddev("amount"),
        name="spread",
    )
    return found.select("currency", "lowest", "highest", "round(deviation, 6) AS deviation")


def share_of_large(orders: Stage) -> Stage:
    """The share of orders above 100 in each hour."""
    hourly = orders.window(windows.tumbling("1 hour"))
    counts = hourly.aggregate(n=agg.count(), large=agg.count_if("amount > 100"), name="large")
    return counts.select("large / n AS share")


def sums_side_by_side(orders: Stage) -> Stage:
    """A column for each currency (pivot)."""
    hourly = orders.group_by("user").window(windows.tumbling("1 hour"))
    return hourly.aggregate(
        dollars=agg.sum("amount", where="currency = 'USD'"),
        pounds=agg.sum("amount", where="currency = 'GBP'"),
        name="sums_side_by_side",
    )


def any_and_all(orders: Stage) -> Stage:
    """Whether any order of the hour, and whether each of them, is above a limit."""
    hourly = orders.group_by("user").window(windows.tumbling("1 hour"))
    return hourly.aggregate(
        some=agg.bool_or("amount > 150"), each=agg.bool_and("amount > 50"), name="any_and_all"
    )


def busy_hours(clicks: Stage) -> Stage:
    """Hours of a user with more than four clicks."""
    hourly = clicks.group_by("user").window(windows.tumbling("1 hour"))
    return hourly.aggregate(n=agg.count(), name="clicks_per_hour").filter("n > 4")


def largest_three(orders: Stage) -> Stage:
    """The three largest amounts of each hour."""
    hourly = orders.window(windows.tumbling("1 hour"))
    found = hourly.aggregate(top=agg.top_n(3, "amount"), name="largest_three")
    return found.select("array_join(top, ' ') AS top")


def pages_of_visit(clicks: Stage) -> Stage:
    """The pages of each visit."""
    visits = clicks.group_by("user").window(windows.session("30 minutes"))
    found = visits.aggregate(pages=agg.collect_set("page"), name="pages_of_visit")
    return found.select("user", "array_join(pages, '') AS pages")


def cleaned(orders: Stage) -> Stage:
    """Columns renamed and computed, rows filtered: no state."""
    return orders.filter("amount > 9").select("upper(order_id) AS id", "amount / 100 AS units")


def sampled(orders: Stage) -> Stage:
    """A quarter of the orders, always the same ones."""
    return orders.filter("cast(substring(order_id, 2) AS int) % 4 = 0").select("order_id")


def with_city(orders: Stage, customers: Table) -> Stage:
    """Orders with the customer's city from a table; null where the table has none."""
    return orders.enrich(customers, on="user", name="with_city").select("order_id", "city")


def of_customers(orders: Stage, customers: Table) -> Stage:
    """Orders of users that the table has."""
    found = orders.enrich(customers, on="user", how="semi", name="of_customers")
    return found.select("order_id")


def of_strangers(orders: Stage, customers: Table) -> Stage:
    """Orders of users that the table does not have."""
    found = orders.enrich(customers, on="user", how="anti", name="of_strangers")
    return found.select("order_id")


def paid_or_not(orders: Stage, payments: Stage) -> Stage:
    """Each order, with its payment if that comes within an hour."""
    found = orders.join(
        payments, on="order_id", between=("0 s", "1 hour"), how="left", name="paid_or_not"
    )
    return found.select("order_id", "paid")


def with_payment(orders: Stage, payments: Stage) -> Stage:
    """Orders that are paid within an hour, without the payment's columns."""
    found = orders.join(
        payments, on="order_id", between=("0 s", "1 hour"), how="semi", name="with_payment"
    )
    return found.select("order_id")


def clicks_before_order(orders: Stage, clicks: Stage) -> Stage:
    """Each click of the user in the ten minutes before an order."""
    found = orders.join(
        clicks, on="user", between=("-10 minutes", "0 s"), name="clicks_before_order"
    )
    return found.select("order_id", "page")


def all_events(clicks: Stage, orders: Stage) -> Stage:
    """Two streams as one, counted by kind and hour."""
    both = clicks.select("at", "'click' AS kind").merge(orders.select("at", "'order' AS kind"))
    hourly = both.group_by("kind").window(windows.tumbling("1 hour"))
    return hourly.aggregate(n=agg.count(), name="all_events")


def gaps(clicks: Stage) -> Stage:
    """Breaks of a user: more than half an hour between two clicks."""
    before = clicks.group_by("user").running(before="lag(at)", name="gaps")
    return before.filter("at - before > 1800000").select("user", "before", "at")


def records(orders: Stage) -> Stage:
    """Orders that are larger than each one of the user before them."""
    highest = orders.group_by("user").running(highest="max(amount)", n="count(*)", name="records")
    return highest.filter("n > 1 AND amount = highest").select("user", "order_id")


def first_order(orders: Stage) -> Stage:
    """The first order of a user within a day."""
    return orders.deduplicate(on="user", within="1 day", name="first_order")


def gallery(customers_path: str = "/tables/customers.json") -> Pipeline:
    p = Pipeline("first_weeks")

    def read(name: str, schema: str) -> Stage:
        source = sources.files(f"/in/{name}", format="json", schema=schema)
        return p.read_from(source, name=name).with_timestamps("at", allowed_lag="10 minutes")

    clicks, orders = read("clicks", CLICKS), read("orders", ORDERS)
    payments = read("payments", PAYMENTS)
    customers = tables.files(customers_path, format="json", schema=CUSTOMERS)
    stages = {
        "page_views": page_views(clicks),
        "visitors": visitors(clicks),
        "moving_average": moving_average(orders),
        "spread": spread(orders),
        "share_of_large": share_of_large(orders),
        "sums_side_by_side": sums_side_by_side(orders),
        "any_and_all": any_and_all(orders),
        "busy_hours": busy_hours(clicks),
        "largest_three": largest_three(orders),
        "pages_of_visit": pages_of_visit(clicks),
        "cleaned": cleaned(orders),
        "sampled": sampled(orders),
        "with_city": with_city(orders, customers),
        "of_customers": of_customers(orders, customers),
        "of_strangers": of_strangers(orders, customers),
        "paid_or_not": paid_or_not(orders, payments),
        "with_payment": with_payment(orders, payments),
        "clicks_before_order": clicks_before_order(orders, clicks),
        "all_events": all_events(clicks, orders),
        "gaps": gaps(clicks),
        "records": records(orders),
        "first_order": first_order(orders),
    }
    for name, stage in stages.items():
        stage.write_to(sinks.files(f"/out/{name}", format="json"), name=f"{name}_out")
    return p

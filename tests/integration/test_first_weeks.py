"""docs/examples/first_weeks.py: every job in one pipeline of many epochs, compared with DuckDB."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import JobConfig
from dagster_jet.testing import run_pipeline

from .recipe_rows import Row, asked, of, streams

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))

import first_weeks

CUSTOMERS = [{"user": "ann", "city": "Bern"}, {"user": "bob", "city": "Oslo"}]
HOURLY = 'group by "user", ts // 3600000'
WITHIN_AN_HOUR = "payments.ts - orders.ts between 0 and 3600000"
SQL = {
    "page_views": ("page n", "select page, count(*) from clicks group by page, ts // 600000"),
    "visitors": (
        "n users",
        'select count(*), count(distinct "user") from clicks group by ts // 3600000',
    ),
    "moving_average": (
        "currency mean",
        "select currency, avg(amount) from (select *, unnest([ts // 1800000, ts // 1800000 + 1]) "
        "as part from orders) group by currency, part",
    ),
    "spread": (
        "currency lowest highest deviation",
        "select currency, min(amount), max(amount), round(stddev_samp(amount), 6) from orders "
        "group by currency, ts // 3600000",
    ),
    "share_of_large": (
        "share",
        "select count(*) filter (where amount > 100) / count(*) from orders group by ts // 3600000",
    ),
    "sums_side_by_side": (
        "user dollars pounds",
        "select \"user\", sum(amount) filter (where currency = 'USD')::bigint, "
        f"sum(amount) filter (where currency = 'GBP')::bigint from orders {HOURLY}",
    ),
    "any_and_all": (
        "user some each",
        f'select "user", bool_or(amount > 150), bool_and(amount > 50) from orders {HOURLY}',
    ),
    "busy_hours": (
        "user n",
        f'select "user", count(*) from clicks {HOURLY} having count(*) > 4',
    ),
    "largest_three": (
        "top",
        "select array_to_string(max(amount, 3), ' ') from orders group by ts // 3600000",
    ),
    "pages_of_visit": (
        "user pages",
        "select \"user\", string_agg(distinct page, '' order by page) from (select *, sum(begins) "
        'over (partition by "user" order by ts) as visit from (select *, '
        '(coalesce(ts - lag(ts) over (partition by "user" order by ts), 9e9) >= 1800000)::int '
        'as begins from clicks)) group by "user", visit',
    ),
    "cleaned": (
        "id units",
        "select upper(order_id), amount / 100 from orders where amount > 9",
    ),
    "sampled": ("order_id", "select order_id from orders where order_id[2:]::int % 4 = 0"),
    "with_city": (
        "order_id city",
        'select order_id, city from orders left join customers using ("user")',
    ),
    "of_customers": (
        "order_id",
        'select order_id from orders semi join customers using ("user")',
    ),
    "of_strangers": (
        "order_id",
        'select order_id from orders anti join customers using ("user")',
    ),
    "paid_or_not": (
        "order_id paid",
        "select orders.order_id, paid from orders left join payments "
        f"on orders.order_id = payments.order_id and {WITHIN_AN_HOUR}",
    ),
    "with_payment": (
        "order_id",
        "select orders.order_id from orders semi join payments "
        f"on orders.order_id = payments.order_id and {WITHIN_AN_HOUR}",
    ),
    "clicks_before_order": (
        "order_id page",
        'select order_id, page from orders join clicks using ("user") '
        "where orders.ts - clicks.ts between 0 and 600000",
    ),
    "all_events": (
        "kind n",
        "select kind, count(*) from (select ts, 'click' as kind from clicks union all "
        "select ts, 'order' from orders) group by kind, ts // 3600000",
    ),
    "gaps": (
        "user before at",
        'select * from (select "user", lag(ts) over (partition by "user" order by ts) as before, '
        "ts from clicks) where ts - before > 1800000",
    ),
    "records": (
        "user order_id",
        'select "user", order_id from (select *, max(amount) over (partition by "user" order by ts '
        "rows between unbounded preceding and 1 preceding) as before from orders) "
        "where amount > before",
    ),
    "first_order": (
        "user order_id",
        'select "user", arg_min(order_id, ts) from orders group by "user"',
    ),
}


@pytest.fixture(scope="module")
def given() -> dict[str, list[Row]]:
    rows = streams()
    return {name: rows[name] for name in ("clicks", "orders", "payments")}


@pytest.fixture(scope="module")
def found(
    given: dict[str, list[Row]], spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Row]]:
    customers = tmp_path_factory.mktemp("tables") / "customers.json"
    customers.write_text("".join(f"{json.dumps(row)}\n" for row in CUSTOMERS), "utf-8")
    config = JobConfig(max_items_per_epoch=50, parallelism=3)
    return run_pipeline(first_weeks.gallery(str(customers)), given, config=config)


@pytest.mark.parametrize("name", SQL)
def test_a_job_gives_what_a_query_over_all_rows_gives(
    given: dict[str, list[Row]], found: dict[str, list[Row]], name: str
) -> None:
    columns, query = SQL[name]
    rows = of(found[f"{name}_out"], columns)
    assert rows and rows == asked({**given, "customers": CUSTOMERS}, query)

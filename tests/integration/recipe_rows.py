"""Rows that the recipes read, and DuckDB's answer over all of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import duckdb
import pyarrow as pa

Row = dict[str, Any]
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def streams() -> dict[str, list[Row]]:
    """Eight hours, a few minutes out of order; no two rows of one stream at one time."""
    rng = random.Random("recipes")

    def times(count: int) -> list[int]:
        ordered = sorted(DAY + t for t in rng.sample(range(8 * HOUR), count))
        return sorted(ordered, key=lambda at: at + rng.randrange(9 * MINUTE))

    users, pages, currencies = ("ann", "bob", "cid"), ("a", "b", "c"), ("USD", "GBP")
    clicks = [{"user": rng.choice(users), "page": rng.choice(pages), "at": at} for at in times(90)]
    orders = [
        {
            "order_id": f"o{n}",
            "user": rng.choice(users),
            "currency": rng.choice(currencies),
            "amount": 100 * rng.randrange(3) + n,
            "at": at,
        }
        for n, at in enumerate(times(40))
    ]
    payments = [
        {"order_id": o["order_id"], "paid": o["amount"], "at": o["at"] + rng.randrange(2 * HOUR)}
        for o in orders
        if rng.random() < 0.8
    ]
    payments.sort(key=lambda row: row["at"])
    rates = [
        {"currency": rng.choice(currencies), "rate": rng.randrange(2, 9), "at": at}
        for at in times(20)
    ]
    late = sorted(orders * 8, key=lambda row: row["at"] + rng.randrange(3 * HOUR))
    rules = [{"rule": rng.choice(users), "above": rng.randrange(200), "at": at} for at in times(20)]
    given = {"clicks": clicks, "orders": orders, "payments": payments, "rates": rates}
    odd = {"user": "eve", "page": "a", "at": 4_070_908_800_000}  # 2099
    return {**given, "late_orders": late, "rules": rules, "phones": [*clicks[:9], odd, *clicks[9:]]}


def asked(given: dict[str, list[Row]], query: str) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as database:
        for name, rows in given.items():
            table = pa.Table.from_pylist(rows)  # "at" is a word of its own in SQL
            names = ["ts" if column == "at" else column for column in table.column_names]
            database.register(name, table.rename_columns(names))
        return Counter(database.execute(query).fetchall())


def of(rows: Iterable[Row], columns: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in columns.split()) for row in rows)

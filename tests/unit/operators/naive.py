"""Every aggregate worked out from the events of a group, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dagster_jet.pipeline import aggregates as agg

from .stage import as_float

Event = tuple[Any, int, Any]


def values(events: list[Event]) -> list[int]:
    return [v for _, _, v in events if v is not None]


def floats(events: list[Event]) -> list[float]:
    return [as_float(v) for v in values(events)]


def by_nan(x: float) -> tuple[bool, float]:
    """Sort key: NaN is greater than any number."""
    return (math.isnan(x), 0.0 if math.isnan(x) else x)


def timed(events: list[Event]) -> list[tuple[int, int]]:
    return sorted((t, v) for _, t, v in events if v is not None)


def texts(events: list[Event]) -> list[str]:
    return [str(v) for v in values(events)]


def _add(accumulator: dict[str, int], row: dict[str, Any]) -> dict[str, int]:
    accumulator["rows"] += 1
    accumulator["product"] = accumulator["product"] * ((row["v"] or 1) or 1) % 1_000_003
    return accumulator


def _put_together(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    return {"rows": a["rows"] + b["rows"], "product": a["product"] * b["product"] % 1_000_003}


def _product(events: list[Event]) -> str:
    product = 1
    for value in values(events):
        product = product * (value or 1) % 1_000_003
    return f"{len(events)}:{product}"


def product_kept_as(state_format: str) -> agg.Aggregate:
    return agg.custom(
        lambda: {"rows": 0, "product": 1},
        _add,
        _put_together,
        lambda a: f"{a['rows']}:{a['product']}",
        columns=["v"],
        result_type="string",
        state_format=state_format,
    )


AGGREGATES: dict[str, tuple[agg.Aggregate, Callable[[list[Event]], Any]]] = {
    "n": (agg.count(), len),
    "nv": (agg.count("v"), lambda e: len(values(e))),
    "total": (agg.sum("v"), lambda e: sum(values(e)) if values(e) else None),
    "mean": (agg.mean("v"), lambda e: sum(values(e)) / len(values(e)) if values(e) else None),
    "low": (agg.min("x"), lambda e: min(floats(e), key=by_nan, default=None)),
    "high": (agg.max("x"), lambda e: max(floats(e), key=by_nan, default=None)),
    "lowest_text": (agg.min("s"), lambda e: min(texts(e), default=None)),
    "distinct": (agg.count_distinct("s"), lambda e: len(set(values(e)))),
    "about": (agg.approx_count_distinct("s"), lambda e: len(set(values(e)))),
    "first": (agg.first("v"), lambda e: timed(e)[0][1] if timed(e) else None),
    "last": (agg.last("v"), lambda e: timed(e)[-1][1] if timed(e) else None),
    "top": (agg.top_n(2, "v"), lambda e: sorted(values(e), reverse=True)[:2]),
    "top_by": (
        agg.top_n(3, "s", by="x"),
        lambda e: [
            s
            for _, s in sorted(((by_nan(as_float(v)), str(v)) for v in values(e)), reverse=True)[:3]
        ],
    ),
    "least": (agg.top_n(2, "x", smallest=True), lambda e: sorted(floats(e), key=by_nan)[:2]),
    "list": (agg.collect_list("v"), lambda e: [v for _, v in timed(e)]),
    # Few values: the sketch holds them all, and is exact.
    "median": (
        agg.quantile("v", 0.5),
        lambda e: (
            float(sorted(values(e))[math.ceil(len(values(e)) / 2) - 1]) if values(e) else None
        ),
    ),
    "product": (product_kept_as("plain"), _product),
}


def definitions(*names: str) -> dict[str, agg.Aggregate]:
    return {name: AGGREGATES[name][0] for name in names or AGGREGATES}


def expected(events: list[Event], *names: str) -> dict[str, Any]:
    return {name: AGGREGATES[name][1](events) for name in names or AGGREGATES}


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """NaN is equal to itself."""
    return {name: repr(value) for name, value in row.items()}

"""Every aggregate worked out from the events of a group, in plain Python."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from dagster_jet.pipeline import aggregates as agg

from .stage import as_float, derived

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


def decimals(events: list[Event]) -> list[Decimal]:
    return [derived(v)["d"].quantize(Decimal("0.01")) for v in values(events)]


def row_of(value: int | None) -> dict[str, Any] | None:
    return None if value is None else derived(value)["r"]


def rows_by_time(events: list[Event]) -> list[tuple[Any, dict[str, Any]]]:
    """Null is the smallest value."""
    return sorted(
        (((t, v is not None, v or 0), derived(v)["r"]) for _, t, v in events), key=lambda e: e[0]
    )


def lists_by_time(events: list[Event]) -> list[list[float | None]]:
    def rank(event: Event) -> Any:
        elements = derived(event[2])["l"]
        return event[1], [(x is not None, by_nan(x or 0.0)) for x in elements]

    return [derived(e[2])["l"] for e in sorted((e for e in events if e[2] is not None), key=rank)]


def ranked(events: list[Event]) -> list[tuple[tuple[bool, float], str]]:
    return [(by_nan(as_float(v)), str(v)) for v in values(events)]


def distinct(numbers: list[float]) -> list[float]:
    return list({by_nan(x): x for x in numbers}.values())


def most_frequent(found: list[Any]) -> Any:
    counts: dict[Any, int] = defaultdict(int)
    for value in found:
        counts[by_nan(value) if isinstance(value, float) else value] += 1
    most = [key for key, count in counts.items() if count == max(counts.values())]
    best = min(most, default=None)
    if isinstance(best, tuple):
        return math.nan if best[0] else best[1]
    return best


def spread(numbers: Sequence[float]) -> float | None:
    """Sample variance."""
    if len(numbers) < 2:
        return None
    return math.nan if any(map(math.isnan, numbers)) else statistics.variance(map(float, numbers))


def root(number: float | None) -> float | None:
    return None if number is None else math.sqrt(number)


def correlated(pairs: list[tuple[int, int]]) -> float | None:
    if len(pairs) < 2 or any(len(set(column)) == 1 for column in zip(*pairs, strict=True)):
        return None
    return statistics.correlation(*zip(*pairs, strict=True))


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
    "last_row": (agg.last("r"), lambda e: rows_by_time(e)[-1][1] if e else None),
    "first_list": (agg.first("l"), lambda e: lists_by_time(e)[0] if values(e) else None),
    "min_by": (agg.min_by("r", "d"), lambda e: row_of(min(values(e), default=None))),
    "max_by": (agg.max_by("s", "x"), lambda e: max(ranked(e))[1] if values(e) else None),
    "all": (agg.bool_and("b"), lambda e: all(v > 3 for v in values(e)) if values(e) else None),
    "any": (agg.bool_or("b"), lambda e: any(v > 3 for v in values(e)) if values(e) else None),
    "set": (agg.collect_set("x"), lambda e: sorted(distinct(floats(e)), key=by_nan)),
    "set_of_decimals": (agg.collect_set("d"), lambda e: sorted(set(decimals(e)))),
    "mode": (agg.mode("s"), lambda e: most_frequent(texts(e))),
    "mode_of_floats": (agg.mode("x"), lambda e: most_frequent(floats(e))),
    "variance": (agg.variance("d"), lambda e: spread([float(d) for d in decimals(e)])),
    "stddev": (agg.stddev("v"), lambda e: root(spread(values(e)))),
    "variance_with_nan": (agg.variance("x"), lambda e: spread(floats(e))),
    "corr": (agg.corr("v", "t"), lambda e: correlated([(v, t) for _, t, v in e if v is not None])),
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


ROUNDED = ("variance", "stddev", "variance_with_nan", "corr")


def definitions(*names: str) -> dict[str, agg.Aggregate]:
    return {name: AGGREGATES[name][0] for name in names or AGGREGATES}


def expected(events: list[Event], *names: str) -> dict[str, Any]:
    return {name: AGGREGATES[name][1](events) for name in names or AGGREGATES}


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """NaN is equal to itself, and the last digits of a rounded number are not compared."""
    return {
        name: f"{value:.10g}" if name in ROUNDED and value is not None else repr(value)
        for name, value in row.items()
    }

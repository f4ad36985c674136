"""Traversal of Spark's logical plans, which are Java objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def children(plan: Any) -> Iterator[Any]:
    """Yields child plans, including those of subqueries."""
    for of_one_kind in (plan.children(), plan.subqueries()):
        for place in range(of_one_kind.size()):
            yield of_one_kind.apply(place)


def leaves(plan: Any) -> Iterator[Any]:
    """Yields the leaves, from which the plan's rows come."""
    below = list(children(plan))
    if not below:
        yield plan
    for child in below:
        yield from leaves(child)

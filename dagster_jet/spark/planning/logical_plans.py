"""Ways through Spark's logical plans, which are the JVM's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def children(plan: Any) -> Iterator[Any]:
    """Those of subqueries, too."""
    for of_one_kind in (plan.children(), plan.subqueries()):
        for place in range(of_one_kind.size()):
            yield of_one_kind.apply(place)


def leaves(plan: Any) -> Iterator[Any]:
    """Where its rows come from."""
    below = list(children(plan))
    if not below:
        yield plan
    for child in below:
        yield from leaves(child)

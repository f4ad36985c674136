"""Computation of each aggregate: its partials and its finalizer."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from dagster_jet.core.aggregate import (
    RESULT_TYPES,
    Aggregate,
    Correlation,
    CustomAggregate,
    DistinctSketch,
    ExtremeBy,
    Quantile,
    SimpleAggregate,
    SimpleKind,
    TopN,
)
from dagster_jet.operators.aggregates.finalizers import (
    Correlated,
    Counted,
    CustomFinish,
    DistinctEstimate,
    Finish,
    InOrder,
    Itself,
    Length,
    ListOfValues,
    MostFrequent,
    QuantileEstimate,
    Quotient,
    Spread,
    Truth,
    ValueOf,
)
from dagster_jet.operators.partials.accumulator import Accumulator
from dagster_jet.operators.partials.extremes import ExtremeByRank
from dagster_jet.operators.partials.lists import (
    AllValues,
    DistinctValues,
    TopValues,
    ValueCounts,
)
from dagster_jet.operators.partials.moments import Moments
from dagster_jet.operators.partials.numbers import Count, Maximum, Minimum, Sum
from dagster_jet.operators.partials.partial import Partial
from dagster_jet.operators.partials.sketches import HllSketch, KllSketch


@dataclass(frozen=True)
class Computation:
    """Partial columns of an aggregate, and the finalizer of its result."""

    partials: tuple[Partial, ...]
    finish: Finish


def computation(aggregate: Aggregate) -> Computation:
    """Returns the computation of `aggregate`. Aggregates with equal partials share them."""
    match aggregate:
        case SimpleAggregate(column, SimpleKind.COUNT):
            return Computation((Count(column),), Counted())
        case SimpleAggregate(str(column), kind):
            return _of_column(column, kind)
        case DistinctSketch(str(column), lg_k):
            hll = HllSketch(column, lg_k)
            return Computation((hll,), DistinctEstimate(hll))
        case Quantile(str(column), fraction, k):
            kll = KllSketch(column, k)
            return Computation((kll,), QuantileEstimate(kll, fraction))
        case ExtremeBy(str(column), rank, greatest):
            return Computation((ExtremeByRank(column, greatest, rank),), ValueOf())
        case Correlation(str(column), other):
            return Computation((Moments(column, other),), Correlated())
        case TopN(str(column), rank, n, smallest):
            values = TopValues(column, rank, n, smallest)
            return Computation((values,), ListOfValues(by_time=False))
        case CustomAggregate():
            return _custom(aggregate)
    raise TypeError(f"no computation for {aggregate!r}")


def _of_column(column: str, kind: SimpleKind) -> Computation:
    moments = Moments(column, column)
    match kind:
        case SimpleKind.SUM:
            return Computation((Sum(column),), Itself())
        case SimpleKind.MEAN:
            return Computation((Sum(column), Count(column)), Quotient())
        case SimpleKind.MIN:
            return Computation((Minimum(column),), Itself())
        case SimpleKind.MAX:
            return Computation((Maximum(column),), Itself())
        case SimpleKind.COUNT_DISTINCT:
            return Computation((DistinctValues(column),), Length())
        case SimpleKind.FIRST:
            return Computation((ExtremeByRank(column, greatest=False),), ValueOf())
        case SimpleKind.LAST:
            return Computation((ExtremeByRank(column, greatest=True),), ValueOf())
        case SimpleKind.COLLECT_LIST:
            return Computation((AllValues(column),), ListOfValues(by_time=True))
        case SimpleKind.COLLECT_SET:
            return Computation((DistinctValues(column),), InOrder())
        case SimpleKind.MODE:
            return Computation((ValueCounts(column),), MostFrequent())
        case SimpleKind.BOOL_AND:
            return Computation((Minimum(column),), Truth())
        case SimpleKind.BOOL_OR:
            return Computation((Maximum(column),), Truth())
        case SimpleKind.STDDEV:
            return Computation((moments,), Spread(is_root=True))
        case SimpleKind.VARIANCE:
            return Computation((moments,), Spread(is_root=False))
        case SimpleKind.COUNT:
            return Computation((Count(column),), Counted())


def _custom(aggregate: CustomAggregate) -> Computation:
    accumulator = Accumulator(
        aggregate.columns,
        aggregate.create,
        aggregate.accumulate,
        aggregate.combine,
        aggregate.saved_as,
    )
    kind = aggregate.result_type
    if isinstance(kind, str):
        kind = _ARROW_TYPES[kind]
    return Computation((accumulator,), CustomFinish(aggregate.finish, kind, aggregate.saved_as))


_ARROW_TYPES = dict(
    zip(
        RESULT_TYPES,
        (
            pa.bool_(),
            pa.int32(),
            pa.int64(),
            pa.float64(),
            pa.string(),
            pa.binary(),
            pa.date32(),
            pa.timestamp("us", tz="UTC"),
        ),
        strict=True,
    )
)

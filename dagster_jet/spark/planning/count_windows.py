"""Windows by count: Python receives the keys, the event time, and the inputs of the aggregates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dagster_jet.core.ddl import quoted_name
from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.count_windows import CountWindows
from dagster_jet.operators.sliding_count_windows import SlidingCountWindows
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches
from dagster_jet.spark.planning.operator_plan import OperatorPlan, Partitions, arrow_schema
from dagster_jet.spark.planning.rows import map_plan
from dagster_jet.spark.plans.row_by_row import check_row_by_row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_jet.pipeline.stateful import CountWindowNode


def plan_count_windows(
    node: CountWindowNode, source: DataFrame, partitions: Partitions
) -> OperatorPlan:
    """Each `size` rows of a key, or the last `size` of each `slide` rows.

    Raises:
        PipelineError: the value of an expression depends on the epoch and its tasks.
    """
    time = None if node.time is None else node.time.column
    texts = [text for _, aggregate in node.aggregates for text in aggregate.inputs]
    names = list(dict.fromkeys([*node.keys, *([] if time is None else [time]), *texts]))
    there = set(source.columns)
    columns = [F.expr(quoted_name(n) if n in there else n).alias(n) for n in names]
    computed = [column for n, column in zip(names, columns, strict=True) if n not in there]

    def with_inputs(frame: DataFrame) -> DataFrame:
        return frame.select("*", *computed) if computed else frame

    given = with_inputs(source)
    if computed:
        check_row_by_row(None, None, source, given)
    rows = arrow_schema(given.select(*(F.col(quoted_name(n)) for n in names)).schema)
    function = CountWindows(node.keys, node.size, Aggregation(node.aggregates), time)
    if node.slide is not None:
        function = SlidingCountWindows(
            node.keys, node.size, Aggregation(node.aggregates), time, slide=node.slide
        )
    inner = StatefulMapInBatches(
        stage=node.name,
        keys=node.keys,
        row_schema=rows,
        output_schema=function.output_schema(rows),
        state_columns=function.state_columns(rows),
        function=function,
        on_end=function.rest if node.rest == "emit" else None,
    )
    plan = map_plan(inner, node, given, partitions, names)
    (shape,) = plan.shapes
    return replace(plan, shapes=(lambda frame: shape(with_inputs(frame)),))

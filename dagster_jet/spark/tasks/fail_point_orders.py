"""Passes the fail points of tasks (`system/failpoint.py`) along with the Spark job.

Passing them in the environment of the workers would need another daemon, with all its imports, for
each driver of a crash test in the same JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_jet.system import failpoint

if TYPE_CHECKING:
    from pyspark import SparkContext

_PROPERTY = "dagster_jet.fail_points"
_handed_on = False


def hand_on(context: SparkContext) -> None:
    """Passes the orders to the tasks of jobs that this thread starts next."""
    global _handed_on
    orders = failpoint.for_tasks()
    if orders is not None or _handed_on:
        text = None if orders is None else orders.to_json()
        context.setLocalProperty(_PROPERTY, text)  # type: ignore[arg-type]  # None: no longer
        _handed_on = True


def obey() -> None:
    """Applies the driver's orders in this task; does nothing in production or outside of tasks."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None:
        text = context.getLocalProperty(_PROPERTY)
        failpoint.obey(None if text is None else failpoint.Orders.from_json(text))
        failpoint.task_attempt = context.attemptNumber() + 1

"""Reads what `DataFrame.observe` counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Counters:
    """Spark's counts of the last run of a frame.

    Read from the plan: `pyspark.sql.Observation` uses a listener and sees only the first run.
    """

    def __init__(self, action: DataFrame) -> None:
        self._metrics = action._jdf.queryExecution().observedMetrics()

    def count(self, name: str) -> int:
        """The value of a counter with one number."""
        (text,) = self.texts(name)
        assert text is not None, "a count is of no rows, not nothing"
        return int(text)

    def texts(self, name: str) -> list[str | None]:
        """Values, read by one call into the JVM. None of them contains a comma."""
        values = self._metrics.apply(name).mkString(",").split(",")
        return [None if value == "null" else value for value in values]

"""The running totals for the peer's `transformWithState`; imports Spark, so only when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle


class RunningTotals(StatefulProcessor):
    """Row by row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._totals = handle.getValueState("totals", "n bigint, total bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        count, total = self._totals.get() or (0, 0)
        for row in rows:
            count, total = count + 1, total + row.v
            yield Row(k=row.k, n=count, total=total)
        self._totals.update((count, total))


class RunningTotalsInPandas(RunningTotals):
    """Whole columns at once."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        count, total = self._totals.get() or (0, 0)
        for part in rows:
            sums = total + part["v"].cumsum()
            numbers = range(count + 1, count + len(part) + 1)
            yield pd.DataFrame({"k": key[0], "n": numbers, "total": sums})
            count, total = count + len(part), int(sums.iloc[-1])
        self._totals.update((count, total))

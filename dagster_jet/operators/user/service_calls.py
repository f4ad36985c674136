"""Calls a user's function with a service and tables of rows, several at once if wanted.

    ServiceCalls(ServiceFactory("orders", "scored", create=load), score, schema)(batches)

Results come in the order of the rows. A call that raises is repeated up to `retries` times, after
growing pauses. If it fails for good, the service is closed, and nothing of the epoch counts.

At-least-once: a task may run twice, and an epoch that is not decided runs again, so calls are made
again. The results that are committed are those of one of them, for each row.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from dagster_jet.core.measures import Measures
from dagster_jet.errors import JetError, Reaction, UserFunctionError, where_raised
from dagster_jet.operators.user import services
from dagster_jet.operators.user.batch_calls import Returned, name_of
from dagster_jet.operators.user.dead_letters import row_at
from dagster_jet.system.backoff import attempts
from dagster_jet.system.transient import is_transient

_PAUSE_S, _PAUSE_MAX_S = 0.2, 10.0
"""Bounds of the first pause before a retry, and of all pauses."""
_ROW_CHARACTERS_MAX = 500

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class ServiceCalls:
    """A task's function from record batches to record batches."""

    factory: services.ServiceFactory
    function: Callable[[Any, pa.Table], Any]
    """(service, rows) -> a table in `output_schema`, or None for no rows."""
    output_schema: pa.Schema
    batch_rows: int = 1_000
    concurrency: int = 1
    retries: int = 0
    count: Callable[[Measures], None] | None = None
    """Receives the metrics of the task at its end."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        total = self.factory.metrics()
        try:
            for result, counted in in_order(self._result, self._tables(batches), self.concurrency):
                total.include(counted)
                yield from result.combine_chunks().to_batches()
            if self.count is not None and total.totals:
                self.count(total.totals)
        except Exception:
            services.discard(self.factory)
            raise

    def _tables(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, pa.Table]]:
        """Yields the rows in tables of `batch_rows` rows at most, with the service."""
        for batch in batches:
            table = pa.Table.from_batches([batch])
            for start in range(0, table.num_rows, self.batch_rows):
                yield self._service(), table.slice(start, self.batch_rows)

    def _service(self) -> Any:
        try:
            return services.opened(self.factory)
        except Exception as error:
            raise self._failure(error, self.factory.create, "") from error

    def _result(self, given: tuple[Any, pa.Table]) -> tuple[pa.Table, Measures]:
        """The results of one call, and what it has counted; a call that failed counts nothing."""
        service, table = given
        failed: Exception | None = None
        for _ in attempts(self.retries + 1, base_s=_PAUSE_S, cap_s=_PAUSE_MAX_S, budget_s=math.inf):
            try:
                with self.factory.context().entered() as context:
                    returned = self.function(service, table)
                    context.metrics.end()
                break
            except JetError:
                raise
            except Exception as error:  # noqa: BLE001 - of any client
                failed = error
        else:
            assert failed is not None
            raise self._failure(failed, self.function, self._given(table)) from failed
        checked = Returned(self.function, self.factory.stage)
        table = checked.table(returned, self.output_schema, "results", "output_schema")
        return table, context.metrics.totals

    def _given(self, table: pa.Table) -> str:
        tried = f" {self.retries + 1} times" if self.retries else ""
        row = row_at(table, 0)
        return (
            f" It was given{tried} {table.num_rows} rows; the first: {row:.{_ROW_CHARACTERS_MAX}}."
        )

    def _failure(self, error: Exception, function: Callable[..., Any], given: str) -> JetError:
        if isinstance(error, JetError):
            return error
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        text = f"{where_raised(error)}{name_of(function)} raised {said}.{given}"
        is_passing = isinstance(error, OSError) and is_transient(error)
        failure = UserFunctionError(
            " ".join(text.splitlines()),
            stage=self.factory.stage,
            cure="The job restarts from its last snapshot and calls again."
            if is_passing
            else "Correct the function or the service; nothing of this epoch was written.",
        )
        if is_passing:
            failure.reaction = Reaction.RESTART
        return failure


def in_order(function: Callable[[T], R], items: Iterable[T], concurrency: int) -> Iterator[R]:
    """Yields the results in the order of the items; calls `concurrency` of them at once.

    The first error ends it, once the calls that are running have returned. Items are taken from the
    iterator by the calling thread, as they are needed.
    """
    if concurrency == 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(concurrency)
    running: deque[Future[R]] = deque()
    try:
        for item in items:
            if len(running) == concurrency:
                yield running.popleft().result()
            running.append(pool.submit(function, item))
        while running:
            yield running.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)

"""Operations on single rows, and on streams as wholes: no state is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar, get_args

from dagster_jet.contract import Table
from dagster_jet.core.durations import Duration, to_ms
from dagster_jet.errors import PipelineError
from dagster_jet.operators.user.services import ServiceFactory
from dagster_jet.pipeline.checks import columns_of, names_a_moment
from dagster_jet.pipeline.graph import EnrichNode, MergeNode, Node, TransformNode
from dagster_jet.pipeline.point import Point
from dagster_jet.pipeline.service_map import ServiceMap
from dagster_jet.pipeline.user_functions import ServiceFunction, V

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EnrichHow: TypeAlias = Literal["left", "inner", "semi", "anti"]
Duplicates: TypeAlias = Literal["refuse", "multiply"]
StageT = TypeVar("StageT", bound=Point)
"""Type of the resulting stage."""


class Stateless(Point, Generic[StageT]):
    """A stage with the operations that keep no state."""

    def _append(self, node: Node) -> StageT:
        """Adds a node and returns the stage after it; the event time stays."""
        raise NotImplementedError

    def transform(
        self,
        function: Callable[[DataFrame], DataFrame],
        *,
        name: str | None = None,
        per_epoch: bool = False,
    ) -> StageT:
        """Applies a stateless function from DataFrame to DataFrame.

        The function receives the rows of one epoch, and epoch boundaries are arbitrary. So a
        function that combines several rows (`groupBy`, `dropDuplicates`, `limit`, windows, sorts, a
        self-join) is refused when the job starts; the error names the stage to use instead.

        Args:
            function: called with an empty DataFrame when the job starts, and once per epoch. It
                must always return the same columns; otherwise the job fails.
            name: name of the stage; by default "transform_1" and so on.
            per_epoch: allow combining several rows; the output may then differ between runs.

        Raises:
            PipelineError: the name is taken. At the job's start: the function combines rows.

        Example:
            >>> hours = rows.transform(lambda df: df.withColumn("hour", F.hour("at")))
        """
        name = name or self._builder.fresh("transform")
        return self._append(TransformNode(name, (self._node,), function, per_epoch=per_epoch))

    def filter(self, condition: str | Column, *, name: str | None = None) -> StageT:
        """Keeps the rows for which `condition` is true.

        Args:
            condition: a SQL expression ("delay > 15"), or a Column.
            name: name of the stage; by default "filter_1" and so on.

        Raises:
            PipelineError: the name is taken.

        Example:
            >>> late = rows.filter("delay > 15", name="late")
        """
        name = name or self._builder.fresh("filter")

        def keep(frame: DataFrame) -> DataFrame:
            return frame.where(condition)

        is_constant = not names_a_moment(condition)
        return self._append(TransformNode(name, (self._node,), keep, is_constant=is_constant))

    def split(self, **conditions: str) -> dict[str, StageT]:
        """Divides the stream by conditions: each row goes to the first one that is true for it.

        Args:
            conditions: SQL expressions of single rows, by the name of the part.

        Returns:
            A stage for each part by its name, and "rest" for the rows that meet no condition.

        Raises:
            PipelineError: there is no condition, or a part is named "rest".

        Example:
            >>> parts = rows.split(late="delay > 60", early="delay < 0")
            >>> late, others = parts["late"], parts["rest"]
        """
        if not conditions or _REST in conditions:
            wrong = "split() needs conditions, and no part of it can be named 'rest'."
            raise self._refusal(wrong, 'For example split(late="delay > 60").')
        parts, before = {}, "false"
        for part, condition in {**conditions, _REST: "true"}.items():
            is_true = f"coalesce(({condition}), false)"
            chosen = f"{is_true} and not ({before})"
            parts[part] = self.filter(chosen, name=self._builder.fresh(f"split_{part}"))
            before = f"{before} or {is_true}"
        return parts

    def select(self, *columns: str | Column, name: str | None = None) -> StageT:
        """Replaces the columns of the stream.

        If a later stage needs event time, the event-time column must be among them.

        Args:
            columns: names, SQL expressions ("price * 2 as twice") or Columns.
            name: name of the stage; by default "select_1" and so on.

        Raises:
            PipelineError: the name is taken.

        Example:
            >>> hours = rows.select("origin", "at", "delay / 60 as hours")
        """
        name = name or self._builder.fresh("select")

        def project(frame: DataFrame, *more: str) -> DataFrame:
            from pyspark.sql import functions

            selected = [functions.expr(c) if isinstance(c, str) else c for c in columns]
            return frame.select(*selected, *more)

        is_constant = not any(map(names_a_moment, columns))
        return self._append(
            TransformNode(name, (self._node,), project, is_projection=True, is_constant=is_constant)
        )

    def map_using_service(
        self,
        function: ServiceFunction[V],
        *,
        create: Callable[[], V],
        output_schema: str,
        close: Callable[[V], object] | None = None,
        batch_rows: int = 1_000,
        concurrency: int = 1,
        retries: int = 0,
        name: str | None = None,
    ) -> StageT:
        """Calls `function(service, rows)` for batches of rows, with a service that each worker
        process creates once: a model, or the client of an outside system.

        The results are exactly-once. The calls are not: after a crash, and if Spark repeats a task,
        the same rows may be sent again, in other batches. See docs/operators.md.

        Args:
            function: called with the service and an Arrow table of rows; returns a table with the
                columns of `output_schema`, with any number of rows, or None. A result must depend
                on its row alone.
            create: returns the service; called in the worker process. Let it read secrets there:
                what it closes over is sent to the workers.
            output_schema: DDL of the results. `*` stands for the columns of the stream
                ("*, score double").
            close: called with the service when it is not needed any more. Not called if the process
                is killed.
            batch_rows: largest number of rows in a call.
            concurrency: number of calls at once in each worker process, from as many threads. The
                results keep the order of the rows.
            retries: number of further attempts for a call that raises, after pauses that grow to
                ten seconds. After the last one the job fails, and the error names the first row of
                the batch; after an `OSError` that may pass (refused, timed out) it restarts.
            name: name of the stage; by default "map_using_service_1" and so on.

        Raises:
            PipelineError: the name is taken, or a number is out of range.

        Example:
            >>> def length(model, rows):
            ...     return rows.append_column("n", pc.utf8_length(rows["origin"]))
            >>> scored = rows.map_using_service(
            ...     length, create=dict, output_schema="*, n int", name="scored"
            ... )
        """
        name = name or self._builder.fresh("map_using_service")
        limits = {"batch_rows": (batch_rows, 1), "concurrency": (concurrency, 1)}
        for option, (given, least) in {**limits, "retries": (retries, 0)}.items():
            if given < least:
                wrong = f"{option}={given!r} is less than {least}."
                raise self._refusal(wrong, f"Use {least} or more.", stage=name)
        factory = ServiceFactory(self._builder.job, name, create, close)
        calls = ServiceMap(factory, function, output_schema, batch_rows, concurrency, retries)
        return self._append(TransformNode(name, (self._node,), calls))

    def merge(self, *others: StageT, name: str | None = None) -> StageT:
        """Merges this stream and `others` into one. Columns are matched by name.

        The watermark is the minimum of the streams' watermarks.

        Args:
            others: streams of the same pipeline with the same columns.
            name: name of the stage; by default "merge_1" and so on.

        Raises:
            PipelineError: the streams have different event-time columns, or belong to different
                pipelines. When the job starts: they have different columns.

        Example:
            >>> both = rows.merge(other_rows)
        """
        self._refuse_others(others, name)
        times = {self._time, *(other._time for other in others)}
        if len(times) > 1:
            raise PipelineError(
                f"streams to merge have different event-time columns: {sorted(map(str, times))}.",
                job=self._builder.job,
                cure="Rename the columns before with_timestamps().",
            )
        name = name or self._builder.fresh("merge")
        return self._append(MergeNode(name, (self._node, *(other._node for other in others))))

    def enrich(
        self,
        table: Table,
        *,
        on: str | Sequence[str],
        how: EnrichHow = "left",
        refresh: Duration | None = None,
        name: str | None = None,
        suffix: str = "_right",
        duplicates: Duplicates = "refuse",
    ) -> StageT:
        """Adds the columns of a batch table by key (a hash join).

        Columns: the stream's, then the table's. A table column with a name of a stream column gets
        `suffix`. A table row that does not fit the schema fails the job; so does a CSV file whose
        header differs from the schema.

        Args:
            table: from `dagster_jet.tables`, or a `dagster_jet.contract.Table` of your own.
            on: columns of both sides that must be equal.
            how: "left" keeps rows without a match, "inner" drops them. "semi" and "anti" add no
                columns: they keep the rows whose key is in the table, or those whose key is not.
            refresh: maximum age of the table at the start of an epoch; an older table is read
                again. By default it is read once, when an execution starts. Each row is in the
                output exactly once, with the table's content in the committed epoch.
            name: name of the stage; by default "enrich_1" and so on.
            suffix: suffix of table columns whose names the stream has, too.
            duplicates: treatment of several table rows with one key. "refuse": the job fails when
                the table is read, and the error names the key. "multiply": a row of the stream
                comes out once for each of them.

        Raises:
            PipelineError: `how` or `duplicates` is not valid, or the name is taken.
            ConfigurationError: `refresh` is negative or cannot be read.

        Example:
            >>> named = rows.enrich(tables.files("/dim/airports"), on="origin", refresh="1 hour")
        """
        name = name or self._builder.fresh("enrich")
        for option, (given, known) in {
            "how": (how, get_args(EnrichHow)), "duplicates": (duplicates, get_args(Duplicates))
        }.items():  # fmt: skip
            if given not in known:
                wrong = f"{option}={given!r} is not valid for enrich()."
                raise self._refusal(wrong, f"Use {', '.join(map(repr, known))}.", stage=name)
        keys = columns_of(on)
        every = None if refresh is None else to_ms(refresh, "refresh")
        return self._append(
            EnrichNode(
                name, (self._node,), table, keys, how, every, suffix, duplicates == "multiply"
            )
        )


_REST = "rest"

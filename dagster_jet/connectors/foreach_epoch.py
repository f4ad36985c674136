"""A user's function as a sink: called in phase 2 with the rows of one decided epoch.

Rows are staged in the job's store. Once a snapshot has decided the epoch, the function is called on
the driver with exactly these rows and the epoch's id. Then a marker is put beside the rows, and the
rows are removed. After a crash between the two the function is called again, with the same rows and
the same id: at-least-once by contract, exactly-once if the function does nothing for an id that its
outside system knows already. A marker is removed once no start can commit its epoch again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from dagster_jet.connectors.staging import (
    Segment,
    StagedInStore,
    StoreArea,
    remove_orphans,
    rows_of,
    segments_by_epoch,
    shard_of,
)
from dagster_jet.contract import CommitContext, Committer
from dagster_jet.contract.refused import REFUSED_SHARD
from dagster_jet.core.choices import check_known
from dagster_jet.core.function_name import function_name
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    JetError,
    SinkError,
    SinkUnavailableError,
    where_raised,
)
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.snapshot.protocol import Guarantee
from dagster_jet.store import Store, StoreHandle
from dagster_jet.system.failpoint import fail_point
from dagster_jet.system.transient import is_transient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EpochFunction: TypeAlias = Callable[[Any, str], object]
"""(rows, id of the epoch) -> ignored."""


@dataclass(frozen=True)
class ForeachEpochSink(StagedInStore):
    """Calls a function with the rows of each decided epoch."""

    commits_sparingly = True

    function: EpochFunction | None
    """None in tasks, which only stage rows."""
    rows_as: Literal["spark", "arrow"] = "spark"
    store: Store | StoreHandle | None = field(default=None, compare=False, repr=False)
    max_guarantee: Guarantee = field(default=Guarantee.EXACTLY_ONCE, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.function is not None and not callable(self.function):
            raise ConfigurationError(f"function: {self.function!r} cannot be called.")
        check_known("rows_as", self.rows_as, ("spark", "arrow"))

    def describe(self) -> dict[str, str]:
        # By it a start finds out whether rows that are decided are for this sink.
        return {"kind": "foreach_epoch", "function": function_name(self.function)}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "function": None}

    def open_committer(self, job: str, stage: str) -> Committer:
        return ForeachEpochCommitter(self)


@dataclass
class ForeachEpochCommitter(Committer):
    """Calls the function once per epoch, unless the epoch's marker exists."""

    sink: ForeachEpochSink
    _session: SparkSession | None = None
    _markers: dict[str, int] = field(default_factory=dict)
    """Epochs of the markers that this execution has put or seen."""

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        area = self.sink.area(context.job, context.sink)
        by_epoch = segments_by_epoch(area, artifacts)
        for epoch_id, segments in by_epoch:
            own = _name_of(segments[0].artifact, epoch_id)
            marker = f"{own}-done/000000"
            if area.get(marker) is None:
                rows = self._rows(area, marker, segments, context)
                fail_point("foreach.before")
                if rows is not None:
                    self._call(rows, f"{self._store_id}-{_name(context)}-{own}")
                fail_point("foreach.called")
                area.put(marker, b"done")
                fail_point("foreach.marked")
            self._markers[marker] = epoch_id
            for segment in segments:
                segment.remove()
        self._remove_old_markers(area, [epoch_id for epoch_id, _ in by_epoch], context)

    def _remove_old_markers(
        self, area: StoreArea, epochs: Sequence[int], context: CommitContext
    ) -> None:
        """Removes markers of epochs that no commit names again. `abort_orphans` of the next
        execution removes the others."""
        if not context.repeatable:  # otherwise no snapshot names the epoch
            epochs = (*epochs, context.retained_epoch_id)
        oldest = min(epochs, default=0)
        old = [marker for marker, epoch_id in self._markers.items() if epoch_id < oldest]
        if not old:
            return
        with suppress(JetError):  # committed; a later commit removes them
            area.delete(old)
            self._markers = {one: at for one, at in self._markers.items() if at >= oldest}

    @property
    def _store_id(self) -> str:
        assert isinstance(self.sink.store, Store), "on the driver"
        return self.sink.store.store_id[:8]

    def _rows(
        self, area: StoreArea, marker: str, segments: Sequence[Segment], context: CommitContext
    ) -> pa.Table | None:
        """Rows of an epoch; None if another execution has committed it meanwhile, or they are lost
        and the loss is accepted."""
        batches: list[pa.RecordBatch] = []
        for segment in segments:
            try:
                batches += rows_of([segment])
            except ArtifactLostError:
                if area.get(marker) is not None:
                    return None
                if not context.accept_loss:
                    raise
                context.report_lost(segment.artifact)
        return pa.Table.from_batches(batches) if batches else None

    def _call(self, rows: pa.Table, epoch: str) -> None:
        function = self.sink.function
        assert function is not None, "on the driver"
        try:
            function(self._framed(rows) if self.sink.rows_as == "spark" else rows, epoch)
        except JetError:
            raise
        except Exception as error:
            is_passing = isinstance(error, OSError) and is_transient(error)
            kind = SinkUnavailableError if is_passing else SinkError
            said = f"{type(error).__name__}: {error}"
            raise kind(
                f"{where_raised(error)}{function_name(function)} raised {said}. "
                f"It was given {rows.num_rows} rows of the epoch {epoch!r}.",
                cure="Correct the function or the system that it calls. Nothing is lost: it is "
                "called again with the same rows and the same id.",
            ) from error

    def _framed(self, rows: pa.Table) -> DataFrame:
        """The rows as a frame of a session of the function's own."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        before = SparkSession._activeSession
        try:
            if self._session is None:
                context = SparkContext._active_spark_context
                assert context is not None, "a job runs on Spark"
                self._session = SparkSession(context).newSession()
            return self._session.createDataFrame(rows)
        finally:
            SparkSession._activeSession = before

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        area = self.sink.area(context.job, context.sink)
        return remove_orphans(area, context.execution_id, keep)

    def give_up_place(self, context: CommitContext) -> bool:
        return True  # its markers are in the store


def _name_of(one: Artifact, epoch_id: int) -> str:
    """Names an epoch's rows. Rows that another sink refuses come apart from the sink's own."""
    name = f"{one.token.partition('-')[0]}-{epoch_id}"
    return f"{name}-refused" if shard_of(one.token) == REFUSED_SHARD else name


def _name(context: CommitContext) -> str:
    return f"{context.job}-{context.sink}"

"""Database table as a transactional sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.change_columns import in_order, not_changes, table_columns
from dagster_jet.connectors.earlier_epochs import refuse_earlier_epochs
from dagster_jet.connectors.guarantees import shown_guarantee
from dagster_jet.connectors.owned_rows import OwnedRows, OwnedRowsWriter, misfit, owned_rows
from dagster_jet.connectors.row_order import newest_per_key
from dagster_jet.connectors.sql.column_fit import Shape, has_duration
from dagster_jet.connectors.sql.engines import check_engines
from dagster_jet.connectors.sql.failures import as_sink_errors
from dagster_jet.connectors.sql.markers import EPOCHS, REPEATABLE, Fence, Markers, Owner
from dagster_jet.connectors.sql.mirror import ChangesWriter, refused_changes
from dagster_jet.connectors.sql.place import SqlPlace
from dagster_jet.connectors.sql.refused_values import IS_REFUSED, RefusedValues, marked, refused_row
from dagster_jet.connectors.sql.rights import create_markers, lacking_rights
from dagster_jet.connectors.sql.sql_committer import OwningSqlCommitter, SqlCommitter
from dagster_jet.connectors.sql.supported import check_supported
from dagster_jet.connectors.sql.table_shape import shape_of
from dagster_jet.connectors.staging import RowsWriter, SegmentWriter, StagedInStore
from dagster_jet.contract import Committer, Refused, SinkWriter, TransactionId
from dagster_jet.core.choices import check_known
from dagster_jet.core.ddl import quoted_name
from dagster_jet.core.secret import Secret, Url, as_json, from_json, refuse_written_out, shown
from dagster_jet.errors import ConfigurationError, PipelineError
from dagster_jet.snapshot.protocol import Guarantee
from dagster_jet.store import Store, StoreHandle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from sqlalchemy import Connection

MODES = ("append", "upsert", "delete", "mirror")


@dataclass(frozen=True)
class SqlSink(StagedInStore):
    """Writes a stream to a table: staged in the job's store, then applied with a marker."""

    place: SqlPlace
    mode: str = "append"
    key: tuple[str, ...] = ()
    order_by: str | None = None
    creates_table: bool = False
    max_guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    owns: OwnedRows = ()
    store: Store | StoreHandle | None = field(default=None, compare=False, repr=False)
    home: tuple[str, str] = field(default=("", ""), compare=False, repr=False)
    """Store id, and the namespace in the store."""
    shape: Shape | None = field(default=None, compare=False, repr=False)
    """Shape of the table at this start."""
    dialect: str = field(default="", compare=False, repr=False)
    """Database kind at this start."""
    has_dead_letters: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        refuse_written_out(self.place.url, "url")
        check_known("mode", self.mode, MODES)
        if (self.mode == "append") == bool(self.key):
            needs = "needs no" if self.key else "needs a"
            raise ConfigurationError(
                f"key: mode {self.mode!r} {needs} key.",
                cure='Name the columns of a unique index: sql(..., mode="upsert", key=["id"]).',
            )
        if self.order_by is not None and self.mode == "append":
            raise ConfigurationError(
                'order_by: mode "append" writes every row, so it has no order.'
            )
        if self.order_by is not None and self.mode == "mirror":
            raise ConfigurationError("order_by: changes have an order of their own.")
        owned_rows(dict(self.owns), self.mode)

    def describe(self) -> dict[str, str]:
        described = {"kind": "sql", "url": shown(self.place.url), "table": self.place.table}
        described["mode"] = self.mode
        if self.key:
            described["key"] = ", ".join(self.key)
        return {**described, **shown_guarantee(self.max_guarantee)}

    def destination(self) -> dict[str, Any]:
        url = self.place.url
        return {
            # A password in the URL is not saved: the sink is reopened without it.
            "url": as_json(url) if isinstance(url, Secret) else shown(url),
            "table": self.place.table,
            "mode": self.mode,
            "key": list(self.key),
            "creates_table": self.creates_table,
            "owns": dict(self.owns),
        }

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> SqlSink:
        place = SqlPlace(url_of(destination), destination["table"])
        key = tuple(destination["key"])
        owns = tuple(destination["owns"].items())
        creates_table = destination["creates_table"]
        return cls(place, destination["mode"], key, creates_table=creates_table, owns=owns)

    def with_store(self, store: Store) -> SqlSink:
        return replace(self, store=store, home=(store.store_id, store.config.namespace))

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> SqlSink:
        """Inspects the table, so that a misfit fails the start with a clear error."""
        with as_sink_errors(self.place, job, stage), self.place.connected() as connection:
            check_supported(connection, self.place, job, stage)
            shape = shape_of(connection, self.place)
            dialect = connection.dialect.name
        if shape is None and not self.creates_table:
            raise ConfigurationError(
                f"there is no table {self.place.table!r} at {shown(self.place.url)}.",
                job=job,
                stage=stage,
                cure="Correct its name, create it, or let the sink do that: "
                "sql(..., create_table=True).",
            )
        return replace(self, shape=shape, dialect=dialect)

    def check(self, job: str, stage: str, *, is_new_job: bool) -> None:
        with as_sink_errors(self.place, job, stage), self.place.connected() as connection:
            self._check_rights(connection, job, stage)
            connection.rollback()
            markers, owner = Markers(self.place), self._owner(job, stage)
            if is_new_job:
                create_markers(connection, markers, job, stage, *self._marks)
            check_engines(connection, self.place, job, stage, *self._marks)
            ids = (owner.id(), owner.id(REPEATABLE))
            if is_new_job and any(Fence(markers, owner, id).read(connection) for id in ids):
                refuse_earlier_epochs(
                    f"the table {EPOCHS!r}",
                    job,
                    stage,
                    cure="Use another name for the job or the sink.",
                )

    def claim_place(self, job: str, stage: str) -> None:
        with as_sink_errors(self.place, job, stage), self.place.connected() as connection:
            create_markers(connection, Markers(self.place), job, stage, *self._marks)
            check_engines(connection, self.place, job, stage, *self._marks)

    @property
    def _marks(self) -> tuple[str, ...]:
        """Names of our own tables."""
        return (EPOCHS,)

    def _check_rights(self, connection: Connection, job: str, stage: str) -> None:
        lacking = lacking_rights(connection, self.place, self.mode)
        if lacking:
            raise ConfigurationError(
                f"this user may not {lacking} at {shown(self.place.url)}.",
                job=job,
                stage=stage,
                cure="Grant the right to the user of the URL.",
            )

    def takes(self, schema: pa.Schema) -> bool:
        self._check_columns(schema)
        return self.mode == "append"  # else rows of one key must meet first: `render`

    def render(self, frame: DataFrame) -> DataFrame:
        """Reduces rows to one per key, unless they are appended."""
        from pyspark.sql.pandas.types import to_arrow_schema

        self._check_columns(to_arrow_schema(frame.schema, timezone="UTC"))
        if self.mode == "append":
            return frame
        if self.mode == "mirror":
            return in_order(frame)
        from pyspark.sql import functions as F

        # Normalises UUID texts, which have several forms, so that equal keys are one key.
        for column in () if self.shape is None else self.shape.columns:
            if column.name in self.key and column.kind == "uuid":
                text = F.regexp_replace(F.col(quoted_name(column.name)), "[{}-]", "")
                frame = frame.withColumn(column.name, F.lower(text))
        if self.mode == "delete" or set(frame.columns) == set(self.key):
            return frame.select(*map(quoted_name, self.key)).distinct()
        order = None if self.order_by is None else F.col(quoted_name(self.order_by))
        if not self.has_dead_letters:
            return newest_per_key(frame, list(self.key), order)
        rows, apart = marked(frame, self._values), F.col(IS_REFUSED)
        return newest_per_key(rows, list(self.key), order, apart).drop(IS_REFUSED)

    def with_dead_letters(self) -> SqlSink:
        """A refused row, which goes there, does not stand for its key."""
        return replace(self, has_dead_letters=True)

    @property
    def _values(self) -> RefusedValues:
        columns = {} if self.shape is None else {one.name: one for one in self.shape.columns}
        return RefusedValues(self.dialect, columns, self.key if self.mode == "upsert" else ())

    def can_leave_out(self) -> bool:
        """Returns False for mirrors: a change left out would block later changes of its row."""
        return self.mode != "mirror"

    def refused(self, rows: pa.RecordBatch) -> dict[int, Refused]:
        if self.mode == "mirror":
            found = refused_changes(self._values, rows, self.key)
        else:
            found = self._values.of(rows.select(list(self.key)) if self.mode == "delete" else rows)
        return {n: refused_row(self.place, self.key, rows, n, why) for n, why in found.items()}

    def open_writer(self, transaction: TransactionId) -> SinkWriter:
        area = self.area(transaction.job, transaction.sink)
        segment = SegmentWriter(area, transaction, f"table {self.place.table}")
        if self.mode == "mirror":
            return ChangesWriter(segment, self.key, transaction.job, transaction.sink)
        rows = RowsWriter(segment)
        return OwnedRowsWriter(rows, self.owns) if self.owns else rows

    def open_committer(self, job: str, stage: str) -> Committer:
        area, owner = self.area(job, stage), self._owner(job, stage)
        given = (self.place, self.mode, self.key, self.creates_table, area, owner)
        return OwningSqlCommitter(*given, self.owns) if self.owns else SqlCommitter(*given)

    def _owner(self, job: str, stage: str) -> Owner:
        return Owner(*self.home, job, stage)

    def _check_columns(self, rows: pa.Schema) -> None:
        mode, wrong = self.mode, None
        if mode == "mirror":
            wrong = not_changes(rows, self.key)
            mode, rows = "upsert", table_columns(rows)
        kinds = dict(zip(rows.names, rows.types, strict=True))
        if self.order_by is not None and self.order_by not in kinds:
            raise PipelineError(f"order_by: the rows have no column {self.order_by!r}.")
        if missing := [name for name in self.key if name not in kinds]:
            wrong = f"the rows have no column {', '.join(missing)}"
        wrong = wrong or misfit(self.owns, rows)
        of_time = [one.name for one in rows if has_duration(one.type)]
        if of_time and self.mode != "delete":
            wrong = wrong or f"the column {of_time[0]} has intervals, which no table takes"
        if self.shape is not None:
            changes_keys = self.mode == "mirror"
            wrong = wrong or self.shape.misfit(kinds, mode, self.key, changes_keys=changes_keys)
        if wrong is not None:
            raise PipelineError(
                f"the rows do not fit the table {self.place.table!r}: {wrong}.",
                cure="Change the rows with select(), or the table.",
            )


def url_of(destination: Mapping[str, Any]) -> Url:
    """URL from `SqlSink.destination`."""
    return from_json(destination["url"])

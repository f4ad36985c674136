"""Table as a sink whose writers hold prepared transactions until the snapshot is decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.held import IDS_PER_WRITER, TRANSACTIONS
from dagster_jet.connectors.row_order import divided_among_writers
from dagster_jet.connectors.sql.failures import as_sink_errors
from dagster_jet.connectors.sql.held_rows import (
    HeldWriter,
    SqlHeldCommitter,
    SqlHeldTransactions,
)
from dagster_jet.connectors.sql.markers import HELD
from dagster_jet.connectors.sql.place import SqlPlace
from dagster_jet.connectors.sql.prepared import NO_PREPARED, prepared_transactions
from dagster_jet.connectors.sql.sql_sink import SqlSink, url_of
from dagster_jet.contract import Committer, Held, SinkWriter, TransactionId
from dagster_jet.core.choices import check_known
from dagster_jet.core.secret import shown
from dagster_jet.errors import ConfigurationError
from dagster_jet.snapshot.protocol import Guarantee

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class HeldSqlSink(SqlSink):
    """Appends a stream to a table, in a fixed number of prepared transactions per epoch."""

    held_writers: int = 2

    @classmethod
    def of(
        cls,
        place: SqlPlace,
        transactions: str,
        mode: str,
        creates_table: bool,
        writers: int,
        limit: Guarantee,
        *,
        owns: Mapping[str, Any] | None = None,
    ) -> HeldSqlSink:
        check_known("transactions", transactions, TRANSACTIONS)
        if mode != "append":
            raise ConfigurationError(
                f'transactions: "held" works with mode="append" only, not with {mode!r}: changed '
                "rows stay locked until the snapshot is committed, and the next epoch would wait "
                "for them.",
                cure='Use transactions="roll-forward".',
            )
        if creates_table:
            raise ConfigurationError(
                'create_table: with transactions="held" tasks write rows before the driver could '
                "create the table.",
                cure="Create the table before the job starts.",
            )
        if owns:
            raise ConfigurationError(
                "owns: held transactions do not check which rows they have.",
                cure='Use transactions="roll-forward".',
            )
        if writers < 1:
            raise ConfigurationError(f"writers: {writers} is less than 1.")
        return cls(place, max_guarantee=limit, held_writers=writers)

    def held(self) -> Held:
        return Held(self.held_writers)

    def describe(self) -> dict[str, str]:
        return {**super().describe(), "kind": "sql_held", "writers": str(self.held_writers)}

    def destination(self) -> dict[str, Any]:
        place = super().destination()
        return {"url": place["url"], "table": place["table"]}

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> HeldSqlSink:
        return cls(SqlPlace(url_of(destination), destination["table"]))

    def check(self, job: str, stage: str, *, is_new_job: bool) -> None:
        super().check(job, stage, is_new_job=is_new_job)
        with as_sink_errors(self.place, job, stage), self.place.connected() as connection:
            kind = prepared_transactions(connection)
            wanted = IDS_PER_WRITER * self.held_writers
            problem = NO_PREPARED if kind is None else kind.problem(connection, wanted)
            connection.rollback()
            if problem is not None:
                raise ConfigurationError(
                    f"transactions cannot be held at {shown(self.place.url)}: {problem.why}.",
                    job=job,
                    stage=stage,
                    cure=f'{problem.cure} Or use transactions="roll-forward", which does not need '
                    "prepared transactions.",
                )

    @property
    def _marks(self) -> tuple[str, ...]:
        return (*super()._marks, HELD)

    def takes(self, schema: pa.Schema) -> bool:
        self._check_columns(schema)
        return False  # `render` sets the number of writers

    def render(self, frame: DataFrame) -> DataFrame:
        """Deals the rows to the writers in turn; a table keeps no order of rows."""
        from pyspark.sql import functions as F

        turn = F.monotonically_increasing_id()
        return divided_among_writers(super().render(frame), self.held_writers, turn)

    def open_writer(self, transaction: TransactionId) -> SinkWriter:
        return HeldWriter(self.place, self._owner(transaction.job, transaction.sink), transaction)

    def open_committer(self, job: str, stage: str) -> Committer:
        transactions = SqlHeldTransactions(self.place, self._owner(job, stage))
        return SqlHeldCommitter(job, stage, self.held_writers, transactions)

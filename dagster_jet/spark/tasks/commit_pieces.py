"""Runs pieces of a sink's commit in tasks, so that rows do not pass through the driver."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from dagster_jet.contract import Piece
from dagster_jet.errors import JetError
from dagster_jet.spark.tasks import fail_point_orders

SCHEMA = pa.schema([("piece", pa.int32()), ("result", pa.binary())])
DDL = "piece int, result binary"


@dataclass(frozen=True)
class CommitPieces:
    """Runs each piece that a row names. A piece may run twice."""

    pieces: tuple[Piece, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fail_point_orders.obey()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                columns = [pa.array([number], pa.int32()), pa.array([self._done(number)])]
                yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def _done(self, number: int) -> bytes:
        """Returns the pickled result or error of a piece. An error is returned as a value, because
        Spark would retry the task and pass on only the error's text."""
        try:
            return pickle.dumps(self.pieces[number]())
        except JetError as error:
            return pickle.dumps(error)

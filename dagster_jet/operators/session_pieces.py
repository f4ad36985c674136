"""State of sessions whose aggregates grow with their rows: narrow *headers*, and *pieces*.

A header is versioned: every step that touches a key writes the headers of all its sessions again,
with first and last event and without content. Content is in pieces, each written once, by the step
in which it arrived. A piece belongs to the session whose header spans it; headers of one key never
overlap. Sometimes a session is *folded*: its content is written as one piece, and older pieces
become void.

A piece expires after the header that spans it: its time is its last event + gap. A session whose
last event is later than that is folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dagster_jet.operators.aggregates.grouping import rows_where
from dagster_jet.operators.lateness import event_times
from dagster_jet.operators.operator import TIME_COLUMN, VERSION_COLUMN
from dagster_jet.operators.rows.keys import key_codes
from dagster_jet.operators.rows.sorting import order_by

FIRST_TIME_COLUMN = "__first"
"""int64 ms: first event of a bucket, piece or session. A session's last event is `TIME_COLUMN`."""
SINCE_COLUMN = "__since"
"""int64. In a header: the version of its oldest piece that is not void. In a piece: `PIECE`."""
PIECE = -1
PIECES_MAX = 64
"""Largest number of pieces of a session; then it is folded."""


@dataclass(frozen=True)
class SessionState:
    """State rows, separated into headers and pieces."""

    headers: pa.Table
    pieces: pa.Table

    @classmethod
    def of(cls, rows: pa.Table) -> SessionState:
        is_piece = rows.column(SINCE_COLUMN).to_numpy() == PIECE
        return cls(rows_where(rows, ~is_piece), rows_where(rows, is_piece))

    def sessions_of_pieces(self, keys: Sequence[str]) -> np.ndarray:
        """Row number of each piece's header; -1 if the piece is void or its session is closed."""
        codes, piece_codes = key_codes(keys, self.headers, self.pieces)
        count = self.headers.num_rows
        if count == 0:
            return np.full(self.pieces.num_rows, -1)
        firsts = np.concatenate([first_times(self.headers), first_times(self.pieces)])
        is_piece = np.arange(len(firsts)) >= count
        order = order_by(np.concatenate([codes, piece_codes]), firsts, is_piece.astype(np.int64))
        # The last header at or before each row, in order of key and time.
        place = np.maximum.accumulate(np.where(is_piece[order], -1, np.arange(len(order))))
        before = np.full(len(order), -1)
        before[order] = np.where(place < 0, -1, order[np.maximum(place, 0)])
        header = before[count:]
        fits = (
            (header >= 0)
            & (codes[header] == piece_codes)
            & (event_times(self.headers)[header] >= first_times(self.pieces))
            & (_column(self.headers, SINCE_COLUMN)[header] <= _column(self.pieces, VERSION_COLUMN))
        )
        return np.where(fits, header, -1)


def as_pieces(rows: pa.Table, times: np.ndarray) -> pa.Table:
    """
    Args:
        times: the times by which they expire.
    """
    rows = _with(rows, TIME_COLUMN, times)
    return _with(rows, SINCE_COLUMN, np.full(rows.num_rows, PIECE))


def first_times(rows: pa.Table) -> np.ndarray:
    return _column(rows, FIRST_TIME_COLUMN)


def _column(rows: pa.Table, name: str) -> np.ndarray:
    values: np.ndarray = rows.column(name).to_numpy()
    return values


def _with(rows: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    array = pa.array(values, pa.int64())
    if name not in rows.column_names:
        return rows.append_column(name, array)
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(place), array)

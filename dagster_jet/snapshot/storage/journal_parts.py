"""A source's journal in the store: spread over partitions, one part rewritten at a time.

Each row belongs to a part, by the hash of its key, and each part has a partition. A chunk set
appends the new rows and holds one part whole, in turn, as state does with its partitions
(`chunks.ROTATION`). So a snapshot costs the new rows and 1/64 of the journal, in small values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from dagster_jet.core.partition import partition_id
from dagster_jet.snapshot.manifest import ChunkSet
from dagster_jet.snapshot.storage.chunks import PARTITION_COLUMN, ROTATION

PARTS = ROTATION
PART_COLUMN = "__part"
"""Column with the part of a journal's row; a journal without it has part 0 only."""


def part_of(key: str) -> int:
    """The part of rows with this key. All rows of a key are in one part, the newest first."""
    return xxhash.xxh32_intdigest(key.encode(errors="surrogateescape")) % PARTS


@dataclass(frozen=True)
class JournalTurn:
    """Content of a journal's next set besides new rows."""

    sequence: int
    is_base: bool
    parts: frozenset[int]
    """Parts to be written whole."""
    slots: int
    """Number of partitions that the parts share."""

    @classmethod
    def of(cls, chain: Sequence[ChunkSet], partition_count: int) -> JournalTurn:
        """The turn after a chain."""
        sequence = chain[-1].sequence + 1 if chain else 0
        slots = min(PARTS, partition_count)
        is_base = not chain
        parts = {p for p in range(PARTS) if is_base or p % slots == sequence % slots}
        return cls(sequence, is_base, frozenset(parts), slots)

    def rows(self, appended: pa.Table, whole: pa.Table) -> pa.Table:
        """The rows of the set: its whole parts, and new rows of other parts."""
        mine = np.array(sorted(self.parts), np.int64)
        new = appended.filter(pa.array(~np.isin(_parts(appended), mine)))
        old = whole.filter(pa.array(np.isin(_parts(whole), mine)))
        return pa.concat_tables([new, old], promote_options="default")

    def placed(self, rows: pa.Table, source: str, partition_count: int) -> pa.Table:
        """The rows with the column of their partitions in the store."""
        partitions = (_first(source, partition_count) + _parts(rows) % self.slots) % partition_count
        return rows.append_column(PARTITION_COLUMN, pa.array(partitions, pa.int32()))

    def full_partitions(self, source: str, partition_count: int) -> list[int]:
        """The partitions of the parts that are written whole."""
        first = _first(source, partition_count)
        return sorted({(first + part % self.slots) % partition_count for part in self.parts})


def _first(source: str, partition_count: int) -> int:
    return partition_id(source, partition_count=partition_count)


def _parts(rows: pa.Table) -> np.ndarray:
    if PART_COLUMN not in rows.column_names:
        return np.zeros(rows.num_rows, np.int64)
    return np.asarray(rows.column(PART_COLUMN), np.int64)

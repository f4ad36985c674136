"""A lake sink that appends rows, or merges changes by their key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from dagster_jet.connectors.change_columns import in_order, table_columns
from dagster_jet.connectors.empty_structs import refuse_empty_structs
from dagster_jet.connectors.lake.keys import check_changes, check_key, check_keyed_by
from dagster_jet.connectors.lake.lake_sink import LakeSink
from dagster_jet.connectors.row_order import newest_per_key
from dagster_jet.core.ddl import quoted_name
from dagster_jet.errors import ConfigurationError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

S = TypeVar("S", bound="MergingSink")


class MergingSink(LakeSink):
    """Sink with a mode. Its subclasses are dataclasses with these fields."""

    mode: str
    key: tuple[str, ...]
    order_by: str | None
    has_dead_letters: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_key(self.mode, self.key, self.order_by)
        if self.merges and self.min_file_bytes is not None:
            raise ConfigurationError(
                f"min_file_bytes: mode {self.mode!r} merges the changes of each snapshot.",
                cure='Leave it out, or set mode="append".',
            )

    @property
    def merges(self) -> bool:
        return self.mode != "append"

    @property
    def is_mirror(self) -> bool:
        return self.mode == "mirror"

    @property
    @abstractmethod
    def never_null(self) -> Collection[str]:
        """Columns in which the table refuses a null, with those of the key."""

    def columns_in(self, rows: pa.Schema, table: str) -> pa.Schema:
        """Returns the table's columns of rows.

        Raises:
            PipelineError: the rows cannot be merged.
        """
        if self.is_mirror:
            check_changes(rows, self.key, table)
            rows = table_columns(rows)
        check_keyed_by(rows, self.key, self.order_by)
        refuse_empty_structs(rows)
        return rows

    def takes(self, schema: pa.Schema) -> bool:
        return not self.merges  # rows of one key must meet first: `render`

    def render(self, frame: DataFrame) -> DataFrame:
        """Reduces an epoch's rows to one per key, and puts changes in order."""
        if self.is_mirror:
            return in_order(frame)
        return frame if not self.merges else self._newest(frame)

    def _newest(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        order = None if self.order_by is None else F.col(quoted_name(self.order_by))
        if not self.has_dead_letters:
            return newest_per_key(frame, list(self.key), order)
        apart = reduce(
            lambda a, b: a | F.coalesce(b, F.lit(False)), self.is_refused_if(frame), F.lit(False)
        )
        return newest_per_key(frame, list(self.key), order, apart)

    def is_refused_if(self, frame: DataFrame) -> list[Column]:
        """Returns conditions of rows that `refused` names."""
        from pyspark.sql import functions as F

        return [F.col(quoted_name(name)).isNull() for name in self.never_null]

    def with_dead_letters(self: S) -> S:
        """A refused row, which goes there, does not stand for its key."""
        changed: Any = self
        made: S = replace(changed, has_dead_letters=True)
        return made

    def can_leave_out(self) -> bool:
        """Returns False for mirrors: a change left out would block later changes of its row."""
        return not self.is_mirror


@contextmanager
def named(job: str, stage: str) -> Iterator[None]:
    """Adds job and stage to a `PipelineError`."""
    try:
        yield
    except PipelineError as error:
        raise PipelineError(error.message, job=job, stage=stage, cure=error.cure) from error


def far_if(frame: DataFrame, partition_by: Collection[str]) -> list[Column]:
    """Returns conditions of rows that `far_in` names."""
    from pyspark.sql import functions as F

    timed = [name for name, type in frame.dtypes if type in ("date", "timestamp", "timestamp_ntz")]
    return [~F.year(quoted_name(name)).between(1, 9999) for name in partition_by if name in timed]

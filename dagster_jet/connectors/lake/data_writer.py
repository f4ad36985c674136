"""Phase 1 of a table: writes one task's rows of one epoch as Parquet files."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_jet.connectors.files.places.place import StagedFile
from dagster_jet.connectors.lake.data_folder import DataFolder
from dagster_jet.connectors.lake.staged_file import artifact_of
from dagster_jet.connectors.lake.staged_names import Owner
from dagster_jet.connectors.lake.statistics import Statistics
from dagster_jet.connectors.partitioned_rows import in_pieces
from dagster_jet.contract import SinkWriter, TransactionId
from dagster_jet.errors import SinkError, SinkUnavailableError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.failpoint import fail_point

_OPEN_MAX = 64
"""Number of partitions that a task writes at once. One more ends all of their files."""
_GROUP_BYTES = 32 << 20
"""Size in memory of a row group."""


class Layout(Protocol):
    """How a table divides rows among files, and what its commit needs to know of a file."""

    def divided(self, batch: pa.RecordBatch) -> Iterator[tuple[Hashable, pa.RecordBatch]]:
        """Yields the rows of each partition, in their order, as a file has them."""
        ...

    def folder_of(self, values: Any) -> str:
        """Returns the folder of a partition, with a slash at its end; "" for none."""
        ...

    def with_statistics(self, schema: pa.Schema) -> Sequence[str]:
        """Returns the columns whose statistics are collected."""
        ...

    def kept(self, values: Any, statistics: Statistics) -> Mapping[str, Any]:
        """Returns what the commit needs, as JSON."""
        ...


@dataclass
class _OpenFile:
    """A file that is being written; small batches wait until they are a row group."""

    path: str
    staged: StagedFile
    encoder: pq.ParquetWriter
    statistics: Statistics
    group_bytes: int
    """Size in memory of a row group."""
    _waiting: list[pa.RecordBatch] = field(default_factory=list)

    def write(self, rows: pa.RecordBatch) -> None:
        self.statistics.add(rows)
        self._waiting.append(rows)
        if sum(batch.nbytes for batch in self._waiting) >= self.group_bytes:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self.encoder.close()

    def _flush(self) -> None:
        if self._waiting:
            self.encoder.write_table(pa.Table.from_batches(self._waiting))
        self._waiting = []


@dataclass
class DataWriter(SinkWriter):
    """Writes one task's files of one epoch, each created at its first row."""

    table: str
    """Named in errors."""
    folder: DataFolder
    owner: Owner
    layout: Layout
    transaction: TransactionId
    beginning: str = ""
    """Prefix of the files' names, for a writer that is not a task of an epoch."""
    target_bytes: int | None = None
    """Size at which a file ends, and another one of its partition begins. A file is larger by less
    than two row groups. None: a file has all rows of a partition."""
    _open: dict[Hashable, _OpenFile] = field(default_factory=dict)
    _paths: list[str] = field(default_factory=list)
    _artifacts: list[Artifact] = field(default_factory=list)

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        with self._errors_named():
            for values, rows in self.layout.divided(batch):
                self._write(values, rows)

    def write_to(self, values: Hashable, rows: pa.RecordBatch) -> None:
        """Writes rows of one partition, as a file has them."""
        with self._errors_named():
            self._write(values, rows)

    def _write(self, values: Hashable, rows: pa.RecordBatch) -> None:
        for some in in_pieces(rows, self._group_bytes):
            if values not in self._open:
                self._begin(values, some.schema)
            file = self._open[values]
            file.write(some)
            if self.target_bytes is not None and file.staged.written >= self.target_bytes:
                self._finish(values)

    @property
    def _group_bytes(self) -> int:
        limit = self.target_bytes
        return _GROUP_BYTES if limit is None else min(limit, _GROUP_BYTES)

    def _begin(self, values: Hashable, schema: pa.Schema) -> None:
        if len(self._open) >= _OPEN_MAX:
            self._finish_all()
        fail_point("lake.write.before")
        name = self.owner.file_name(self.transaction, len(self._paths), self.beginning)
        path = self.layout.folder_of(values) + name
        staged = self.folder.create(path)
        self._paths.append(path)
        encoder = pq.ParquetWriter(staged.file, schema)
        statistics = Statistics(self.layout.with_statistics(schema))
        self._open[values] = _OpenFile(path, staged, encoder, statistics, self._group_bytes)

    def prepare(self) -> tuple[Artifact, ...]:
        with self._errors_named():
            self._finish_all()
        return tuple(self._artifacts)

    def _finish_all(self) -> None:
        for values in list(self._open):
            self._finish(values)

    def _finish(self, values: Hashable) -> None:
        file = self._open[values]
        fail_point("lake.prepare.before")
        file.finish()
        sealed = self.folder.finish(file.path, file.staged)
        fail_point("lake.prepare.after")
        del self._open[values]
        kept, rows = self.layout.kept(values, file.statistics), file.statistics.rows
        self._artifacts.append(artifact_of(self.transaction, file.path, sealed, rows, kept))

    def abort(self) -> None:
        for file in self._open.values():
            with suppress(OSError):  # fails again after a failed write
                file.encoder.close()
            with suppress(OSError):
                file.staged.discard()
        with suppress(OSError):
            self.folder.remove(self._paths)

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"a file of the table {self.table!r} cannot be written: {error}."
            if self.beginning:
                raise SinkUnavailableError(
                    message,
                    stage=self.transaction.sink,
                    cure="Bring the place back, free some space or correct the permissions. "
                    "Nothing is lost: it is tried again.",
                ) from error
            raise SinkError(
                message,
                stage=self.transaction.sink,
                cure="Free some space or correct the permissions; meanwhile the job restarts from "
                "its last snapshot.",
            ) from error

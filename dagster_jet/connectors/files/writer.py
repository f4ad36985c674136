"""Phase 1 of a files sink: writes one task's files of one epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pyarrow as pa

from dagster_jet.connectors.files.formats import Encoder, open_encoder
from dagster_jet.connectors.files.partition_folders import check_partition_by, folder_of
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.opening import open_output
from dagster_jet.connectors.files.places.place import OutputName, StagedFile
from dagster_jet.connectors.partitioned_rows import Values, divided, in_pieces
from dagster_jet.contract import SinkWriter, TransactionId
from dagster_jet.errors import PipelineError, SinkError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.failpoint import fail_point

RENDERED_COLUMN = "__json"
"""Name of the only column of rows that are already rendered as lines."""
_PARTITIONS_MAX = 10_000
_OPEN_MAX = 32
"""Number of files that a task writes at once; one more ends the one least recently written."""
_WAITING_BYTES = 32 << 20
"""Size in memory of rows that wait until each partition has many."""
_PIECE_BYTES = 8 << 20
"""Size in memory after which the size of a file is compared with its limit."""


@dataclass(frozen=True)
class FileLayout:
    """How a sink divides rows among files, and encodes them."""

    format: str
    partition_by: tuple[str, ...] = ()
    compression: str | None = None
    """None: the format's own."""
    max_file_bytes: int | None = None

    @property
    def suffix(self) -> str:
        is_zipped = self.compression == "gzip" and self.format != "parquet"
        return f"{self.format}.gz" if is_zipped else self.format


@dataclass
class _OpenFile:
    """A file that is being written."""

    output: OutputName
    staged: StagedFile
    encoder: Encoder
    rows: int = 0


@dataclass
class FilesWriter(SinkWriter):
    """Writes one task's files of one epoch, each created at its first row."""

    path: str
    storage_options: StorageOptions
    layout: FileLayout
    transaction: TransactionId
    _waiting: dict[Values, list[pa.RecordBatch]] = field(default_factory=dict)
    _waiting_bytes: int = 0
    _open: dict[Values, _OpenFile] = field(default_factory=dict)
    """By partition; the file least recently written first."""
    _partitions: set[Values] = field(default_factory=set)
    _files: int = 0
    _artifacts: list[Artifact] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._writing = self.path

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        with self._errors_named():
            if not self.layout.partition_by:
                self._write((), batch)
                return
            for values, rows in self._divided(batch):
                self._waiting.setdefault(values, []).append(rows)
                self._waiting_bytes += rows.nbytes
            if self._waiting_bytes >= _WAITING_BYTES:
                self._write_waiting()

    def _divided(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        by, t = self.layout.partition_by, self.transaction
        if not self._partitions:
            check_partition_by(batch.schema, by, t.job, t.sink)
        for values, rows in divided(batch, by):
            self._partitions.add(values)
            yield values, rows
        if len(self._partitions) > _PARTITIONS_MAX:
            counts = (len(set(texts)) for texts in zip(*self._partitions, strict=True))
            shown = ", ".join(f"{name} has {n}" for name, n in zip(by, counts, strict=True))
            raise PipelineError(
                f"one task's rows of one epoch have {len(self._partitions)} partitions, and each is"
                f" a file; the limit is {_PARTITIONS_MAX}. Numbers of values so far: {shown}.",
                job=t.job,
                stage=t.sink,
                cure="Partition by columns with few values, a day in place of a time; or let an "
                "epoch have fewer rows (max_items_per_epoch).",
            )

    def _write_waiting(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        for values, batches in waiting.items():
            self._write(values, pa.concat_batches(batches))

    def _write(self, values: Values, rows: pa.RecordBatch) -> None:
        limit = self.layout.max_file_bytes
        for some in [rows] if limit is None else in_pieces(rows, min(limit, _PIECE_BYTES)):
            file = self._opened(values, some.schema)
            file.encoder.write(some)
            file.rows += some.num_rows
            if limit is not None and file.staged.written >= limit:
                self._seal(values)

    def _opened(self, values: Values, schema: pa.Schema) -> _OpenFile:
        file = self._open.pop(values, None)
        if file is None:
            if len(self._open) >= _OPEN_MAX:
                self._seal(next(iter(self._open)))
            file = self._begun(values, schema)
        self._open[values] = file
        self._writing = file.staged.name
        return file

    def _begun(self, values: Values, schema: pa.Schema) -> _OpenFile:
        fail_point("files.write.before")
        folder = folder_of(self.layout.partition_by, values)
        output = OutputName(self.transaction, self.layout.suffix, folder, self._files)
        self._files += 1
        staged = open_output(self.path, self.storage_options).stage(output)
        encoder = open_encoder(
            self.layout.format,
            staged.file,
            schema,
            rendered=schema.names == [RENDERED_COLUMN],
            compression=self.layout.compression,
        )
        return _OpenFile(output, staged, encoder)

    def prepare(self) -> tuple[Artifact, ...]:
        with self._errors_named():
            self._write_waiting()
            for values in list(self._open):
                self._seal(values)
        return tuple(self._artifacts)

    def _seal(self, values: Values) -> None:
        file = self._open[values]
        self._writing = file.staged.name
        fail_point("files.prepare.before")
        file.encoder.finish()
        sealed = file.staged.seal()
        fail_point("files.prepare.after")
        del self._open[values]
        self._artifacts.append(
            Artifact(
                sink=self.transaction.sink,
                epoch_id=self.transaction.epoch_id,
                token=sealed.token,
                target=file.output.target,
                rows=file.rows,
                bytes=sealed.bytes,
                checksum=sealed.checksum,
            )
        )

    def abort(self) -> None:
        for file in self._open.values():
            with suppress(OSError):  # fails again after a failed write
                file.encoder.finish()
            with suppress(OSError):
                file.staged.discard()
        for artifact in self._artifacts:
            with suppress(OSError):
                open_output(self.path, self.storage_options).discard(artifact.token)

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SinkError(
                f"the file {self._writing} cannot be written: {error}.",
                stage=self.transaction.sink,
                cure="Free some space or correct the permissions; meanwhile the job restarts from "
                "its last snapshot.",
            ) from error

"""Phase 1 of a files sink: writes one task's file of one epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa

from dagster_jet.connectors.files.formats import Encoder, open_encoder
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.opening import open_output
from dagster_jet.connectors.files.places.place import StagedFile, target_name
from dagster_jet.contract import SinkWriter, TransactionId
from dagster_jet.errors import SinkError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.failpoint import fail_point

RENDERED_COLUMN = "__json"
"""Name of the only column of rows that are already rendered as lines."""


@dataclass
class FilesWriter(SinkWriter):
    """Writes one task's file of one epoch, created at the first row."""

    path: str
    storage_options: StorageOptions
    format: str
    transaction: TransactionId
    _staged: StagedFile | None = None
    _encoder: Encoder | None = None
    _rows: int = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        with self._errors_named():
            if self._encoder is None:
                fail_point("files.write.before")
                place = open_output(self.path, self.storage_options)
                self._staged = place.stage(self.transaction, self.format)
                rendered = batch.schema.names == [RENDERED_COLUMN]
                self._encoder = open_encoder(
                    self.format, self._staged.file, batch.schema, rendered=rendered
                )
            self._encoder.write(batch)
        self._rows += batch.num_rows

    def prepare(self) -> tuple[Artifact, ...]:
        if self._encoder is None or self._staged is None:
            return ()
        with self._errors_named():
            fail_point("files.prepare.before")
            self._encoder.finish()
            sealed = self._staged.seal()
            fail_point("files.prepare.after")
        return (
            Artifact(
                sink=self.transaction.sink,
                epoch_id=self.transaction.epoch_id,
                token=sealed.token,
                target=target_name(self.transaction, self.format),
                rows=self._rows,
                bytes=sealed.bytes,
                checksum=sealed.checksum,
            ),
        )

    def abort(self) -> None:
        if self._encoder is not None:
            with suppress(OSError):  # fails again after a failed write
                self._encoder.finish()
        if self._staged is not None:
            self._staged.discard()

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = self.path if self._staged is None else self._staged.name
            raise SinkError(
                f"the file {place} cannot be written: {error}.",
                stage=self.transaction.sink,
                cure="Free some space or correct the permissions; meanwhile the job restarts from "
                "its last snapshot.",
            ) from error

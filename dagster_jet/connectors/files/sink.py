"""Files as a transactional sink: staged and fsynced in phase 1, renamed in phase 2.

    <path>/part-<epoch>-<shard>-<execution>.json     committed, never changed afterwards
    <path>/_epochs/<epoch>.json                      what the epoch consists of: the marker
    <path>/_epochs/.owner, .store                    whose folder it is
    <path>/.staging/<job>/<sink>/...                 phase 1; invisible to readers

Nothing partial ever stands under a final name. Readers that need whole epochs go by `_epochs`;
plain listings see whole files. Only files that a marker lists may be moved or deleted: until then
recovery looks for them. One folder belongs to one sink of one job of one store's namespace.

At-least-once: rows written since the last snapshot appear again, in files of their own.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.files.checksum import file_checksum
from dagster_jet.connectors.files.formats import Encoder, can_encode_json, open_encoder
from dagster_jet.connectors.files.places import local_path
from dagster_jet.core.durable import make_folder, sync_folder
from dagster_jet.core.failpoint import fail_point
from dagster_jet.core.transient import DENIED, is_transient
from dagster_jet.engine.connector import CommitContext, TransactionId
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    SinkError,
    SinkMismatchError,
    SinkUnavailableError,
)
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.snapshot.protocol import Guarantee
from dagster_jet.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMATS = ("json", "csv", "parquet")
EPOCHS_FOLDER = "_epochs"
STAGING_FOLDER = ".staging"
RENDERED_COLUMN = "__json"


@dataclass(frozen=True)
class FilesSink:
    """Writes a stream as JSON lines, CSV (with header) or Parquet files into a local folder."""

    path: str
    format: str
    max_guarantee: Guarantee = field(default=Guarantee.EXACTLY_ONCE, init=False)
    store: str | None = field(default=None, compare=False, repr=False)
    """Which store, and which namespace of it, the job is known to."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", local_path(self.path))
        if self.format not in FORMATS:
            raise ConfigurationError(
                f"format: {self.format!r} is unknown.", cure=f"Use one of {', '.join(FORMATS)}."
            )

    def describe(self) -> dict[str, str]:
        return {"kind": "files", "path": self.path, "format": self.format}

    def destination(self) -> dict[str, Any]:
        return {"path": self.path, "format": self.format}

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> FilesSink:
        return cls(destination["path"], destination["format"])

    def with_store(self, store: Store) -> FilesSink:
        """Nothing is kept there, but names of jobs are only unique within its namespace."""
        return replace(self, store=f"store {store.store_id}, namespace {store.config.namespace!r}")

    def check(self, job: str, stage: str, *, is_new_job: bool) -> None:
        try:
            self._check_folder(job, stage, is_new_job)
        except OSError as error:
            if is_transient(error) and error.errno not in DENIED:
                # A restart meets the disk that has ended the last execution.
                raise SinkError(
                    f"the output folder {self.path!r} cannot be used now: {error}.",
                    job=job,
                    stage=stage,
                    cure="Free some space or bring the file system back; meanwhile the job "
                    "restarts from its last snapshot.",
                ) from error
            raise ConfigurationError(
                f"the output folder {self.path!r} cannot be written: {error.strerror}.",
                job=job,
                stage=stage,
                cure="Correct the path or its permissions.",
            ) from None

    def _check_folder(self, job: str, stage: str, is_new_job: bool) -> None:
        epochs = Path(self.path) / EPOCHS_FOLDER
        make_folder(epochs)
        make_folder(_staging(self.path, job, stage))
        owner = f"{job}/{stage}"
        other = _claim(epochs / ".owner", owner)
        if other != owner:
            raise ConfigurationError(
                f"the output folder {self.path!r} belongs to {other!r}.",
                job=job,
                stage=stage,
                cure="Give each sink a folder of its own."
                if other
                else f"A crash has emptied {epochs / '.owner'}: delete it if the folder is this "
                "sink's.",
            )
        if is_new_job and next(epochs.glob("*.json"), None) is not None:
            raise ConfigurationError(
                f"{self.path!r} holds epochs of an earlier life of this job, but the store knows "
                "nothing of it: going on would write its rows twice.",
                job=job,
                stage=stage,
                cure="Use the old store, or an empty output folder.",
            )

        # A file of its own: folders of older versions have none, and only the first one claims it.
        if (
            self.store is not None
            and (other := _claim(epochs / ".store", self.store)) != self.store
        ):
            raise ConfigurationError(
                f"the output folder {self.path!r} belongs to {owner!r} of another store or "
                f"namespace: of {other}; this is {self.store}.",
                job=job,
                stage=stage,
                cure="Give each sink a folder of its own; if that store is gone, an empty one.",
            )

    def takes(self, schema: pa.Schema) -> bool:
        return self.format != "json" or can_encode_json(schema)

    def render(self, frame: DataFrame) -> DataFrame:
        if self.format != "json":
            return frame
        from pyspark.sql import functions as F

        options = {
            "ignoreNullFields": "false",
            "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
            "timeZone": "UTC",
        }
        return frame.select(F.to_json(F.struct("*"), options).alias(RENDERED_COLUMN))

    def open_writer(self, transaction: TransactionId) -> FilesWriter:
        return FilesWriter(self, transaction)

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        epochs: dict[int, list[Artifact]] = {}
        for artifact in artifacts:
            epochs.setdefault(artifact.epoch_id, []).append(artifact)
        try:
            for epoch_id, parts in sorted(epochs.items()):
                self._commit_epoch(epoch_id, parts, context)
        except OSError as error:
            kind = SinkUnavailableError if is_transient(error) else SinkError
            raise kind(
                f"the output folder {self.path!r} cannot be written: {error}.",
                job=context.job,
                stage=context.sink,
                cure="Free some space, correct the permissions or bring the file system back; "
                "nothing is lost, what is staged is committed then.",
            ) from error

    def _commit_epoch(self, epoch_id: int, parts: list[Artifact], context: CommitContext) -> None:
        marker = self._marker(epoch_id, context)
        if self._is_committed(marker, parts, context):
            return
        published = [part for part in parts if self._publish(part, context)]
        if len(published) < len(parts):
            # Another execution may have committed since we looked, and readers may have moved on
            # what it lists.
            if self._is_committed(marker, parts, context):
                return
            for lost in (part for part in parts if part not in published):
                self._check_lost(lost, context)
                context.tell_lost(lost)
        fail_point("files.commit.renamed")
        sync_folder(self.path)
        fail_point("files.commit.marker")
        if not self._write_marker(marker, epoch_id, published, context):
            self._is_committed(marker, parts, context)

    def _is_committed(
        self, marker: Path, parts: Collection[Artifact], context: CommitContext
    ) -> bool:
        """Is the marker there? Then readers may have moved what it lists, and nothing else.

        It lists the same files at every repetition, or fewer where `accept_loss` left some out;
        what is staged may only be removed if it is of the same rows.
        """
        try:
            content = json.loads(marker.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return False
        listed = {(file["name"], file["checksum"]) for file in content["files"]}
        staged = {(part.target, _hex(part.checksum)) for part in parts}
        if not listed <= staged:
            raise SinkMismatchError(
                f"another job commits into {self.path!r}: the marker lists {_names(listed)}, "
                f"staged are {_names(staged)}.",
                job=context.job,
                stage=context.sink,
                position=str(marker),
                cure="Give each sink a folder of its own; what is staged is still there, and is "
                "committed at the next start.",
            )
        sync_folder(marker.parent)  # whoever wrote it may have died before that
        for part in parts:
            Path(part.token).unlink(missing_ok=True)
        return True

    def _publish(self, artifact: Artifact, context: CommitContext) -> bool:
        """Puts a staged file under its final name; False if it is in neither place."""
        staged, target = Path(artifact.token), Path(self.path) / artifact.target
        fail_point("files.commit.file")
        try:
            os.rename(staged, target)
            return True
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            raise SinkMismatchError(
                f"epoch {artifact.epoch_id}: {str(staged)!r} cannot be renamed to "
                f"{str(target)!r}, which is on another file system.",
                job=context.job,
                stage=context.sink,
                position=artifact.token,
                cure="Start once with the sink's old path, which commits what is staged there; "
                "then move the sink.",
            ) from error
        try:
            return file_checksum(target) == artifact.checksum
        except FileNotFoundError:
            return False

    def _check_lost(self, artifact: Artifact, context: CommitContext) -> None:
        """Raises unless the rows of an artifact that is nowhere may be left out."""
        try:
            os.stat(Path(self.path) / EPOCHS_FOLDER)
        except FileNotFoundError:
            raise SinkError(
                f"the output folder {self.path!r} is gone: moved, deleted or not mounted.",
                job=context.job,
                stage=context.sink,
                position=artifact.token,
                cure="Bring it back; meanwhile the job restarts. Nothing is lost: what is staged "
                "in it is committed then.",
            ) from None
        if context.accept_loss:
            return
        raise ArtifactLostError(
            f"epoch {artifact.epoch_id}: the staged file with {artifact.rows} rows is gone, and "
            f"{artifact.target!r} is not there (or is another file). The rows are in no output, "
            "unless a reader took the file away before `_epochs` listed it.",
            job=context.job,
            stage=context.sink,
            position=artifact.token,
            cure="If its disk was not mounted, mount it. Else bring the staged file back, or put "
            "the one that was taken into the folder again, or let the job go on without these "
            "rows with JobConfig(accept_loss=True).",
        )

    def _marker(self, epoch_id: int, context: CommitContext) -> Path:
        suffix = f"-line{context.line}" if context.line > 1 else ""
        if context.repeatable:
            suffix += f"-{context.execution_id}"
        return Path(self.path) / EPOCHS_FOLDER / f"{epoch_id:010d}{suffix}.json"

    def _write_marker(
        self, marker: Path, epoch_id: int, parts: Iterable[Artifact], context: CommitContext
    ) -> bool:
        """False: another execution was faster, and readers may act upon its marker already."""
        content: dict[str, Any] = {
            "job": context.job,
            "sink": context.sink,
            "line": context.line,
            "epoch": epoch_id,
            "files": [
                {
                    "name": part.target,
                    "rows": part.rows,
                    "bytes": part.bytes,
                    "checksum": _hex(part.checksum),
                }
                for part in parts
            ],
        }
        temporary = marker.with_name(f".{marker.name}.{context.execution_id}")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, marker)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        sync_folder(marker.parent)
        return True

    def abort_leftovers(self, context: CommitContext, keep: Collection[str]) -> int:
        removed = 0
        staging = _staging(self.path, context.job, context.sink)
        if not staging.exists():  # of a sink that left the pipeline, and its folder with it
            return 0
        for staged in staging.iterdir():
            owner = staged.name.split("-", 1)[0]
            is_older = owner.isdigit() and int(owner) < context.execution_id
            if is_older and str(staged) not in keep:
                staged.unlink(missing_ok=True)
                removed += 1
        return removed


@dataclass
class FilesWriter:
    """One task's file of one epoch. Opened at the first row: no rows, no file."""

    sink: FilesSink
    transaction: TransactionId
    _encoder: Encoder | None = None
    _rows: int = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        with self._errors_named():
            if self._encoder is None:
                fail_point("files.write.before")
                path = self._staged()
                rendered = batch.schema.names == [RENDERED_COLUMN]
                self._encoder = open_encoder(
                    self.sink.format, path, batch.schema, rendered=rendered
                )
            self._encoder.write(batch)
        self._rows += batch.num_rows

    def prepare(self) -> tuple[Artifact, ...]:
        if self._encoder is None:
            return ()
        path, transaction = self._staged(), self.transaction
        with self._errors_named():
            fail_point("files.prepare.before")
            self._encoder.close()
            sync_folder(path.parent)
            fail_point("files.prepare.after")
        return (
            Artifact(
                sink=transaction.sink,
                epoch_id=transaction.epoch_id,
                token=str(path),
                target=f"part-{transaction.epoch_id:010d}-{transaction.shard:04d}-"
                f"{transaction.execution_id}.{self.sink.format}",
                rows=self._rows,
                bytes=path.stat().st_size,
                checksum=file_checksum(path),
            ),
        )

    def abort(self) -> None:
        if self._encoder is not None:
            with suppress(OSError):  # what could not be written cannot be flushed either
                self._encoder.close()
            self._staged().unlink(missing_ok=True)

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SinkError(
                f"the file {self._staged()} cannot be written: {error}.",
                stage=self.transaction.sink,
                cure="Free some space or correct the permissions; meanwhile the job restarts from "
                "its last snapshot.",
            ) from error

    def _staged(self) -> Path:
        t = self.transaction
        name = f"{t.execution_id}-{t.epoch_id}-{t.shard}-{t.attempt}.{self.sink.format}"
        return _staging(self.sink.path, t.job, t.sink) / name


def _staging(path: str, job: str, sink: str) -> Path:
    return Path(path) / STAGING_FOLDER / job / sink


def _claim(file: Path, owner: str) -> str:
    """Who owns the file: the first who asked, with its text whole in it or not there at all.

    Durable on return, also what another one wrote: a claim that a power failure takes back would
    let a second job in beside output of the first.
    """
    with suppress(FileNotFoundError):  # usually it is there: a full disk needs no room then
        claimed = file.read_text(encoding="utf-8")
        sync_folder(file.parent)
        return claimed
    mine = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    try:
        with open(mine, "w", encoding="utf-8") as text:
            text.write(owner)
            text.flush()
            os.fsync(text.fileno())
        with suppress(FileExistsError):
            os.link(mine, file)
    finally:
        mine.unlink(missing_ok=True)
    sync_folder(file.parent)
    return file.read_text(encoding="utf-8")


def _hex(checksum: int) -> str:
    return f"{checksum:016x}"


def _names(files: Collection[tuple[str, str]]) -> str:
    """The first few with their checksums, for a message."""
    shown = [f"{name} ({checksum})" for name, checksum in sorted(files)[:3]]
    return ", ".join(shown) + (f" and {len(files) - 3} more" if len(files) > 3 else "")

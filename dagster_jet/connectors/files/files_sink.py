"""Files as a transactional sink: staged durably in phase 1, published in phase 2.

    <path>/[<column>=<value>/]part-<epoch>-<shard>-<execution>[-<number>].json
                                                     committed, never changed afterwards
    <path>/_epochs/<epoch>.json                      the epoch's marker, which lists its files;
                                                     removed when it is old and its files are gone
    <path>/_epochs/.owner, .store, .partition_by     marks of the folder
    <path>/.staging/<job>/<sink>/...                 phase 1, invisible to readers

A final name never has a partial file: plain listings show whole files. Readers that need whole
epochs use `_epochs`. Only files that a marker lists may be moved or deleted, because recovery looks
for others. A folder belongs to one sink of one job in one store's namespace.

At-least-once: rows written since the last snapshot appear again, in files of their own.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.empty_structs import refuse_empty_structs
from dagster_jet.connectors.files.cluster import check_reachable
from dagster_jet.connectors.files.folder_marks import OWNER, PARTITION_BY, STORE, FolderMarks
from dagster_jet.connectors.files.formats import COMPRESSIONS, can_be_text
from dagster_jet.connectors.files.old_markers import OldMarkers
from dagster_jet.connectors.files.partition_folders import (
    check_partition_by,
    folder_of,
    without_folder,
)
from dagster_jet.connectors.files.places.location import (
    READ_ONLY,
    StorageOptions,
    absolute,
    reopened_options,
    saved_options,
    scheme_of,
    storage_options,
)
from dagster_jet.connectors.files.places.opening import open_output
from dagster_jet.connectors.files.places.place import (
    EPOCHS_FOLDER,
    OutputPlace,
)
from dagster_jet.connectors.files.writer import RENDERED_COLUMN, FileLayout, FilesWriter
from dagster_jet.connectors.guarantees import shown_guarantee
from dagster_jet.connectors.values import json_lines
from dagster_jet.connectors.values.json_text import JSON_TEXT
from dagster_jet.contract import CommitContext, Committer, Refused, Sink, TransactionId
from dagster_jet.core.choices import check_known
from dagster_jet.core.ddl import quoted_name
from dagster_jet.core.first_of import first_of
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    PipelineError,
    SinkError,
    SinkMismatchError,
    SinkUnavailableError,
)
from dagster_jet.operators.user.dead_letters import row_at
from dagster_jet.snapshot.manifest import Artifact, by_epoch
from dagster_jet.snapshot.protocol import Guarantee
from dagster_jet.store import Store
from dagster_jet.system.failpoint import fail_point
from dagster_jet.system.own_task import naming
from dagster_jet.system.transient import DENIED, is_transient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMATS = ("json", "csv", "parquet")


@dataclass(frozen=True)
class FilesSink(Sink, Committer):
    """Writes a stream as JSON lines, CSV (with header) or Parquet files into a folder."""

    path: str
    format: str
    max_guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    storage_options: StorageOptions = ()
    partition_by: tuple[str, ...] = ()
    compression: str | None = None
    """None: the format's own."""
    max_file_bytes: int | None = None
    """Size at which a task begins another file; None: no limit."""
    shared: bool = field(default=False, compare=False, repr=False)
    """Whether a local folder is shared by all machines of a cluster."""
    store: str | None = field(default=None, compare=False, repr=False)
    """Store and namespace of the job."""
    former: str | None = field(default=None, compare=False, repr=False)
    """Former name of the sink in the pipeline."""
    _old_markers: OldMarkers = field(
        default_factory=OldMarkers, init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute(self.path))
        storage = storage_options(self.path, dict(self.storage_options))
        object.__setattr__(self, "storage_options", storage)
        if scheme_of(self.path) in READ_ONLY:
            raise ConfigurationError(
                f"path: {self.path!r} can only be read: its driver cannot create a file on the "
                "condition that it does not exist.",
                cure="Write to a bucket, or to a folder that is mounted: files(..., shared=True).",
            )
        check_known("format", self.format, FORMATS)
        if self.compression not in (None, *COMPRESSIONS[self.format]):
            raise ConfigurationError(
                f"compression: {self.compression!r} is not one of {self.format} files.",
                cure=f"Use one of {', '.join(COMPRESSIONS[self.format])}.",
            )
        if len({name.lower() for name in self.partition_by}) < len(self.partition_by):
            raise ConfigurationError(f"partition_by: {self.partition_by!r} has a name twice.")
        if self.max_file_bytes is not None and self.max_file_bytes < 1:
            raise ConfigurationError(f"max_file_bytes: {self.max_file_bytes} is not positive.")

    @property
    def an_output(self) -> str:
        """Path of a file as it writes them, whose values stand for any others."""
        folder = folder_of(self.partition_by, tuple("x" for _ in self.partition_by))
        return f"{self.path}/{folder}part-0000000001-0-1.{self._layout.suffix}"

    @property
    def _layout(self) -> FileLayout:
        return FileLayout(self.format, self.partition_by, self.compression, self.max_file_bytes)

    def describe(self) -> dict[str, str]:
        shown = {"kind": "files", "path": self.path, "format": self.format}
        if self.partition_by:
            shown["partition_by"] = ", ".join(self.partition_by)
        return {**shown, **shown_guarantee(self.max_guarantee)}

    def destination(self) -> dict[str, Any]:
        place: dict[str, Any] = {"path": self.path, "format": self.format}
        if self.storage_options:
            place["storage_options"] = saved_options(self.storage_options)
        return place

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> FilesSink:
        options = reopened_options(destination.get("storage_options", {}))
        return cls(destination["path"], destination["format"], storage_options=options)

    def with_store(self, store: Store) -> FilesSink:
        """Only records the namespace, within which names of jobs are unique; stores nothing."""
        return replace(self, store=f"store {store.store_id}, namespace {store.config.namespace!r}")

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> FilesSink:
        check_reachable(self.path, job, stage, is_reachable=on_one_host or self.shared)
        return self

    def formerly(self, name: str) -> FilesSink:
        return replace(self, former=name)

    def check(self, job: str, stage: str, *, is_new_job: bool) -> None:
        with self._errors_named(job, stage):
            place = self.place()
            if is_new_job:
                place.make(job, stage)
            marks = self._marks(job, stage, claims=is_new_job)
            marks.check_owner()
            if is_new_job and any(n.endswith(".json") for n in place.names(f"{EPOCHS_FOLDER}/")):
                raise ConfigurationError(
                    f"{self.path!r} holds epochs of an earlier life of this job, which the store "
                    "does not know: the job would write their rows twice.",
                    job=job,
                    stage=stage,
                    cure="Use the old store, or an empty output folder.",
                )
            marks.check_contents(self.store, self.partition_by)

    def claim_place(self, job: str, stage: str) -> None:
        with self._errors_named(job, stage):
            self.place().make(job, stage)
            marks = self._marks(job, stage, claims=True)
            marks.check_owner()
            marks.check_contents(self.store, self.partition_by)

    def _marks(self, job: str, stage: str, *, claims: bool) -> FolderMarks:
        return FolderMarks(self.path, self.place(), job, stage, claims, self.former)

    @contextmanager
    def _errors_named(self, job: str, stage: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if is_transient(error) and error.errno not in DENIED:
                # The disk that ended the last execution may still be full or unavailable.
                raise SinkError(
                    f"the output folder {self.path!r} cannot be used now: {error}.",
                    job=job,
                    stage=stage,
                    cure="Free disk space or bring the file system back. Meanwhile the job "
                    "restarts from its last snapshot.",
                ) from error
            raise ConfigurationError(
                f"the output folder {self.path!r} cannot be written: {error.strerror}.",
                job=job,
                stage=stage,
                cure="Correct the path or its permissions.",
            ) from None

    def check_columns(self, rows: DataFrame, job: str, stage: str) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        columns = to_arrow_schema(rows.schema, timezone="UTC")
        if self.partition_by:
            check_partition_by(columns, self.partition_by, job, stage)
        if self.format == "parquet":
            with naming(stage, job):
                refuse_empty_structs(columns)
        for column in columns if self.format == "csv" else ():
            if not can_be_text(column.type):
                raise PipelineError(
                    f"a CSV file cannot hold the column {column.name!r}: {column.type}.",
                    job=job,
                    stage=stage,
                    cure=f"Select its fields, render it with to_json({column.name}), or write "
                    "JSON or Parquet.",
                )

    def takes(self, schema: pa.Schema) -> bool:
        own = [column for column in schema if column.name not in self.partition_by]
        if self.format != "json":
            return True
        # A single column of that name would be taken for lines.
        return schema.names != [RENDERED_COLUMN] and json_lines.can_encode(pa.schema(own))

    def render(self, frame: DataFrame) -> DataFrame:
        if self.format != "json":
            return frame
        from pyspark.sql import functions as F

        own = [quoted_name(name) for name in frame.columns if name not in self.partition_by]
        line = F.concat(F.to_json(F.struct(*own), JSON_TEXT), F.lit("\n"))
        return frame.select(*map(quoted_name, self.partition_by), line.alias(RENDERED_COLUMN))

    def refused(self, rows: pa.RecordBatch) -> dict[int, Refused]:
        """Returns rows with a partition whose folder could not be named, or not be read."""
        by = [name for name in self.partition_by if name in rows.schema.names]
        return {
            number: Refused(
                f"the folder {self.path!r} refuses it: the partition column {why}",
                row_at(rows, number),
            )
            for number, why in without_folder(rows, by).items()
        }

    def open_writer(self, transaction: TransactionId) -> FilesWriter:
        return FilesWriter(self.path, self.storage_options, self._layout, transaction)

    def open_committer(self, job: str, stage: str) -> FilesSink:
        return self  # nothing is kept open between commits

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        place, epochs = self.place(), by_epoch(artifacts)
        needed = min((context.retained_epoch_id, *epochs))
        try:
            for epoch_id, parts in epochs.items():
                self._commit_epoch(place, epoch_id, parts, context)
                with suppress(OSError):  # committed; a later commit removes old markers
                    self._old_markers.remove(place, epoch_id, needed)
        except OSError as error:
            kind = SinkUnavailableError if is_transient(error) else SinkError
            raise kind(
                f"the output folder {self.path!r} cannot be written: {error}.",
                job=context.job,
                stage=context.sink,
                cure="Free disk space, correct the permissions or bring the file system back. "
                "Nothing is lost: the staged rows are committed then.",
            ) from error

    def _commit_epoch(
        self, place: OutputPlace, epoch_id: int, parts: list[Artifact], context: CommitContext
    ) -> None:
        marker = _marker(epoch_id, context)
        if self._is_committed(place, marker, parts, context):
            return
        are_there = place.each(lambda part: self._publish(place, part, context), parts)
        published = [part for part, is_there in zip(parts, are_there, strict=True) if is_there]
        if len(published) < len(parts):
            # Another execution may have committed meanwhile, and readers may have moved the files
            # that its marker lists.
            if self._is_committed(place, marker, parts, context):
                return
            for lost in (part for part in parts if part not in published):
                self._check_lost(place, lost, context)
                context.report_lost(lost)
        fail_point("files.commit.renamed")
        place.make_durable(published)
        fail_point("files.commit.marker")
        if not place.create(marker, _content(epoch_id, published, context)):
            # Another execution was faster, and readers may already use its marker.
            self._is_committed(place, marker, parts, context)

    def has_committed(self, artifacts: Collection[Artifact], context: CommitContext) -> bool:
        place = self.place()
        with self._unavailable(f"the output folder {self.path!r} cannot be read", context):
            markers = [place.read(_marker(epoch_id, context)) for epoch_id in by_epoch(artifacts)]
        return all(markers)

    def _is_committed(
        self, place: OutputPlace, marker: str, parts: Collection[Artifact], context: CommitContext
    ) -> bool:
        """Returns whether the marker exists. If so, discards the staged files of the same rows."""
        is_listed = self._is_listed(place, marker, parts, context)
        if is_listed:
            for part in parts:
                place.discard(part.token)
        return is_listed

    def _is_listed(
        self, place: OutputPlace, marker: str, parts: Collection[Artifact], context: CommitContext
    ) -> bool:
        """Returns whether the marker exists. If so, readers may have moved the files it lists.

        A repeated commit lists the same files, or fewer if `accept_loss` left some out. Raises
        `SinkMismatchError` for other files: staged files may only be removed if their rows are the
        same.
        """
        text = place.read(marker)
        if text is None:
            return False
        listed = {(file["name"], file["checksum"]) for file in json.loads(text)["files"]}
        staged = {(part.target, _hex(part.checksum)) for part in parts}
        if not listed <= staged:
            raise SinkMismatchError(
                f"another job commits into {self.path!r}: the marker lists {_names(listed)}, "
                f"staged are {_names(staged)}.",
                job=context.job,
                stage=context.sink,
                position=f"{self.path}/{marker}",
                cure="Give each sink a folder of its own. The staged rows are still there, and "
                "the next start commits them.",
            )
        return True

    def _publish(self, place: OutputPlace, artifact: Artifact, context: CommitContext) -> bool:
        """Moves a staged file to its final name; False if it is in neither place."""
        fail_point("files.commit.file")
        try:
            return place.publish(artifact)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            raise SinkMismatchError(
                f"epoch {artifact.epoch_id}: {artifact.token!r} cannot be renamed to "
                f"'{self.path}/{artifact.target}', which is on another file system.",
                job=context.job,
                stage=context.sink,
                position=artifact.token,
                cure="Start once with the sink's old path: that start commits the rows staged "
                "there. Then change the path.",
            ) from error

    def _check_lost(self, place: OutputPlace, artifact: Artifact, context: CommitContext) -> None:
        """Raises unless the loss of a missing artifact's rows is accepted."""
        if not place.is_there():
            raise SinkError(
                f"the output folder {self.path!r} is gone: moved, deleted or not mounted.",
                job=context.job,
                stage=context.sink,
                position=artifact.token,
                cure="Bring it back. Meanwhile the job restarts. Nothing is lost: the rows "
                "staged in the folder are committed then.",
            )
        if context.accept_loss:
            return
        raise ArtifactLostError(
            f"epoch {artifact.epoch_id}: the staged file with {artifact.rows} rows is gone, and "
            f"{artifact.target!r} does not exist (or is another file). The rows are not in the "
            "output, unless a reader took the file away before `_epochs` listed it.",
            job=context.job,
            stage=context.sink,
            position=artifact.token,
            cure="If its disk was not mounted, mount it. Otherwise bring the staged file back, "
            "or put the file that was taken back into the folder, or continue without these "
            "rows with the start option accept_loss=True.",
        )

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        place, removed = self.place(), 0
        for token in list(
            place.orphans(context.job, context.sink, context.execution_id, frozenset(keep))
        ):
            place.discard(token)
            removed += 1
        return removed

    def remove_output(self, context: CommitContext) -> bool:
        """Removes the files that markers of this sink list, then the markers."""
        place = self.place()
        with self._unavailable(f"the files in {self.path!r} cannot be removed", context):
            for name in [f"{EPOCHS_FOLDER}/{name}" for name in place.names(f"{EPOCHS_FOLDER}/")]:
                text = place.read(name) if name.endswith(".json") else None
                content = json.loads(text) if text is not None else {}
                if (content.get("job"), content.get("sink")) == (context.job, context.sink):
                    place.remove_all([file["name"] for file in content["files"]])
                    fail_point("files.remove.files")
                    place.remove(name)
        return True

    def give_up_place(self, context: CommitContext) -> bool:
        place, marks = self.place(), f"the marks in the output folder {self.path!r}"
        with self._unavailable(f"{marks} cannot be removed", context):
            if place.read(OWNER) == f"{context.job}/{context.sink}":
                for mark in (PARTITION_BY, STORE, OWNER):
                    place.remove(mark)  # owner last, so that a repeated call finds it
        return True

    @staticmethod
    @contextmanager
    def _unavailable(what: str, context: CommitContext) -> Iterator[None]:
        """Converts an `OSError` to `SinkUnavailableError`."""
        try:
            yield
        except OSError as error:
            raise SinkUnavailableError(
                f"{what}: {error}.", job=context.job, stage=context.sink
            ) from error

    def place(self) -> OutputPlace:
        """Returns the output folder, opened in this process."""
        return open_output(self.path, self.storage_options)


def _marker(epoch_id: int, context: CommitContext) -> str:
    suffix = f"-line{context.timeline}" if context.timeline > 1 else ""
    if context.repeatable:
        suffix += f"-{context.execution_id}"
    return f"{EPOCHS_FOLDER}/{epoch_id:010d}{suffix}.json"


def _content(epoch_id: int, parts: Iterable[Artifact], context: CommitContext) -> str:
    """Returns the text of a marker."""
    content: dict[str, Any] = {
        "job": context.job,
        "sink": context.sink,
        "line": context.timeline,
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
    return json.dumps(content, indent=1)


def _hex(checksum: int) -> str:
    return f"{checksum:016x}"


def _names(files: Collection[tuple[str, str]]) -> str:
    """Formats the first three files with their checksums for a message."""
    return first_of([f"{name} ({checksum})" for name, checksum in sorted(files)], 3)

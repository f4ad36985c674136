"""Staged segments: rows that a task writes durably in phase 1 and phase 2 applies.

They make a sink exactly-once although its outside system has no two-phase commit. A task stages its
rows where the driver and every executor can read them. Phase 2 applies them in one transaction of
the outside system, together with a marker `(job, sink, timeline, epoch)`. After a crash the marker
says whether the transaction was committed.

A segment is a sequence of chunks under the name of its transaction. It is inert until a snapshot
names it, and removed once it is applied.

    <execution>-<epoch>-<shard>-<attempt>/000000, .../000001, ...
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote, unquote

import pyarrow as pa
import xxhash

from dagster_jet.connectors.object_driver import connected
from dagster_jet.contract import Sink, SinkWriter, TransactionId
from dagster_jet.core.arrow_types import ArrowBatch, ArrowSchema
from dagster_jet.core.secret import Url
from dagster_jet.errors import ArtifactLostError
from dagster_jet.snapshot.manifest import Artifact, by_epoch
from dagster_jet.store import ReplicatedMap, Store, StoreHandle
from dagster_jet.system.durable import make_folder, sync_folder
from dagster_jet.system.failpoint import fail_point

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_logger = logging.getLogger(__name__)
_S = TypeVar("_S", bound="StagedInStore")
CHUNK_BYTES_MAX = 1 << 20
"""Size above which `RowsWriter` splits a batch: 1 MiB."""
_CHECKSUM_BYTES = 8


class StagingArea(Protocol):
    """Storage for the segments of one sink.

    Picklable: tasks write to it, the driver and other tasks read from it. A name is
    `<segment>/<chunk>`. Besides the errors named below, the calls raise those of the storage:
    `StoreError`, `OSError`, or an error of the object store's client.
    """

    def put(self, name: str, data: bytes) -> None:
        """Stores the data under the name, durably and atomically."""
        ...

    def get(self, name: str) -> bytes | None:
        """Returns the data after verifying its checksum; None if the name does not exist.

        Raises:
            ArtifactLostError: the data is damaged (a `StoreArea`: `StoreCorruptedError`).
        """
        ...

    def names(self) -> list[str]:
        """Returns all names, in no particular order."""
        ...

    def delete(self, names: Collection[str]) -> None:
        """Deletes these names; a missing name is not an error."""
        ...


@dataclass(frozen=True)
class StoreArea:
    """A `StagingArea` in the job's own store, which replicates and verifies its data."""

    store: Store | StoreHandle
    job: str
    sink: str

    def put(self, name: str, data: bytes) -> None:
        """See `StagingArea.put`. A crash may leave the data on only some replicas."""
        map = self._map()
        map.put_all({map.key(name): data})

    def get(self, name: str) -> bytes | None:
        """See `StagingArea.get`."""
        map = self._map()
        return map.get(map.key(name), every_replica=True)

    def names(self) -> list[str]:
        """See `StagingArea.names`."""
        return [key.name for key in self._map().keys("")]

    def delete(self, names: Collection[str]) -> None:
        """See `StagingArea.delete`."""
        map = self._map()
        map.delete_all([map.key(name) for name in names])

    def _map(self) -> ReplicatedMap:
        return self.store.map(f"jobs/{self.job}/staged/{self.sink}")

    def __reduce__(self) -> tuple[Any, ...]:
        store = self.store.handle() if isinstance(self.store, Store) else self.store
        return StoreArea, (store, self.job, self.sink)


class StagedInStore(Sink):
    """A sink whose writers stage rows in the job's store: by default all rows, as they are.

    A subclass is a frozen dataclass with a field `store`, and has `describe` and `open_committer`.
    After a crash, rows of no snapshot stay in the store until `remove_orphans`.
    """

    store: Store | StoreHandle | None
    """None until the engine calls `with_store`, before any other method of an execution."""

    def with_store(self: _S, store: Store) -> _S:
        changed: Any = self
        made: _S = replace(changed, store=store)
        return made

    def takes(self, schema: ArrowSchema) -> bool:
        return True

    def render(self, frame: DataFrame) -> DataFrame:
        return frame

    def open_writer(self, transaction: TransactionId) -> SinkWriter:
        area = self.area(transaction.job, transaction.sink)
        return RowsWriter(SegmentWriter(area, transaction, self.describe()["kind"]))

    def area(self, job: str, sink: str) -> StoreArea:
        """Returns the place of the staged rows, for the committer as well."""
        assert self.store is not None, "the engine puts it on the job's store first"
        return StoreArea(self.store, job, sink)

    def __getstate__(self) -> dict[str, Any]:
        """Gives tasks a handle of the store."""
        store = self.store.handle() if isinstance(self.store, Store) else self.store
        return {**self.__dict__, "store": store}


@dataclass(frozen=True)
class FolderArea:
    """A `StagingArea` in a folder that the driver and all executors share, for one sink alone.

    Example:
        >>> area = FolderArea(tmp_path)
        >>> area.put("5-7-0-a0/000000", b"rows")
        >>> area.get("5-7-0-a0/000000"), area.names()
        (b'rows', ['5-7-0-a0/000000'])
        >>> area.delete(area.names())
        >>> area.names()
        []
    """

    path: str

    def put(self, name: str, data: bytes) -> None:
        """See `StagingArea.put`. A crash may leave a hidden file, which is never removed."""
        file = self._file(name)
        make_folder(file.parent)
        temporary = file.with_name(f".{file.name}.{os.getpid()}")
        with open(temporary, "wb") as open_file:
            open_file.write(_checksum(data))
            open_file.write(data)
            open_file.flush()
            os.fsync(open_file.fileno())
        os.replace(temporary, file)
        sync_folder(file.parent)

    def get(self, name: str) -> bytes | None:
        """See `StagingArea.get`."""
        try:
            framed = self._file(name).read_bytes()
        except FileNotFoundError:
            return None
        return _unframed(framed, str(self._file(name)))

    def names(self) -> list[str]:
        """See `StagingArea.names`."""
        files = Path(self.path).glob("*/*")
        return [f"{unquote(f.parent.name)}/{f.name}" for f in files if not f.name.startswith(".")]

    def delete(self, names: Collection[str]) -> None:
        """See `StagingArea.delete`. Also removes folders that become empty."""
        folders = set()
        for name in names:
            file = self._file(name)
            file.unlink(missing_ok=True)
            folders.add(file.parent)
        for folder in folders:
            _remove_if_empty(folder)

    def _file(self, name: str) -> Path:
        segment, _, chunk = name.rpartition("/")
        return Path(self.path) / quote(segment, safe="") / chunk


@dataclass(frozen=True)
class ObjectArea:
    """A `StagingArea` in a folder of an object store that fsspec reaches, for one sink alone.

    For example `s3://` with s3fs, or `gs://`. An object is written atomically. Slashes in a
    name are folders.

    Args:
        url: the folder's URL for fsspec.
        options: (name, value) pairs for fsspec; values may be secrets.
    """

    url: str
    options: tuple[tuple[str, Url], ...] = ()

    def put(self, name: str, data: bytes) -> None:
        """See `StagingArea.put`."""
        files, folder = connected(self.url, self.options)
        files.pipe_file(f"{folder}/{name}", _checksum(data) + data)

    def get(self, name: str) -> bytes | None:
        """See `StagingArea.get`."""
        files, folder = connected(self.url, self.options)
        try:
            framed: bytes = files.cat_file(f"{folder}/{name}")
        except FileNotFoundError:
            return None
        return _unframed(framed, f"{self.url}/{name}")

    def names(self) -> list[str]:
        """See `StagingArea.names`."""
        files, folder = connected(self.url, self.options)
        return [str(path).partition(f"{folder}/")[2] for path in files.find(folder)]

    def delete(self, names: Collection[str]) -> None:
        """See `StagingArea.delete`."""
        files, folder = connected(self.url, self.options)
        for name in names:
            with suppress(FileNotFoundError):
                files.rm_file(f"{folder}/{name}")


def _unframed(framed: bytes, place: str) -> bytes:
    data = framed[_CHECKSUM_BYTES:]
    if framed[:_CHECKSUM_BYTES] != _checksum(data):
        raise ArtifactLostError(
            "a staged chunk is damaged.",
            position=place,
            cure="Restore it from a copy, or continue without its rows with "
            "the start option accept_loss=True.",
        )
    return data


@dataclass
class SegmentWriter:
    """Stages one task's chunks of one epoch.

    Example:
        >>> transaction = TransactionId("j", "out", 1, 5, epoch_id=7, shard=0, attempt="a0")
        >>> writer = SegmentWriter(FolderArea(tmp_path), transaction, "table results")
        >>> writer.append(b"two rows", rows=2)
        >>> artifacts = writer.finish()
        >>> [(epoch_id, segments)] = segments_by_epoch(writer.area, artifacts)
        >>> epoch_id, [list(segment.chunks()) for segment in segments]
        (7, [[b'two rows']])
    """

    area: StagingArea
    transaction: TransactionId
    target: str
    """Description of the place where the chunks are applied, for people."""
    _chunks: int = 0
    _rows: int = 0
    _bytes: int = 0
    _digest: Any = field(default_factory=xxhash.xxh3_64)

    def append(self, chunk: bytes, rows: int) -> None:
        """Stages a chunk durably.

        Args:
            chunk: any bytes; `CHUNK_BYTES_MAX` is a good size.
            rows: number of rows in the chunk.

        Raises:
            JetError or OSError: as `StagingArea.put`. The task fails; call `remove`.
        """
        fail_point("staging.put.before")
        self.area.put(_chunk_name(_segment_name(self.transaction), self._chunks), chunk)
        self._digest.update(chunk)
        self._chunks += 1
        self._rows += rows
        self._bytes += len(chunk)

    def finish(self) -> tuple[Artifact, ...]:
        """Returns the segment's artifact; none if there are no chunks.

        A crash after this leaves an orphan, which `remove_orphans` finds.
        """
        if self._chunks == 0:
            return ()
        fail_point("staging.finished")
        return (
            Artifact(
                sink=self.transaction.sink,
                epoch_id=self.transaction.epoch_id,
                token=self._token,
                target=self.target,
                rows=self._rows,
                bytes=self._bytes,
                checksum=self._digest.intdigest(),
            ),
        )

    def remove(self) -> None:
        """Deletes the appended chunks of a failed task, best effort."""
        _removed(self.area, self._token)

    @property
    def _token(self) -> str:
        return f"{_segment_name(self.transaction)}/{self._chunks}"


@dataclass(frozen=True)
class Segment:
    """One task's staged chunks of one epoch, for phase 2."""

    area: StagingArea
    artifact: Artifact

    @property
    def names(self) -> list[str]:
        """Names of the chunks in the area, in order."""
        return _chunk_names(self.artifact.token)

    def chunks(self) -> Iterator[bytes]:
        """Yields the chunks in order, and verifies their common checksum after the last one.

        Commit only after the iterator has ended.

        Raises:
            ArtifactLostError: a chunk is missing, damaged or not the one that was staged. Check
                the marker again: another execution may have applied and removed the chunks.
        """
        digest = xxhash.xxh3_64()
        for name in self.names:
            data = self.area.get(name)
            if data is None:
                raise self._lost(f"the staged chunk {name!r} is gone")
            digest.update(data)
            yield data
        if digest.intdigest() != self.artifact.checksum:
            raise self._lost("the staged chunks are not those that were acknowledged")

    def remove(self) -> None:
        """Deletes the chunks, best effort. Call it only after they and the marker are committed."""
        _removed(self.area, self.artifact.token)

    def _lost(self, what: str) -> ArtifactLostError:
        return ArtifactLostError(
            f"epoch {self.artifact.epoch_id}: {what}; {self.artifact.rows} rows for "
            f"{self.artifact.target!r} are lost.",
            stage=self.artifact.sink,
            position=self.artifact.token,
            cure="Bring the store's members with the staged rows back, or continue without the "
            "rows with the start option accept_loss=True.",
        )


def segments_by_epoch(
    area: StagingArea, artifacts: Collection[Artifact]
) -> list[tuple[int, list[Segment]]]:
    """Returns (epoch id, its segments), oldest epoch first.

    An epoch's segments are ordered by shard, which is the order of the rows, and in the same order
    at every attempt.
    """
    in_order = by_epoch(sorted(artifacts, key=lambda one: (shard_of(one.token), one.token)))
    return [(epoch, [Segment(area, one) for one in some]) for epoch, some in in_order.items()]


def remove_orphans(area: StagingArea, execution_id: int, keep: Collection[str]) -> int:
    """Removes chunks of executions older than this one, for `Committer.abort_orphans`.

    Args:
        area: the area of this sink only.
        execution_id: id of this execution.
        keep: tokens of artifacts that a snapshot names.

    Returns:
        The number of removed chunks.
    """
    kept = {token.rpartition("/")[0] for token in keep}
    doomed = [
        name
        for name in area.names()
        if (segment := name.rpartition("/")[0]) not in kept
        and int(segment.partition("-")[0]) < execution_id
    ]
    area.delete(doomed)
    return len(doomed)


# --- rows as Arrow --------------------------------------------------------------------------------


@dataclass
class RowsWriter(SinkWriter):
    """Stages a sink's rows as Arrow; `rows_of` reads them back."""

    segment: SegmentWriter

    def write(self, batch: ArrowBatch) -> None:
        """Stages the batch in chunks of at most `CHUNK_BYTES_MAX` or of one row."""
        for some in _small(batch):
            self.segment.append(_as_bytes(some), some.num_rows)

    def prepare(self) -> tuple[Artifact, ...]:
        """Returns the segment's artifact; none if there were no rows."""
        return self.segment.finish()

    def abort(self) -> None:
        """Deletes the staged chunks."""
        self.segment.remove()


def rows_of(segments: Sequence[Segment]) -> Iterator[ArrowBatch]:
    """Yields the rows that `RowsWriter` staged in these segments, in order.

    Raises:
        ArtifactLostError: as `Segment.chunks`, possibly after some rows.
    """
    for segment in segments:
        for chunk in segment.chunks():
            yield from pa.ipc.open_stream(chunk)


def _small(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows > 1 and batch.nbytes > CHUNK_BYTES_MAX:
        half = batch.num_rows // 2
        yield from _small(batch.slice(0, half))
        yield from _small(batch.slice(half))
    elif batch.num_rows:
        yield batch


def _as_bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _segment_name(t: TransactionId) -> str:
    return f"{t.execution_id}-{t.epoch_id}-{t.shard}-{t.attempt}"


def shard_of(token: str) -> int:
    """Returns the shard of the task that staged a segment, from its token."""
    return int(token.split("-", 3)[2])


def _chunk_name(segment: str, number: int) -> str:
    return f"{segment}/{number:06d}"


def _chunk_names(token: str) -> list[str]:
    """Returns the chunk names of a token, `<segment>/<number of chunks>`."""
    segment, _, chunks = token.rpartition("/")
    return [_chunk_name(segment, number) for number in range(int(chunks))]


def _removed(area: StagingArea, token: str) -> None:
    """Deletes a segment, best effort: `remove_orphans` finds the rest."""
    try:
        area.delete(_chunk_names(token))
    except Exception as error:  # noqa: BLE001 - areas raise errors of their clients
        _logger.warning(
            "the staged segment %s could not be deleted, a later start deletes it: %s", token, error
        )


def _checksum(data: bytes) -> bytes:
    return bytes(xxhash.xxh3_64_digest(data))


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()

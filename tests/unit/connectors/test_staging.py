"""Staged segments, wherever they are kept: whole, checked, inert until named, removed by age."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_jet.connectors.staging import (
    CHUNK_BYTES_MAX,
    FolderArea,
    ObjectArea,
    RowsWriter,
    Segment,
    SegmentWriter,
    StagingArea,
    StoreArea,
    remove_orphans,
    rows_of,
    segments_by_epoch,
)
from dagster_jet.contract import TransactionId
from dagster_jet.errors import ArtifactLostError, ExecutorLostError, JetError, Reaction
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.spark.tasks.commit_pieces import CommitPieces
from dagster_jet.store import Store, StoreConfig


@pytest.fixture(params=["folder", "store", "objects"])
def area(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StagingArea]:
    if request.param == "folder":
        yield FolderArea(f"{tmp_path}/staged")
        return
    if request.param == "objects":
        yield ObjectArea(f"memory://{uuid.uuid4().hex}/staged")
        return
    config = StoreConfig((f"memory://{uuid.uuid4().hex}",), allow_memory=True, backup_count=0)
    with Store.open(config) as store:
        yield StoreArea(store, "j", "out")


def staged(area: StagingArea, *chunks: bytes, execution_id: int = 5, epoch_id: int = 9) -> Artifact:
    transaction = TransactionId("j", "out", 1, execution_id, epoch_id, 0, "7.a/b")
    writer = SegmentWriter(area, transaction, "a table")
    for chunk in chunks:
        writer.append(chunk, rows=1)
    [artifact] = writer.finish()
    return artifact


def test_chunks_come_back_in_order_and_are_removed(area: StagingArea) -> None:
    artifact = staged(area, b"one", b"", b"three" * 300_000)
    assert (artifact.rows, artifact.bytes) == (3, 1_500_003)
    again = area if isinstance(area, StoreArea) else pickle.loads(pickle.dumps(area))
    segment = Segment(again, artifact)  # a store in memory stays in its process
    assert list(segment.chunks()) == [b"one", b"", b"three" * 300_000]
    segment.remove()
    segment.remove()
    assert area.names() == []
    with pytest.raises(ArtifactLostError, match="000000' is gone; 3 rows for 'a table' are lost"):
        list(segment.chunks())


def test_segments_of_an_epoch_come_by_their_numbers(area: StagingArea) -> None:
    """Shard 2 before shard 10, and epoch 9 before epoch 10, however they are given."""
    places = [(epoch, shard) for epoch in (9, 10) for shard in range(12)]
    artifacts = []
    for epoch, shard in reversed(places):
        transaction = TransactionId("j", "out", 1, 5, epoch, shard, f"{20 - shard}.a")
        writer = SegmentWriter(area, transaction, "a table")
        writer.append(f"{epoch} {shard}".encode(), rows=1)
        artifacts += writer.finish()
    found = [
        (epoch, chunk.decode())
        for epoch, segments in segments_by_epoch(area, artifacts)
        for segment in segments
        for chunk in segment.chunks()
    ]
    assert found == [(epoch, f"{epoch} {shard}") for epoch, shard in places]


def test_chunks_of_another_attempt_are_noticed(area: StagingArea) -> None:
    artifact = staged(area, b"one", b"two")
    area.put(Segment(area, artifact).names[1], b"2")
    with pytest.raises(ArtifactLostError, match="not those that were acknowledged"):
        list(Segment(area, artifact).chunks())


def test_a_damaged_file_is_noticed(tmp_path: Path) -> None:
    area = FolderArea(str(tmp_path))
    segment = Segment(area, staged(area, b"one"))
    [file] = tmp_path.glob("*/*")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ArtifactLostError, match="a staged chunk is damaged"):
        list(segment.chunks())


def test_orphans_are_those_of_older_executions_that_nobody_names(area: StagingArea) -> None:
    kept, gone = staged(area, b"kept", execution_id=4), staged(area, b"gone", execution_id=3)
    newer = staged(area, b"newer", execution_id=7)
    assert remove_orphans(area, 6, [kept.token]) == 1
    left = sorted(area.names())
    assert left == sorted([*Segment(area, kept).names, *Segment(area, newer).names])
    assert gone.token not in left


def test_epochs_and_segments_have_one_order(area: StagingArea) -> None:
    late, early = staged(area, b"l", epoch_id=10), staged(area, b"e", epoch_id=9)
    for artifacts in ([late, early], [early, late]):
        assert [epoch for epoch, _ in segments_by_epoch(area, artifacts)] == [9, 10]


def test_rows_of_any_size_are_staged_as_they_are(area: StagingArea) -> None:
    batch = pa.record_batch({"v": [1, None, 3], "text": ["x" * CHUNK_BYTES_MAX, None, ""]})
    writer = RowsWriter(SegmentWriter(area, TransactionId("j", "out", 1, 5, 9, 0, "a"), "t"))
    writer.write(batch)
    writer.write(batch.slice(0, 0))
    [artifact] = writer.prepare()
    rows = [row for part in rows_of([Segment(area, artifact)]) for row in part.to_pylist()]
    assert rows == batch.to_pylist() and artifact.rows == 3


def test_a_task_without_rows_stages_nothing_and_one_that_failed_leaves_nothing(
    area: StagingArea,
) -> None:
    writer = RowsWriter(SegmentWriter(area, TransactionId("j", "out", 1, 5, 9, 0, "a"), "t"))
    assert writer.prepare() == ()
    writer.write(pa.record_batch({"v": [1]}))
    writer.abort()
    assert area.names() == []


# --- pieces of a commit in tasks ------------------------------------------------------------------


def _fails() -> None:
    raise ExecutorLostError("the disk is full.", job="j", cure="Free some.")


def test_the_error_of_a_piece_reaches_the_driver_whole() -> None:
    pieces = CommitPieces((lambda: 7, _fails))
    [one, two] = pieces([pa.record_batch({"id": [0, 1]})])
    assert pickle.loads(one["result"][0].as_py()) == 7
    error = pickle.loads(two["result"][0].as_py())
    assert isinstance(error, JetError) and error.reaction is Reaction.RESTART
    assert str(error) == "job 'j': the disk is full. Free some." and error.job == "j"

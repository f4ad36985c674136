"""Documents in the store are read as they were written; a newer format is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dagster_jet.errors import SnapshotInvalidError, StoreMismatchError
from dagster_jet.snapshot.manifest import (
    MANIFEST_FORMAT,
    Ack,
    Artifact,
    ChunkSet,
    Counters,
    Manifest,
    Run,
    ShardState,
    checksum,
    validate_manifest,
)
from dagster_jet.snapshot.record import (
    RECORD_FORMAT,
    ExecutionRecord,
    JobStatus,
    Lease,
    SnapshotRef,
)

BASE = ChunkSet("hourly/1-4-0-a0", 123, 7, 100, 4096, is_base=True)
NEXT = ChunkSet("hourly/1-5-0-a1", 456, 2, 3, 80, sequence=1)
ARTIFACT = Artifact("out", 9, "staged/1-9", "out/1-9", 3, 80, 2**63)
MANIFEST = Manifest(
    job="flights",
    snapshot_id=5,
    epoch_id=9,
    execution_id=1,
    timeline=2,
    plan_fingerprint="v1",
    partition_count=271,
    sources={"inbox": {"after": "b.json"}},
    watermarks={"hourly": [1, None]},
    shards={"hourly": ((BASE, NEXT), ())},
    artifacts=(ARTIFACT,),
    counters={"hourly": Counters(3, 2, 1, 0)},
    prepared=("hourly",),
    sinks={"out": {"kind": "files", "path": "/out", "format": "json"}},
)
RECORD = ExecutionRecord(
    "flights",
    7,
    JobStatus.COMPLETING,
    timeline=2,
    snapshots=(SnapshotRef(5, 9, 1, MANIFEST.name, 2**64 - 1, 1000, 4176, committed=True),),
    reserved_snapshot_id=64,
    lease=Lease("p1", "host", 42, 1, 2, 3000, run_id="run"),
    failure="none so far",
)
ACK = Ack(
    "hourly",
    1,
    "a1",
    rows_in=3,
    saved=(Run("a", 1, 8, 5, 6),),
    unsaved=(Run("b", 2, 16),),
    obsolete=("c",),
    chunk_set=NEXT,
    chain_dropped=1,
    artifacts=(ARTIFACT,),
    prepared=True,
)


def test_a_record_survives_its_bytes() -> None:
    assert ExecutionRecord.from_bytes(RECORD.to_bytes()) == RECORD
    bare = ExecutionRecord("flights", 1, JobStatus.NOT_RUNNING)
    assert ExecutionRecord.from_bytes(bare.to_bytes()) == bare


def test_a_manifest_survives_its_bytes() -> None:
    read = Manifest.from_bytes(MANIFEST.to_bytes())
    assert read == MANIFEST
    assert read.to_bytes() == MANIFEST.to_bytes(), "else its checksum would change"
    assert MANIFEST.chunk_sets() == {"hourly": {BASE.name, NEXT.name}}


def test_an_ack_survives_its_bytes() -> None:
    assert Ack.from_bytes(ACK.to_bytes()) == ACK
    assert Ack.from_bytes(Ack("out", 0, "a0").to_bytes()) == Ack("out", 0, "a0")


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(StoreMismatchError, match=r"job 'flights'.*Upgrade dagster-jet"):
        ExecutionRecord.from_bytes(_with_format(RECORD.to_bytes(), RECORD_FORMAT + 1))
    with pytest.raises(StoreMismatchError, match=r"job 'flights'.*Upgrade dagster-jet"):
        Manifest.from_bytes(_with_format(MANIFEST.to_bytes(), MANIFEST_FORMAT + 1))


def _with_format(data: bytes, number: int) -> bytes:
    return json.dumps({**json.loads(data), "format": number}).encode()


def test_only_the_manifest_that_the_record_names_is_accepted() -> None:
    data = MANIFEST.to_bytes()
    known = {"job": "flights", "name": MANIFEST.name}
    assert validate_manifest(data, **known, expected_checksum=checksum(data)) == MANIFEST
    with pytest.raises(SnapshotInvalidError, match="missing from the store"):
        validate_manifest(None, **known, expected_checksum=checksum(data))
    with pytest.raises(SnapshotInvalidError, match="not the one that the execution record names"):
        validate_manifest(data[:-1] + b" ", **known, expected_checksum=checksum(data))


def test_a_base_ends_the_chain_and_a_rewrite_drops_its_oldest_sets() -> None:
    state = ShardState(unsaved=(Run("b", 2, 16),), chain=(BASE, NEXT)).at_barrier()
    rewrite = replace(ACK, chunk_set=ChunkSet("third", 0, 1, 1, 8), chain_dropped=1)
    assert [s.name for s in state.after_snapshot(rewrite).chain] == [NEXT.name, "third"]
    base = replace(ACK, chunk_set=ChunkSet("fourth", 0, 1, 1, 8, is_base=True))
    after = state.after_snapshot(base)
    assert [s.name for s in after.chain] == ["fourth"]
    assert (after.saved, after.unsaved) == ((Run("b", 2, 16),), ())

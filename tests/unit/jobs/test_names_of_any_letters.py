"""Names of 100 bytes fit into the keys of every member, whatever their letters are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_jet import Pipeline, sinks, sources
from dagster_jet.connectors.staging import StoreArea
from dagster_jet.jobs.deletion import delete_job
from dagster_jet.orchestration.partition_job import Attempt, job_of_partition
from dagster_jet.ownership.record_keeper import JOB_DIRECTORY, RecordKeeper, read_record
from dagster_jet.ownership.supervision import Intent, read_supervision, set_intent
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.storage.chunks import ChunkSetName
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store, StoreConfig

PARTITIONS = 3
ATTEMPT = "0123456789abcdef"


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    place = f"file://{tmp_path}/a" if request.param == "file" else f"memory://{tmp_path.name}"
    config = StoreConfig((place,), backup_count=0, partition_count=PARTITIONS, allow_memory=True)
    with Store.open(config) as opened:
        yield opened


@pytest.mark.parametrize(
    "letter", ["\N{CYRILLIC SMALL LETTER ZHE}", "\N{CJK UNIFIED IDEOGRAPH-8A9E}", "x", "%"]
)
def test_all_that_a_job_stores_has_keys_that_fit(store: Store, letter: str) -> None:
    """Failed before: a letter took six or nine bytes, and the first snapshot 637 or more."""
    name = letter * (100 // (3 if letter == "%" else len(letter.encode())))
    p = Pipeline(name)
    rows = p.read_from(sources.files("/in", format="json", schema="id long"), name="rows")
    rows.write_to(sinks.files("/out", format="json"), name=name)
    partition = Attempt(99, "01234567").of(job_of_partition(name, "k" * 100))
    for job in (name, p.renamed(partition).name):
        keeper = RecordKeeper(store, job, 60_000, None)
        record = keeper.claim(change=None)
        set_intent(store, job, Intent.PAUSED)
        area = StoreArea(store, job, name)
        staged = f"0000000012-1-7-{ATTEMPT}/0003"
        area.put(staged, b"rows")
        assert area.get(staged) == b"rows" and area.names() == [staged]
        state = SnapshotStore(store, job)
        origin = ChunkSetName(name, 12, 7, 3, ATTEMPT)
        state.chunks.put_all({state.chunks.key(f"{origin}/index"): b"index"})
        manifest = Manifest(job, 12, 12, 7, 1, "", PARTITIONS, {}, {}, {}, ())
        state.write(manifest)
        assert sorted(store.map_names(f"jobs/{job}/")) == [
            f"jobs/{job}/staged/{name}",
            f"jobs/{job}/state",
        ]
        supervision = read_supervision(store, job)
        assert supervision is not None and supervision.intent is Intent.PAUSED
        keeper.release(record)
        assert delete_job(store, job, release_sinks=False).entries == 3
        assert read_record(store, job) is None and not store.map_names(f"jobs/{job}/")
    assert not store.map(JOB_DIRECTORY).keys("")

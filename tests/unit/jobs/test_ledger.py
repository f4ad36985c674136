"""Newest committed epoch of a sink, by the markers at its place and the newest snapshots. Rules
only; `test_killed` asks real places."""

from __future__ import annotations

import pytest

from dagster_jet.observe.reading.ledger import newest_committed
from dagster_jet.snapshot.manifest import Artifact, Manifest
from dagster_jet.snapshot.record import SnapshotRef

OLD, MIDDLE, NEW = 10, 20, 30
"""Epochs of three snapshots."""


def snapshot(epoch: int, *sinks: str) -> tuple[SnapshotRef, Manifest]:
    artifacts = tuple(Artifact(sink, epoch, f"{sink}-{epoch}", "", 1, 1, 0) for sink in sinks)
    ref = SnapshotRef(epoch // 10, epoch, 1, "", 0, 0, 0)
    return ref, Manifest("j", ref.snapshot_id, epoch, 1, 1, "", 1, {}, {}, {}, artifacts)


@pytest.mark.parametrize(
    ("written_to", "committed", "expected"),
    [
        ({OLD, MIDDLE, NEW}, {OLD, MIDDLE, NEW}, NEW),
        ({OLD, MIDDLE, NEW}, {OLD, MIDDLE}, MIDDLE),
        ({OLD, MIDDLE, NEW}, {OLD}, OLD),
        ({OLD, MIDDLE, NEW}, set(), None),
        ({OLD, MIDDLE}, {OLD, MIDDLE}, NEW),
        ({OLD, MIDDLE}, {OLD}, OLD),
        ({OLD}, {OLD}, NEW),
        ({OLD}, set(), None),
        (set(), set(), NEW),
    ],
)
def test_an_epoch_without_output_is_as_far_as_the_one_before(
    written_to: set[int], committed: set[int], expected: int | None
) -> None:
    retained = [
        snapshot(epoch, "other", *(["out"] if epoch in written_to else []))
        for epoch in (NEW, MIDDLE, OLD)
    ]

    def has_committed(manifest: Manifest, artifacts: object) -> bool:
        assert artifacts == [one for one in manifest.artifacts if one.sink == "out"]
        return manifest.epoch_id in committed

    assert newest_committed(retained, "out", has_committed) == expected

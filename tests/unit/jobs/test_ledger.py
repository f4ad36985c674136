"""Newest committed epoch of a sink, by the markers at its place and the newest snapshots. Rules
only; `test_killed` asks real places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dagster_jet.observe.reading.ledger import newest_committed, recorded_as_committed
from dagster_jet.snapshot.manifest import Artifact, Manifest, NewestOutput
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


def test_a_sink_that_holds_rows_back_has_the_epoch_of_its_newest_output() -> None:
    ref, newest = snapshot(NEW, "out")
    visible = NewestOutput(Artifact("out", OLD, "out-10", "", 1, 1, 0), 1)
    newest = replace(newest, held=("out",), newest_output={"out": visible})

    def has_committed(manifest: Manifest, artifacts: Sequence[Artifact]) -> bool:
        return [one.epoch_id for one in artifacts] == [OLD]

    assert newest_committed([(ref, newest)], "out", has_committed) == OLD
    nothing = replace(newest, newest_output={})
    assert newest_committed([(ref, nothing)], "out", has_committed) is None


def test_a_record_tells_no_rows_that_are_held_back() -> None:
    """Failed before: while a place did not answer, the epoch was the snapshot's."""
    ref, newest = snapshot(NEW, "out", "plain")
    ref = replace(ref, committed=True, holds=True)
    visible = NewestOutput(Artifact("out", OLD, "out-10", "", 1, 1, 0), 1)
    newest = replace(newest, held=("out",), newest_output={"out": visible})
    older, before = snapshot(MIDDLE, "out")
    retained = [(ref, newest), (replace(older, committed=True), before)]
    assert recorded_as_committed(retained, "out") == OLD
    assert recorded_as_committed(retained, "plain") == NEW
    nothing = replace(newest, newest_output={})
    assert recorded_as_committed([(ref, nothing)], "out") is None
    assert (
        recorded_as_committed([(replace(ref, committed=False), newest), *retained[1:]], "out")
        == MIDDLE
    )
    assert recorded_as_committed([], "out") is None

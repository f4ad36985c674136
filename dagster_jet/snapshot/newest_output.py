"""The newest output that each sink's place must have, so that a start can ask for it. Pure.

A place may come back empty or older: a folder that is not mounted, a database restored from a copy,
a replica that is behind. Going on there would leave rows out without a word. Every manifest names
one artifact per sink, of the newest epoch before its own that had output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dagster_jet.snapshot.manifest import Artifact, Manifest, NewestOutput
from dagster_jet.snapshot.owed import SinkFate, sink_fate


def newest_of(
    artifacts: Iterable[Artifact], timeline: int, execution_id: int = 0
) -> dict[str, NewestOutput]:
    """By sink, one artifact of its newest epoch among these."""
    newest: dict[str, Artifact] = {}
    for artifact in artifacts:
        known = newest.get(artifact.sink)
        if known is None or artifact.epoch_id > known.epoch_id:
            newest[artifact.sink] = artifact
    return {sink: NewestOutput(one, timeline, execution_id) for sink, one in newest.items()}


def output_to_be_there(manifest: Manifest, *, is_committed: bool) -> dict[str, NewestOutput]:
    """By sink, what its place must have before phase 2 of this snapshot is made again."""
    if not is_committed:
        return dict(manifest.newest_output)
    return {**manifest.newest_output, **newest_of(manifest.artifacts, manifest.timeline)}


def output_after(
    manifest: Manifest,
    *,
    is_committed: bool,
    lost: Collection[str],
    sinks: Mapping[str, Mapping[str, Any]],
) -> dict[str, NewestOutput]:
    """By sink, what its place has once phase 2 of the snapshot is over.

    Args:
        manifest: of the snapshot that an execution begins with.
        is_committed: its phase 2 was over before.
        lost: sinks whose place came back without its output, which is accepted.
        sinks: where today's write: another place begins with nothing.
    """
    before = output_to_be_there(manifest, is_committed=is_committed)
    after = {sink: one for sink, one in before.items() if sink not in lost}
    if not is_committed:
        after |= newest_of(manifest.artifacts, manifest.timeline)
    return {
        sink: one
        for sink, one in after.items()
        if sink_fate(sink, manifest.sinks, sinks) is SinkFate.KEPT
    }

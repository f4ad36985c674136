"""The newest output that each sink's place must have, for a start to check. Pure.

A place may come back empty or older: an unmounted folder, a restored database, a replica that is
behind. To continue there would lose rows silently. So every manifest names one artifact per sink,
from the newest epoch with output before the manifest's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dagster_jet.snapshot.manifest import Artifact, Manifest, NewestOutput
from dagster_jet.snapshot.owed import present_name
from dagster_jet.snapshot.record import ExecutionRecord


def newest_of(
    artifacts: Iterable[Artifact], timeline: int, execution_id: int = 0
) -> dict[str, NewestOutput]:
    """One artifact per sink: the last of the sink's newest epoch among these artifacts. Artifacts
    that are committed one after the other are committed in their order, so this one is the last."""
    newest: dict[str, Artifact] = {}
    for artifact in artifacts:
        known = newest.get(artifact.sink)
        if known is None or artifact.epoch_id >= known.epoch_id:
            newest[artifact.sink] = artifact
    return {sink: NewestOutput(one, timeline, execution_id) for sink, one in newest.items()}


def output_to_be_there(manifest: Manifest, *, is_committed: bool) -> dict[str, NewestOutput]:
    """Output that each sink's place must have before phase 2 of this snapshot is repeated."""
    if not is_committed:
        return dict(manifest.newest_output)
    return {**manifest.newest_output, **newest_of(manifest.due, manifest.timeline)}


def output_up_to(manifest: Manifest, record: ExecutionRecord) -> tuple[int, int]:
    """Timeline and epoch up to which this job's output has the rows that a snapshot has.

    (0, 0) for an export of another job, or of this one before it was deleted or reset: its epochs
    say nothing about this job's output.

    Args:
        manifest: of a retained or an exported snapshot.
        record: of the job that begins with it.
    """
    if manifest.job != record.job or manifest.execution_id < record.first_execution_id:
        return 0, 0
    return manifest.timeline, manifest.epoch_id


def output_later_than(manifest: Manifest, since: tuple[int, int]) -> dict[str, list[NewestOutput]]:
    """Later output for which each sink's place is to be asked. A place that has none of these
    artifacts has no later output.

    Phase 2 of the snapshot may be over, under way or not begun, also for held output. Artifacts are
    committed in order, so the first one is there if any is. The last one is asked for because a
    place may have removed older markers.

    Args:
        manifest: of the newest snapshot.
        since: timeline and epoch. A newer timeline may have read further in fewer epochs, so all of
            its output is later.
    """
    output = [
        *manifest.newest_output.items(),
        *((one.sink, NewestOutput(one, manifest.timeline)) for one in manifest.artifacts),
    ]
    later: dict[str, list[NewestOutput]] = {}
    for sink, one in sorted(output, key=lambda found: found[1].at):
        if one.at > since:
            later[sink] = [*later.get(sink, ())[:1], one]
    return later


def output_after(
    manifest: Manifest,
    *,
    is_committed: bool,
    lost: Collection[str],
    sinks: Mapping[str, Mapping[str, Any]],
    renamed: Mapping[str, str],
) -> dict[str, NewestOutput]:
    """Output that each sink's place has once phase 2 of the snapshot is over.

    Args:
        manifest: of the snapshot that an execution begins with.
        is_committed: its phase 2 was over before.
        lost: sinks whose place came back without its output, which is accepted.
        sinks: today's destinations; a new place begins with no output.
        renamed: present names of sinks by former names. The artifact keeps the former name, which
            is the key of its marker.
    """
    before = output_to_be_there(manifest, is_committed=is_committed)
    names = {sink: present_name(sink, manifest.sinks, sinks, renamed) for sink in manifest.sinks}
    after = {sink: one for sink, one in before.items() if names.get(sink) not in lost}
    after |= newest_of(manifest.owed(is_committed=is_committed).artifacts, manifest.timeline)
    return {name: after[sink] for sink, name in names.items() if name is not None and sink in after}

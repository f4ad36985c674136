"""Commits that a decided snapshot still owes, sink by sink, and where each has to go. Pure.

Between the decision and its commits a job may die, and start again as another pipeline: a sink was
dropped or renamed, or writes elsewhere. What was decided is owed to the place for which it was
staged, whatever the pipeline says today.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dagster_jet.snapshot.manifest import Artifact

Destination = Mapping[str, Any]
"""Where a sink writes, as the manifest keeps it: its `kind`, and what its connector needs to commit
there without the pipeline. JSON, without secrets. Equal destinations are one place, and so are
those that differ in their `options` alone: how it is reached may be corrected."""


class SinkFate(Enum):
    """What has become of a sink since the snapshot was taken."""

    KEPT = "kept"
    """The pipeline has it, and it writes to the same place."""
    MOVED = "writes elsewhere"
    """The pipeline has a sink of this name, at another place."""
    LEFT = "left the pipeline"
    """The pipeline has no sink of this name: dropped, or renamed."""


@dataclass(frozen=True)
class OwedCommit:
    """The artifacts of one sink that must become visible at one place."""

    sink: str
    """Its name when they were staged: markers and staging areas are keyed by it."""
    destination: Destination | None
    """None where the manifest does not say (format 1): only the pipeline can know."""
    fate: SinkFate
    artifacts: tuple[Artifact, ...]

    @property
    def rows(self) -> int:
        return sum(artifact.rows for artifact in self.artifacts)

    @property
    def epoch_ids(self) -> tuple[int, ...]:
        return tuple(sorted({artifact.epoch_id for artifact in self.artifacts}))


def owed_commits(
    artifacts: Iterable[Artifact],
    named: Mapping[str, Destination],
    today: Mapping[str, Destination],
) -> tuple[OwedCommit, ...]:
    """Every artifact belongs to exactly one of the result.

    Args:
        artifacts: of one manifest.
        named: by sink, the destinations in that manifest.
        today: by sink, the destinations of the pipeline that commits now.
    """
    by_sink: dict[str, list[Artifact]] = {}
    for artifact in artifacts:
        by_sink.setdefault(artifact.sink, []).append(artifact)
    return tuple(
        OwedCommit(sink, named.get(sink), sink_fate(sink, named, today), tuple(mine))
        for sink, mine in by_sink.items()
    )


def sink_fate(
    sink: str, named: Mapping[str, Destination], today: Mapping[str, Destination]
) -> SinkFate:
    """What has become of a sink. One whose destination is not known is taken to be where it was."""
    if sink not in today:
        return SinkFate.LEFT
    is_there = is_same_place(named.get(sink, today[sink]), today[sink])
    return SinkFate.KEPT if is_there else SinkFate.MOVED


def is_same_place(one: Destination, other: Destination) -> bool:
    """Whether a commit to the one is a commit to the other."""
    return {**one, "options": None} == {**other, "options": None}

"""Outstanding commits of a decided snapshot, by sink, with their destinations. Pure.

Between the decision and its commits a job may die and start again with another pipeline: a sink was
dropped or renamed, or writes elsewhere. Decided output goes to the place for which it was staged,
whatever the pipeline says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dagster_jet.snapshot.manifest import Artifact

Destination = Mapping[str, Any]
"""Place where a sink writes, as the manifest keeps it: its `kind`, and what its connector needs to
commit there without the pipeline. JSON, without secrets. Destinations that are equal, or differ
only in `options`, are the same place, so access options may be corrected."""


class SinkFate(Enum):
    """Change of a sink since the snapshot was taken."""

    KEPT = "kept"
    """The pipeline has the sink, and it writes to the same place."""
    MOVED = "writes elsewhere"
    """The pipeline has a sink of this name, at another place."""
    LEFT = "left the pipeline"
    """The pipeline has no sink of this name: it was dropped or renamed."""


@dataclass(frozen=True)
class OwedCommit:
    """The artifacts of one sink that must become visible at one place."""

    sink: str
    """The sink's name at staging; it is the key of markers and staging areas."""
    destination: Destination | None
    """None if the manifest does not name it (format 1); only the pipeline can provide it then."""
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
    """Groups artifacts by sink; every artifact is in exactly one result.

    Args:
        artifacts: of one manifest.
        named: destinations by sink in that manifest.
        today: destinations by sink of the pipeline that commits now.
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
    """Change of a sink. A sink without a known destination counts as unmoved."""
    if sink not in today:
        return SinkFate.LEFT
    is_there = is_same_place(named.get(sink, today[sink]), today[sink])
    return SinkFate.KEPT if is_there else SinkFate.MOVED


def is_same_place(one: Destination, other: Destination) -> bool:
    """Whether both destinations are the same place."""
    return {**one, "options": None} == {**other, "options": None}

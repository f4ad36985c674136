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


class SinkChange(Enum):
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
    destination: Destination
    change: SinkChange
    artifacts: tuple[Artifact, ...]

    @property
    def rows(self) -> int:
        return rows_of(self.artifacts)

    @property
    def epoch_ids(self) -> tuple[int, ...]:
        return epochs_of(self.artifacts)


def rows_of(artifacts: Iterable[Artifact]) -> int:
    return sum(artifact.rows for artifact in artifacts)


def epochs_of(artifacts: Iterable[Artifact]) -> tuple[int, ...]:
    """Ids of the epochs with these artifacts, in order."""
    return tuple(sorted({artifact.epoch_id for artifact in artifacts}))


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
        OwedCommit(sink, named[sink], sink_change(sink, named, today), tuple(mine))
        for sink, mine in by_sink.items()
    )


def sink_change(
    sink: str, named: Mapping[str, Destination], today: Mapping[str, Destination]
) -> SinkChange:
    """Change of a sink that a manifest names."""
    if sink not in today:
        return SinkChange.LEFT
    return SinkChange.KEPT if is_same_place(named[sink], today[sink]) else SinkChange.MOVED


def present_name(
    sink: str,
    named: Mapping[str, Destination],
    today: Mapping[str, Destination],
    renamed: Mapping[str, str],
) -> str | None:
    """Name in the pipeline of a sink that a manifest names; None if it has left or moved.

    Args:
        renamed: present name by former name.
    """
    name = sink if sink in today else renamed.get(sink, sink)
    kept = name in today and is_same_place(named[sink], today[name])
    return name if kept else None


def names_at_place(
    sink: str,
    named: Mapping[str, Destination],
    today: Mapping[str, Destination],
    renamed: Mapping[str, str],
) -> tuple[str, ...]:
    """Names of the pipeline's sinks that write where a sink of a manifest wrote: its present name,
    or, if it was renamed without a word, those of new sinks with this place.

    Args:
        renamed: present name by former name.
    """
    present = present_name(sink, named, today, renamed)
    if present is not None:
        return (present,)
    new = {name: where for name, where in today.items() if name not in named}
    return tuple(name for name, where in new.items() if is_same_place(named[sink], where))


def is_same_place(one: Destination, other: Destination) -> bool:
    """Whether both destinations are the same place."""
    return {**one, "options": None} == {**other, "options": None}

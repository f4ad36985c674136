"""How far an execution is, in one small value that every process can read from the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dagster_jet.core.stored_format import check_format
from dagster_jet.execution.events import SourceProgress, StageProgress
from dagster_jet.execution.sink_committer import PendingCommit

FORMAT = 1
PARTITIONS_MAX = 16
"""Partitions reported per source: those with the largest backlog."""
_TEXT_MAX = 500
"""Characters of a reason."""


@dataclass(frozen=True)
class ProgressReport:
    """Progress of an execution, written every few seconds if it has changed.

    Times are wall clock of the job's process, or event time where it says watermark or due.
    """

    started_ms: int
    """When data began to flow."""
    epochs: int = 0
    """Acked by this execution."""
    last_epoch_ms: float | None = None
    """How long the last one took; None: none was acked yet."""
    rows_per_second: float = 0.0
    """Read from sources, since the report before this one."""
    sources: Mapping[str, SourceProgress] = field(default_factory=dict)
    """Per source, without positions, whose size is unbounded."""
    last_rows_ms: Mapping[str, int] = field(default_factory=dict)
    """Time at which new rows were last seen, by source."""
    stages: Mapping[str, StageProgress] = field(default_factory=dict)
    snapshot_id: int | None = None
    """The last that this execution has committed."""
    failed_snapshots: int = 0
    failing_since_ms: int | None = None
    """Start of the current series of failed snapshots; None if the last one succeeded."""
    last_failure: str = ""
    committing: Mapping[str, PendingCommit] = field(default_factory=dict)
    """By sink."""
    written_at_ms: int = 0

    def to_bytes(self) -> bytes:
        """As JSON, of bounded size for a given pipeline."""
        document = asdict(replace(self, last_failure=self.last_failure[:_TEXT_MAX]))
        for source in document["sources"].values():
            del source["position"]
            most = sorted(source["partition_lag"].items(), key=lambda item: (-item[1], item[0]))
            source["partition_lag"] = dict(most[:PARTITIONS_MAX])
            source["unavailable"] = (source["unavailable"] or "")[:_TEXT_MAX] or None
        for commit in document["committing"].values():
            commit["error"] = commit["error"][:_TEXT_MAX]
        return json.dumps({"format": FORMAT, **document}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, job: str) -> ProgressReport:
        """Reads what `to_bytes` wrote.

        Raises:
            StoreMismatchError: a newer version has written it.
        """
        document: dict[str, Any] = json.loads(data)
        check_format("the job's progress", document["format"], FORMAT, job=job)
        del document["format"]
        document["sources"] = {
            name: SourceProgress(position={}, **source)
            for name, source in document["sources"].items()
        }
        document["stages"] = {
            name: StageProgress(**stage) for name, stage in document["stages"].items()
        }
        document["committing"] = {
            name: PendingCommit(**commit) for name, commit in document["committing"].items()
        }
        return cls(**document)

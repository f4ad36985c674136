"""Exported snapshots, kept under a name until deleted: the list of all exports. Pure.

An export is a copy: a map of its own with the manifest and every chunk set that the manifest names,
in the format of a job's own snapshots. Retention, garbage collection by any version and other
timelines of the job never affect it.

    ASKED -> WRITING -> DONE        each step is decided in one register (`exports/export_list.py`)
             WRITING -> WRITING     another attempt; the previous one died and is void
    ASKED, WRITING -> FAILED        with the reason
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from dagster_jet.core.stored_format import check_format
from dagster_jet.errors import ConfigurationError, JobStateError
from dagster_jet.snapshot.record import Lease, SnapshotRef

EXPORTS_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class ExportState(str, Enum):
    """State of an export."""

    ASKED = "asked"
    """Requested; made by the job's current execution, or by its next one."""
    WRITING = "being written"
    DONE = "done"
    """Complete; kept until it is deleted."""
    FAILED = "failed"


@dataclass(frozen=True)
class Export:
    """An exported snapshot, or a requested one.

    Attributes:
        name: unique in the namespace.
        job: the snapshot's job.
        token: identifies one request for an export.
        state: state of the export.
        cancels: the job is to be cancelled at this snapshot.
        asked_execution_id: the job's execution at the request; 0: none.
        attempt: names the map with the data; empty before anything is written.
        writer: the process that writes or wrote it.
        ref: the snapshot; None before it is chosen. Once the export is done, it has the checksum of
            the copied manifest.
        bytes: size of chunks, indexes and manifest; 0 before it is done.
        exported_at_ms: wall-clock time; 0 before it is done.
        failure: why it failed, for people.
    """

    name: str
    job: str
    token: str = ""
    state: ExportState = ExportState.ASKED
    cancels: bool = False
    asked_execution_id: int = 0
    attempt: str = ""
    writer: Lease | None = None
    ref: SnapshotRef | None = None
    bytes: int = 0
    exported_at_ms: int = 0
    failure: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether the export is complete."""
        return self.state is ExportState.DONE

    @property
    def is_due(self) -> bool:
        """Whether the export still has to be made."""
        return self.state in (ExportState.ASKED, ExportState.WRITING)

    @property
    def snapshot_id(self) -> int | None:
        """The job's snapshot id; None before it is chosen."""
        return self.ref.snapshot_id if self.ref is not None else None

    @property
    def epoch_id(self) -> int | None:
        """The last epoch that the snapshot contains; None before it is chosen."""
        return self.ref.epoch_id if self.ref is not None else None

    @property
    def map_name(self) -> str:
        """The store's map with the exported data."""
        return f"{EXPORT_MAPS}{self.name}/{self.attempt}"


EXPORT_MAPS = "exports/"
"""Prefix of the names of all maps with exported data."""


@dataclass(frozen=True)
class Exports:
    """All exports of a namespace by name, as one value changed by compare-and-set."""

    entries: tuple[Export, ...] = ()

    def find(self, name: str) -> Export | None:
        return next((one for one in self.entries if one.name == name), None)

    def asked(self, export: Export) -> Exports:
        """Adds a requested export. It replaces a failed one of the same name.

        Raises:
            JobStateError: another export has this name.
        """
        present = self.find(export.name)
        if present is not None and present.token == export.token:
            return self
        if present is not None and present.state is not ExportState.FAILED:
            raise JobStateError(
                f"an export named {export.name!r} of job {present.job!r} already exists "
                f"({present.state.value}).",
                job=export.job,
                cure="Choose another name, or delete it: 'dagster-jet snapshots "
                f"{present.job} delete {export.name}'.",
            )
        return self.with_(export)

    def moved(self, before: Export, after: Export) -> Exports | None:
        """Replaces `before` by `after`; also succeeds if `after` is there already, because a write
        that seemed to fail was done. None: the export has changed since `before`."""
        return self.with_(after) if self.find(before.name) in (before, after) else None

    def with_(self, export: Export) -> Exports:
        others = tuple(one for one in self.entries if one.name != export.name)
        return Exports(tuple(sorted((*others, export), key=lambda one: one.name)))

    def without(self, name: str) -> Exports:
        return replace(self, entries=tuple(one for one in self.entries if one.name != name))

    def to_bytes(self) -> bytes:
        fields = {"format": EXPORTS_FORMAT, "exports": [asdict(one) for one in self.entries]}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Exports:
        """Raises `StoreMismatchError` for a list written by a newer version."""
        fields: dict[str, Any] = json.loads(data)
        check_format("the list of exported snapshots", fields["format"], EXPORTS_FORMAT)
        return cls(tuple(_export(one) for one in fields["exports"]))


def check_name(name: str) -> str:
    """Returns the name if it is valid for an export.

    Raises:
        ConfigurationError: the name is not valid; the message has the rule.
    """
    if not _NAME.fullmatch(name) or name.isdigit():
        raise ConfigurationError(
            f"{name!r} is not a valid name for an exported snapshot.",
            cure="Use up to 100 letters, digits, dots, dashes and underscores, beginning with a "
            "letter or digit, not digits alone: those are ids of retained snapshots.",
        )
    return name


def _export(fields: dict[str, Any]) -> Export:
    writer, ref = fields["writer"], fields["ref"]
    if writer is not None:
        writer = Lease(**{**writer, "activity": None})
    known = {
        "state": ExportState(fields["state"]),
        "writer": writer,
        "ref": SnapshotRef(**ref) if ref is not None else None,
    }
    return Export(**{**fields, **known})

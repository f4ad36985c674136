"""Exported snapshots: kept under a name until somebody deletes them. The list of all, pure.

An export is a copy: a map of its own, with the manifest and every chunk set that it names, in the
format of a job's own snapshots. So nothing that becomes of the job can touch it: not retention, not
the garbage collection of any version, not another timeline.

    ASKED -> WRITING -> DONE        each step decided in one register (`ownership/exports.py`)
             WRITING -> WRITING     by another attempt: the one before it died, and is void
    ASKED, WRITING -> FAILED        it says why
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from dagster_jet.errors import ConfigurationError, JobStateError, StoreMismatchError
from dagster_jet.snapshot.record import Lease, SnapshotRef

EXPORTS_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class ExportState(str, Enum):
    """How far an export is."""

    ASKED = "asked"
    """Somebody wants it; whoever has the job, or starts it next, makes it."""
    WRITING = "being written"
    DONE = "done"
    """It is whole, and stays until it is deleted."""
    FAILED = "failed"


@dataclass(frozen=True)
class Export:
    """An exported snapshot, or one that is to be.

    Attributes:
        name: unique in the namespace.
        job: whose snapshot it is.
        token: tells one request for an export from all others.
        state: how far it is.
        cancels: the job is to be cancelled at this snapshot.
        asked_execution_id: the job's execution when it was asked for; 0 if none was.
        attempt: names the map with its data; empty before anything is written.
        writer: who writes it, or has.
        ref: the snapshot; None before it is chosen.
        bytes: of its chunks, indexes and manifest; 0 before it is done.
        exported_at_ms: wall-clock time; 0 before it is done.
        failure: why it could not be made, for people.
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
        """Whether it is whole."""
        return self.state is ExportState.DONE

    @property
    def is_due(self) -> bool:
        """Whether somebody still waits for it to be made."""
        return self.state in (ExportState.ASKED, ExportState.WRITING)

    @property
    def snapshot_id(self) -> int | None:
        """Of the job's snapshot; None before it is chosen."""
        return self.ref.snapshot_id if self.ref is not None else None

    @property
    def epoch_id(self) -> int | None:
        """The last epoch that the snapshot contains; None before it is chosen."""
        return self.ref.epoch_id if self.ref is not None else None

    @property
    def map_name(self) -> str:
        """The map of the store that has its data."""
        return f"{EXPORT_MAPS}{self.name}/{self.attempt}"


EXPORT_MAPS = "exports/"
"""What the names of all maps with exported data begin with."""


@dataclass(frozen=True)
class Exports:
    """All exports of a namespace, by name: one value, changed by compare-and-set."""

    entries: tuple[Export, ...] = ()

    def find(self, name: str) -> Export | None:
        return next((one for one in self.entries if one.name == name), None)

    def asked(self, export: Export) -> Exports:
        """With one that is wanted. What failed under its name gives way.

        Raises:
            JobStateError: there is another one of this name.
        """
        present = self.find(export.name)
        if present is not None and present.token == export.token:
            return self
        if present is not None and present.state is not ExportState.FAILED:
            raise JobStateError(
                f"there is an export {export.name!r} already, {present.state.value}, of job "
                f"{present.job!r}.",
                job=export.job,
                cure="Choose another name, or delete it: 'dagster-jet snapshots "
                f"{present.job} delete {export.name}'.",
            )
        return self.with_(export)

    def moved(self, before: Export, after: Export) -> Exports | None:
        """With `after` where `before` still stands, or `after` does already, by a write that seemed
        to have failed; None: somebody else has moved it since."""
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
        """Raises `StoreMismatchError` for what a newer version has written."""
        fields: dict[str, Any] = json.loads(data)
        if fields["format"] > EXPORTS_FORMAT:
            raise StoreMismatchError(
                f"the list of exported snapshots has format {fields['format']}, this version reads "
                f"up to {EXPORTS_FORMAT}.",
                cure="Upgrade dagster-jet on this machine.",
            )
        return cls(tuple(_export(one) for one in fields["exports"]))


def check_name(name: str) -> str:
    """Returns the name if an export may have it.

    Raises:
        ConfigurationError: it may not; says what a name is.
    """
    if not _NAME.fullmatch(name) or name.isdigit():
        raise ConfigurationError(
            f"{name!r} is no name for an exported snapshot.",
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

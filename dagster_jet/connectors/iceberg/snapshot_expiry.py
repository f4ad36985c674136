"""Expiry of snapshots: which ones go, and what becomes of their files.

A commit costs time for each snapshot in the metadata, so a sink lets the oldest ones expire after
its own commits, if the table says how many are kept. Their files stay, for readers that have begun
with them, until maintenance finds them older than the table keeps files of the past. What they were
is noted before they expire:

    <data folder>/_dagster_jet/expired-<sequence number>-<random>.json    snapshots, as in metadata

A process that dies in between leaves a note about snapshots that are there. Their files are in use,
and a later note has them again.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.iceberg.storage import folder_at
from dagster_jet.connectors.iceberg.table_version import SNAPSHOTS_KEPT, TableVersion
from dagster_jet.connectors.lake.staged_changes import staged_at
from dagster_jet.connectors.lake.staged_names import APPLICATIONS
from dagster_jet.system.failpoint import fail_point

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

_KEPT_PER_BRANCH = "history.expire.min-snapshots-to-keep"
_NOTE = "expired-"
_IF_MISSING = suppress(FileNotFoundError)
"""Another call may have removed a file of the past."""


# --- which ones go --------------------------------------------------------------------------------


def surplus(metadata: TableMetadata) -> list[Snapshot]:
    """Returns the oldest snapshots, if there are too many by `SNAPSHOTS_KEPT`. They go together,
    since their expiry is a commit of its own."""
    kept = number_in(metadata, SNAPSHOTS_KEPT, 0)
    if not kept or len(metadata.snapshots) <= kept:
        return []
    ordered = sorted(metadata.snapshots, key=lambda one: one.sequence_number or 0)
    found = expirable(metadata, ordered[:-kept])
    return found if len(found) > kept // 4 else []


def expirable(metadata: TableMetadata, old: Iterable[Snapshot]) -> list[Snapshot]:
    """Returns those of old snapshots that may go: without a branch or tag, not among the last ones
    that the table keeps of each branch, and read by all jobs that have a tag."""
    refs = metadata.refs.values()
    kept, by_id = {ref.snapshot_id for ref in refs}, {s.snapshot_id: s for s in metadata.snapshots}
    count = number_in(metadata, _KEPT_PER_BRANCH, 1)
    for ref in refs:
        if ref.snapshot_ref_type.value == "branch":
            kept |= set(_ancestors(by_id, ref.snapshot_id)[: ref.min_snapshots_to_keep or count])
    unread = min((number for number, _ in read_up_to(metadata)), default=math.inf)
    return [
        one for one in old if one.snapshot_id not in kept and (one.sequence_number or 0) < unread
    ]


def read_up_to(metadata: TableMetadata) -> list[tuple[int, str]]:
    """Returns the numbers of the snapshots that jobs which read the table go on from, and the names
    of their tags."""
    by_id = {one.snapshot_id: one.sequence_number or 0 for one in metadata.snapshots}
    return [
        (by_id[ref.snapshot_id], name)
        for name, ref in metadata.refs.items()
        if name.startswith(APPLICATIONS) and ref.snapshot_id in by_id
    ]


def _ancestors(by_id: Mapping[int, Snapshot], newest: int) -> list[int]:
    """Returns a snapshot and those before it, back to one that is gone."""
    found: list[int] = []
    at: int | None = newest
    while at is not None and at in by_id:
        found.append(at)
        at = by_id[at].parent_snapshot_id
    return found


def number_in(metadata: TableMetadata, name: str, default: int) -> int:
    """Returns the value of a property."""
    return int(metadata.properties.get(name, default))


# --- by a sink ------------------------------------------------------------------------------------


def expire_surplus(version: TableVersion) -> Exception | None:
    """Lets the `surplus` expire, if all branches and tags are where they were looked at, and notes
    it. Nothing is removed. A snapshot goes from the metadata once, whichever of the processes that
    noted it comes first.

    Returns:
        An error; the snapshots may have expired nevertheless.
    """
    try:
        old = surplus(version.metadata)
        if old:
            _note(version, old)
            fail_point("lake.expire.before")
            failure = version.expire([one.snapshot_id for one in old])
            fail_point("lake.expire.after")
            return failure
    except Exception as error:  # noqa: BLE001 - the next commit tries it again
        return error
    return None


def _note(version: TableVersion, expired: Sequence[Snapshot]) -> None:
    number = max(one.sequence_number or 0 for one in expired)
    path = f"{staged_at(version.data)}/{_NOTE}{number}-{uuid.uuid4().hex}.json"
    text = "[" + ",".join(one.model_dump_json() for one in expired) + "]"
    io: Any = version.table.io
    with io.new_output(path).create() as stream:
        stream.write(text.encode())


# --- by maintenance -------------------------------------------------------------------------------


def remove_files(
    expired: Sequence[Snapshot], now: TableVersion, storage: StorageOptions, before_ms: int
) -> int:
    """Removes the files that only snapshots of the past need: those that have expired just now, and
    those that are noted, if all of their note have expired and are older than a time. Files that
    name others go last, so that a call after a crash finds what is left.

    Args:
        now: looked at after the expiry.

    Returns:
        The number of files.
    """
    notes, live = _notes(now, storage), {one.snapshot_id for one in now.metadata.snapshots}
    over = {
        path: noted
        for path, noted in notes.items()
        if all(one.timestamp_ms < before_ms and one.snapshot_id not in live for one in noted)
    }
    gone = [*expired, *(one for noted in over.values() for one in noted)]
    if not gone:
        return 0
    io: Any = now.table.io
    kept = [one for path in notes.keys() - over.keys() for one in notes[path]]
    needed = set[str]().union(
        *_files(now.metadata.snapshots, io, nullcontext()), *_files(kept, io, _IF_MISSING)
    )
    unneeded = [paths - needed for paths in _files(gone, io, _IF_MISSING)]
    for path in chain(*unneeded):
        with suppress(FileNotFoundError):
            io.delete(path)
    folder_at(staged_at(now.data), storage).remove(over)
    return sum(map(len, unneeded))


def paths_needed(version: TableVersion, storage: StorageOptions) -> set[str]:
    """Returns the paths of data files, in the data folder, of all snapshots of a version, and of
    those that have expired and whose files are kept still."""
    noted = [one for found in _notes(version, storage).values() for one in found]
    data, _, _ = _files(noted, version.table.io, _IF_MISSING)
    return version.paths() | {path.removeprefix(f"{version.data}/") for path in data}


def _notes(version: TableVersion, storage: StorageOptions) -> dict[str, list[Snapshot]]:
    """Returns the snapshots of each note. All that the version lacks are noted, if it was looked at
    before."""
    from pyiceberg.table.snapshots import Snapshot

    io, url, found = version.table.io, staged_at(version.data), dict[str, list[Snapshot]]()
    for path in folder_at(url, storage).paths(_NOTE):
        with suppress(FileNotFoundError), io.new_input(f"{url}/{path}").open() as stream:
            found[path] = [Snapshot.model_validate(one) for one in json.loads(stream.read())]
    return found


def entries_of(snapshots: Iterable[Snapshot], io: FileIO) -> list[ManifestEntry]:
    """Returns the entries of files that the snapshots have."""
    found = _manifests_of(snapshots, io, nullcontext()).values()
    return [entry for one in found for entry in one.fetch_manifest_entry(io)]


def _manifests_of(
    snapshots: Iterable[Snapshot], io: FileIO, if_missing: AbstractContextManager[Any]
) -> dict[str, ManifestFile]:
    found: dict[str, ManifestFile] = {}
    for snapshot in snapshots:
        with if_missing:
            found |= {one.manifest_path: one for one in snapshot.manifests(io)}
    return found


def _files(
    snapshots: Collection[Snapshot], io: FileIO, if_missing: AbstractContextManager[Any]
) -> tuple[set[str], set[str], set[str]]:
    """Returns data files, manifests, and lists of manifests.

    Args:
        if_missing: entered to read one of the manifests or lists.
    """
    manifests, data = _manifests_of(snapshots, io, if_missing), set[str]()
    for one in manifests.values():
        with if_missing:
            data |= {entry.data_file.file_path for entry in one.fetch_manifest_entry(io)}
    lists = {snapshot.manifest_list for snapshot in snapshots if snapshot.manifest_list}
    return data, set(manifests), lists

"""The exported snapshots of a namespace, in the store: their list in a quorum register, the data of
each in a map.

The list decides. An attempt is listed before its first chunk is written, and becomes done only by a
compare-and-set of the register. So if two processes write one export, only one counts, and data
that no entry names is garbage for every process.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from dagster_jet.errors import JobStateError, StoreError
from dagster_jet.exports.export import (
    EXPORT_MAPS,
    Export,
    Exports,
    ExportState,
    check_name,
)
from dagster_jet.ownership.lease import is_owner_alive, new_lease, wall_clock_ms
from dagster_jet.snapshot.record import SnapshotRef
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store
from dagster_jet.system.failpoint import fail_point

_REGISTER = "exports"


class ExportList:
    """Reads and changes the list, with the store's members as of its creation.

    Data of an attempt counts only if the members are unchanged when it is decided. So one object
    must be used for the whole attempt.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._register = store.register(_REGISTER)

    def read(self) -> Exports:
        """Return the list as known to a majority of the members."""
        value = self._register.read()
        return _exports(None if value is None else value.value)

    def ask(self, export: Export) -> Export:
        """Add a request for this export to the list; return its entry.

        Raises:
            ConfigurationError: the name is not valid.
            JobStateError: an export of this name exists.
        """
        check_name(export.name)
        self._change(lambda exports: exports.asked(export))
        return export

    def begin(self, export: Export, ref: SnapshotRef) -> Export | None:
        """Begin to write the export, under a new attempt; return the changed entry.

        None: the entry has been changed since it was read.
        """
        begun = replace(
            export,
            state=ExportState.WRITING,
            attempt=uuid.uuid4().hex,
            writer=new_lease("", 0, None),
            ref=ref,
        )
        return begun if self._move(export, begun) else None

    def finish(self, export: Export, ref: SnapshotRef, size: int) -> Export | None:
        """Mark the export as complete. None: it was deleted, or begun by another process.

        Args:
            ref: the snapshot, with the checksum of the copied manifest.
            size: see `Export.bytes`.
        """
        fail_point("export.before")
        done = replace(
            export,
            state=ExportState.DONE,
            ref=ref,
            bytes=size,
            exported_at_ms=wall_clock_ms(),
            writer=None,
        )
        is_done = self._move(export, done)
        fail_point("export.after")
        return done if is_done else None

    def fail(self, export: Export, reason: str) -> bool:
        """Mark the export as failed, with the reason, and remove its data.

        False: the entry has been changed since.
        """
        failed = replace(export, state=ExportState.FAILED, attempt="", writer=None, failure=reason)
        is_failed = self._move(export, failed)
        if is_failed:
            with suppress(StoreError):  # what is left is named by no entry: `store gc` removes it
                drop_data(self._store, export)
        return is_failed

    def give_back(self, export: Export) -> bool:
        """Return the export to the requested state; written data becomes garbage. False: its entry
        has been changed since."""
        asked = replace(export, state=ExportState.ASKED, attempt="", writer=None, ref=None)
        return self._move(export, asked)

    def remove(self, name: str) -> Export | None:
        """Remove the export from the list; its data becomes garbage. None: it is not listed."""
        removed: list[Export] = []

        def change(exports: Exports) -> Exports | None:
            found = exports.find(name)
            if found is None:
                return None
            removed.append(found)
            return exports.without(name)

        self._change(change)
        return removed[-1] if removed else None

    def _move(self, before: Export, after: Export) -> bool:
        """Replace `before` by `after`; return whether it succeeded."""
        return self._change(lambda exports: exports.moved(before, after))

    def _change(self, change: Callable[[Exports], Exports | None]) -> bool:
        """Write the changed list; return False if `change` returns None.

        After a write whose answer was lost, `change` is called again: it must accept its own
        earlier result.
        """

        def changed(current: bytes | None) -> bytes | None:
            exports = change(_exports(current))
            return None if exports is None else exports.to_bytes()

        return self._register.update(changed) is not None


def read_exports(store: Store) -> tuple[Export, ...]:
    """Return all exports of the namespace, by name, also after a change of the members."""
    value = store.read_register(_REGISTER)
    return _exports(None if value is None else value.value).entries


def _exports(value: bytes | None) -> Exports:
    return Exports() if value is None else Exports.from_bytes(value)


def finished_export(store: Store, name: str, job: str | None = None) -> Export:
    """Return a complete export.

    Args:
        job: the requesting job, for the message.

    Raises:
        JobStateError: it does not exist or is not complete; lists the existing ones.
    """
    exports = read_exports(store)
    found = next((one for one in exports if one.name == name), None)
    if found is not None and found.is_done:
        return found
    known = ", ".join(one.name for one in exports if one.is_done) or "none"
    what = "does not exist" if found is None else f"is {found.state.value}"
    raise JobStateError(
        f"the exported snapshot {name!r} {what}; the finished exports are: {known}.",
        job=job,
        cure="See 'dagster-jet exports'.",
    )


def export_data(store: Store, export: Export) -> SnapshotStore:
    """Return the export's manifest and chunks."""
    return SnapshotStore(store, export.job, map_name=export.map_name)


def delete_export(store: Store, name: str) -> Export:
    """Delete an export in any state; a concurrent attempt fails.

    A crash inside leaves data that `collect_export_garbage` removes.

    Raises:
        JobStateError: it does not exist.
    """
    removed = ExportList(store).remove(name)
    if removed is None:
        finished_export(store, name)
        raise JobStateError(f"the exported snapshot {name!r} does not exist.")
    fail_point("export.removed")
    drop_data(store, removed)
    return removed


def drop_data(store: Store, export: Export) -> int:
    """Remove the data of an attempt that no entry names any more; return the number of keys."""
    return _drop(store, export.map_name) if export.attempt else 0


def _drop(store: Store, map_name: str) -> int:
    data = store.map(map_name)
    keys = data.keys()
    data.delete_all(keys)
    return len(keys)


def is_abandoned(export: Export) -> bool:
    """Whether it is being written by a process that is certainly dead."""
    return (
        export.state is ExportState.WRITING
        and export.writer is not None
        and is_owner_alive(export.writer) is False
    )


def collect_export_garbage(store: Store) -> int:
    """Remove data of dead and of unlisted attempts; return the number of map entries.

    An export of a dead writer stays requested: the job's next owner makes it. The maps are
    listed before the list is read: an attempt that begins in between is not among them, and the
    attempt of a listed map already has its entry, or will never have one again.
    """
    maps = store.map_names(EXPORT_MAPS)
    for export in read_exports(store):
        if is_abandoned(export):
            ExportList(store).give_back(export)
    named = {one.map_name for one in read_exports(store) if one.attempt}
    return sum(_drop(store, name) for name in maps if name not in named)

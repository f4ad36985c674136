"""The exported snapshots of a namespace, in the store: their list in a quorum register, their data
in a map each.

The list decides. An attempt is in it before its first chunk is written, and done only by the
register's own compare-and-set: so of two that write one export one counts, and data that no entry
names is garbage, whoever looks.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace

from dagster_jet.errors import JobStateError
from dagster_jet.ownership.lease import is_owner_alive, new_lease, wall_clock_ms
from dagster_jet.snapshot.export import (
    EXPORT_MAPS,
    Export,
    Exports,
    ExportState,
    check_name,
)
from dagster_jet.snapshot.record import SnapshotRef
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store
from dagster_jet.system.failpoint import fail_point

_REGISTER = "exports"


class ExportList:
    """Reads and changes the list, under the members that the store has when this is made.

    What an attempt has written counts only if these are the members when it is decided: so one
    object is used from its beginning to its end.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._register = store.register(_REGISTER)

    def read(self) -> Exports:
        """The list as a majority of the members knows it."""
        value = self._register.read()
        return _exports(None if value is None else value.value)

    def ask(self, export: Export) -> Export:
        """Notes that somebody wants this export; returns its entry.

        Raises:
            ConfigurationError: it cannot have this name.
            JobStateError: there is one of this name.
        """
        check_name(export.name)
        self._change(lambda exports: exports.asked(export))
        return export

    def begin(self, export: Export, ref: SnapshotRef) -> Export | None:
        """Begins to write it, under an attempt of its own: the entry as it is from here on.

        None: somebody else has moved it since it was read.
        """
        begun = replace(
            export,
            state=ExportState.WRITING,
            attempt=uuid.uuid4().hex,
            writer=new_lease("", 0, None),
            ref=ref,
        )
        return begun if self._move(export, begun) else None

    def finish(self, export: Export, size: int) -> Export | None:
        """Decides that it is whole. None: it was deleted, or begun anew by somebody else."""
        fail_point("export.before")
        done = replace(
            export, state=ExportState.DONE, bytes=size, exported_at_ms=wall_clock_ms(), writer=None
        )
        is_done = self._move(export, done)
        fail_point("export.after")
        return done if is_done else None

    def fail(self, export: Export, reason: str) -> bool:
        """Gives it up, and says why. False: somebody else has moved it since."""
        return self._move(export, replace(export, state=ExportState.FAILED, failure=reason))

    def give_back(self, export: Export) -> bool:
        """Leaves it to whoever comes next; what is written is garbage. False: somebody else has
        moved it since."""
        asked = replace(export, state=ExportState.ASKED, attempt="", writer=None, ref=None)
        return self._move(export, asked)

    def remove(self, name: str) -> Export | None:
        """Takes it off the list: from here on its data is garbage. None: it is not there."""
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
        """Whether `before` has become `after`."""
        return self._change(lambda exports: exports.moved(before, after))

    def _change(self, change: Callable[[Exports], Exports | None]) -> bool:
        """Writes what `change` makes of the list; False: it makes nothing.

        A write whose answer was lost is seen again: `change` takes what it has made itself for
        made.
        """

        def changed(current: bytes | None) -> bytes | None:
            exports = change(_exports(current))
            return None if exports is None else exports.to_bytes()

        return self._register.update(changed) is not None


def read_exports(store: Store) -> tuple[Export, ...]:
    """All exports of the namespace, by name; whoever the members are by now."""
    value = store.read_register(_REGISTER)
    return _exports(None if value is None else value.value).entries


def _exports(value: bytes | None) -> Exports:
    return Exports() if value is None else Exports.from_bytes(value)


def finished_export(store: Store, name: str, job: str | None = None) -> Export:
    """The export of a name.

    Args:
        job: who wants it, for the message.

    Raises:
        JobStateError: there is none, or it is not whole; says which there are.
    """
    exports = read_exports(store)
    found = next((one for one in exports if one.name == name), None)
    if found is not None and found.is_done:
        return found
    known = ", ".join(one.name for one in exports if one.is_done) or "none"
    what = "is not there" if found is None else f"is {found.state.value}"
    raise JobStateError(
        f"the exported snapshot {name!r} {what}; there are: {known}.",
        job=job,
        cure="See 'dagster-jet exports'.",
    )


def export_data(store: Store, export: Export) -> SnapshotStore:
    """Its manifest and chunks."""
    return SnapshotStore(store, export.job, map_name=export.map_name)


def delete_export(store: Store, name: str) -> Export:
    """Deletes an export, or whatever there is of it; an attempt that is under way comes to nothing.

    A crash inside leaves data that `collect_export_garbage` removes.

    Raises:
        JobStateError: there is none of this name.
    """
    removed = ExportList(store).remove(name)
    if removed is None:
        finished_export(store, name)
        raise JobStateError(f"the exported snapshot {name!r} is not there.")
    fail_point("export.removed")
    drop_data(store, removed)
    return removed


def drop_data(store: Store, export: Export) -> int:
    """Removes what was written for an attempt that no entry names any more."""
    return _drop(store, export.map_name) if export.attempt else 0


def _drop(store: Store, map_name: str) -> int:
    data = store.map(map_name)
    keys = data.keys()
    data.delete_all(keys)
    return len(keys)


def is_abandoned(export: Export) -> bool:
    """It was begun, and who wrote it is certainly dead."""
    return (
        export.state is ExportState.WRITING
        and export.writer is not None
        and is_owner_alive(export.writer) is False
    )


def collect_export_garbage(store: Store) -> int:
    """Removes the data of attempts that are dead, or that no entry of the list names; returns how
    many entries of maps.

    What a dead process was writing is wanted as before: whoever has the job next makes it. The maps
    are listed before the list is read: an attempt that begins in between is not among
    them, and every one that is has its entry already, or never will again.
    """
    maps = store.map_names(EXPORT_MAPS)
    for export in read_exports(store):
        if is_abandoned(export):
            ExportList(store).give_back(export)
    named = {one.map_name for one in read_exports(store) if one.attempt}
    return sum(_drop(store, name) for name in maps if name not in named)

"""The ledger: the last committed epoch of each sink, by the sink's own markers.

The job's record may lag behind the commits, and covers all sinks at once. Only the places
themselves show a sink that is behind the others, or a database restored from an old copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from dagster_jet.connectors.reopening import reopen_sink
from dagster_jet.contract import CommitContext
from dagster_jet.errors import JetError, SnapshotInvalidError, StoreCorruptedError
from dagster_jet.ownership.record_keeper import is_retained, read_record
from dagster_jet.snapshot.manifest import Artifact, Manifest
from dagster_jet.snapshot.record import ExecutionRecord, SnapshotRef
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store

_EXECUTIONS_MAX = 8
"""Executions to try, since a marker below exactly-once names the execution that committed."""
_ATTEMPTS_MAX = 5
"""Newest snapshots to begin with, one after the other, while a job drops them."""


class LedgerOrigin(str, Enum):
    """Origin of the information about commits."""

    MARKERS = "markers"
    """The sink's place."""
    RECORD = "record"
    """The job's record; the place keeps no markers or cannot be asked now."""


@dataclass(frozen=True)
class LedgerEntry:
    """The commits of one sink.

    Attributes:
        sink: the sink's name.
        epoch_id: epoch of the newest retained snapshot whose output, and all output before it, is
            committed; None: no such snapshot. A sink that holds rows back has the epoch of its
            newest output.
        decided_epoch_id: epoch of the newest decided snapshot, which the sink will reach.
        origin: origin of this information.
        note: why the place itself was not asked; "" if it was.
        output: facts about the output, of a sink that has any: a table of a lake. The version that
            the table had when it was asked has the epoch, and maybe later output: `table_version`,
            or `snapshot_id` with `metadata_location`; `schema`; `time_travel`, the query of this
            version; `table_history`, where its versions are; and `files`, `rows` and `bytes` that
            were staged for the epoch's snapshot.
    """

    sink: str
    epoch_id: int | None
    decided_epoch_id: int
    origin: LedgerOrigin
    note: str = ""
    output: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Ledger:
    """The commits of a job's sinks.

    Attributes:
        entries: one entry per sink, by its name; empty before the first snapshot.
    """

    entries: Mapping[str, LedgerEntry] = field(default_factory=dict)

    @property
    def consistent_epoch(self) -> int | None:
        """The epoch up to which all sinks are committed: the least of their epochs.

        Rows of several sinks that are joined up to there are one cut. None: a sink has committed
        nothing, or there are no sinks.

        Example:
            >>> said = LedgerOrigin.MARKERS
            >>> out, raw = LedgerEntry("out", 7, 7, said), LedgerEntry("raw", 5, 7, said)
            >>> Ledger({"out": out, "raw": raw}).consistent_epoch
            5
            >>> Ledger({"out": out, "raw": LedgerEntry("raw", None, 7, said)}).consistent_epoch
            >>> Ledger().consistent_epoch
        """
        epochs = [entry.epoch_id for entry in self.entries.values()]
        known = [epoch for epoch in epochs if epoch is not None]
        return min(known) if known and len(known) == len(epochs) else None


def read_ledger(store: Store, record: ExecutionRecord) -> Ledger:
    """Asks the place of every sink of the newest snapshot, in the snapshot's order.

    Raises:
        SnapshotInvalidError: the newest manifest is missing or damaged.
        StoreUnavailableError: too few members of the store answer.
    """
    record, retained = _retained(store, record)
    sinks = retained[0][1].sinks if retained else ()
    return Ledger({sink: _entry(store, record, retained, sink) for sink in sinks})


def _retained(
    store: Store, record: ExecutionRecord
) -> tuple[ExecutionRecord, list[tuple[SnapshotRef, Manifest]]]:
    """Returns the manifests that a record names, newest first, up to one that is damaged or that
    the running job has dropped meanwhile. If it has dropped all of them, its new record is read."""
    snapshots, found = SnapshotStore(store, record.job), list[tuple[SnapshotRef, Manifest]]()
    attempts = 0
    while len(found) < len(record.snapshots):
        ref = record.snapshots[len(found)]
        try:
            found.append((ref, snapshots.load(ref)))
        except (SnapshotInvalidError, StoreCorruptedError):
            if found:
                break
            attempts += 1
            if attempts == _ATTEMPTS_MAX or is_retained(store, record.job, ref):
                raise
            record = read_record(store, record.job) or replace(record, snapshots=())
    return record, found


def _entry(
    store: Store,
    record: ExecutionRecord,
    retained: Sequence[tuple[SnapshotRef, Manifest]],
    sink: str,
) -> LedgerEntry:
    decided = retained[0][0].epoch_id
    output: Mapping[str, Any] = {}

    def has_committed(manifest: Manifest, own: Sequence[Artifact]) -> bool:
        nonlocal output
        found = _asked(store, record, manifest, sink, own)
        output = found or {}
        return found is not None

    try:
        epoch_id = newest_committed(retained, sink, has_committed)
        return LedgerEntry(sink, epoch_id, decided, LedgerOrigin.MARKERS, output=output)
    except _CannotSayError as error:
        note = str(error)
    except (JetError, OSError) as error:
        note = f"the sink cannot be read now: {error}"
    recorded = recorded_as_committed(retained, sink)
    return LedgerEntry(sink, recorded, decided, LedgerOrigin.RECORD, note)


def recorded_as_committed(
    retained: Sequence[tuple[SnapshotRef, Manifest]], sink: str
) -> int | None:
    """Returns the epoch up to which a sink has its output by the job's record.

    Args:
        retained: snapshots and their manifests, newest first.
        sink: the sink's name.
    """
    newest = next(((ref, manifest) for ref, manifest in retained if ref.committed), None)
    if newest is None:
        return None
    ref, manifest = newest
    return _newest_visible(manifest, sink) if sink in manifest.held else ref.epoch_id


def _newest_visible(manifest: Manifest, sink: str) -> int | None:
    """Returns the epoch of a sink's newest output before that which the snapshot holds back."""
    before = manifest.newest_output.get(sink)
    return None if before is None else before.artifact.epoch_id


def newest_committed(
    retained: Sequence[tuple[SnapshotRef, Manifest]],
    sink: str,
    has_committed: Callable[[Manifest, Sequence[Artifact]], bool],
) -> int | None:
    """Returns the epoch of the newest snapshot that a sink has whole, with all before it.

    A snapshot without output for the sink counts as committed if the one before it is.

    Args:
        retained: snapshots and their manifests, newest first.
        sink: the sink's name.
        has_committed: whether the sink's place has the output that a manifest names.
    """
    candidate: int | None = None
    for ref, manifest in retained:
        own = [artifact for artifact in manifest.artifacts if artifact.sink == sink]
        if candidate is None:
            candidate = ref.epoch_id
        if sink in manifest.held:
            before, candidate = manifest.newest_output.get(sink), _newest_visible(manifest, sink)
            own = [] if before is None else [before.artifact]
        if not own:
            continue
        if has_committed(manifest, own):
            return candidate
        candidate = None
    return candidate


class _CannotSayError(Exception):
    """Only the record knows what the place has."""


def _asked(
    store: Store,
    record: ExecutionRecord,
    manifest: Manifest,
    sink: str,
    artifacts: Sequence[Artifact],
) -> Mapping[str, Any] | None:
    """Returns facts about the sink's output if it has these artifacts; None if not."""
    destination = manifest.sinks.get(sink)
    if destination is None:
        raise _CannotSayError("the snapshot does not say where it writes")
    committer = reopen_sink(destination, store).open_committer(record.job, sink)
    try:
        for context in _contexts(record, manifest, sink):
            has_committed = committer.has_committed(artifacts, context)
            if has_committed is None:
                raise _CannotSayError(f"a sink of kind {destination['kind']!r} keeps no markers")
            if has_committed:
                return committer.output_facts()
        return None
    finally:
        committer.close()


def _contexts(record: ExecutionRecord, manifest: Manifest, sink: str) -> list[CommitContext]:
    """Possible contexts of the commits: exactly-once, or below it by any of the executions."""
    first = manifest.execution_id
    last = min(record.execution_id, first + _EXECUTIONS_MAX)
    line = manifest.timeline
    return [
        CommitContext(record.job, sink, line, first, recovering=True),
        *(
            CommitContext(record.job, sink, line, by, recovering=True, repeatable=True)
            for by in range(first, last + 1)
        ),
    ]

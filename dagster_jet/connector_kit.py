"""Parts that connectors are built from, beside the base classes of `dagster_jet.contract`.

- Queues: `ReadMessages` counts each message once.
- Small epochs: `carried_frame` brings rows that a reader has to the tasks.
- Roll-forward sinks: a `SegmentWriter` stages rows in a `StagingArea`, phase 2 applies `Segment`s.
- Held transactions: `HeldCommitter` commits what writers prepared in `HeldTransactions`.
- Sinks without their pipeline: `add_sink_kind`.
- Secrets: a constructor calls `named`, whoever connects `text_of`, and `describe` calls `shown`.
- Tests: `fail_point` names a step at which `dagster_jet.testing.check_sink` fails.
"""

from __future__ import annotations

from inspect import getattr_static

from dagster_jet.connectors.carried_rows import can_be_carried, carried_frame
from dagster_jet.connectors.held import Fate, HeldCommitter, HeldTransactions, held_id, held_ids
from dagster_jet.connectors.messages import ReadMessages
from dagster_jet.connectors.staging import (
    CHUNK_BYTES_MAX,
    FolderArea,
    ObjectArea,
    RowsWriter,
    Segment,
    SegmentWriter,
    StagedInStore,
    StagingArea,
    StoreArea,
    remove_orphans,
    rows_of,
    segments_by_epoch,
)
from dagster_jet.contract import Sink
from dagster_jet.core.secret import Url, named, refuse_written_out, shown, text_of
from dagster_jet.errors import ConfigurationError
from dagster_jet.system.failpoint import fail_point


def add_sink_kind(kind: str, sink: type[Sink]) -> None:
    """Lets a start open sinks of this kind without their pipeline, by `Sink.reopen`.

    Call it in every process that starts or deletes the job, or reads its ledger, before it does.
    After a crash between a decision and its commits, a start that no longer has the sink needs the
    class to complete them. A start that does not know the kind is refused until then.

    Args:
        kind: the `kind` of `Sink.describe`.
        sink: the class. A class that is defined again, as in a notebook, replaces itself.

    Raises:
        ConfigurationError: another class has the kind, or this class has no `reopen`.
    """
    from dagster_jet.connectors.reopening import SINK_KINDS  # loads every connector

    known = SINK_KINDS.get(kind, sink)
    if (known.__module__, known.__qualname__) != (sink.__module__, sink.__qualname__):
        raise ConfigurationError(
            f"the kind {kind!r} of {sink.__qualname__} is that of {known.__module__}."
            f"{known.__qualname__}.",
            cure="Choose another kind in `describe` and here.",
        )
    if getattr_static(sink, "reopen") is vars(Sink)["reopen"]:
        raise ConfigurationError(
            f"{sink.__qualname__} has no `reopen`, so it cannot be opened without its pipeline.",
            cure="Implement `destination` and `reopen`.",
        )
    SINK_KINDS[kind] = sink


__all__ = [
    "CHUNK_BYTES_MAX",
    "Fate",
    "FolderArea",
    "HeldCommitter",
    "HeldTransactions",
    "ObjectArea",
    "ReadMessages",
    "RowsWriter",
    "Segment",
    "SegmentWriter",
    "StagedInStore",
    "StagingArea",
    "StoreArea",
    "Url",
    "add_sink_kind",
    "can_be_carried",
    "carried_frame",
    "fail_point",
    "held_id",
    "held_ids",
    "named",
    "refuse_written_out",
    "remove_orphans",
    "rows_of",
    "segments_by_epoch",
    "shown",
    "text_of",
]

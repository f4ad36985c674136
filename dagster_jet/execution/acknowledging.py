"""Sources that acknowledge what they have read: after the commits, the last thing of phase 2."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from dagster_jet.connectors.contract import Acknowledging
from dagster_jet.execution.context import ExecutionContext
from dagster_jet.execution.retrying import Attempted
from dagster_jet.snapshot.store_reactions import StoreCall


def acknowledge(context: ExecutionContext, messages: Mapping[str, Mapping[str, Any]]) -> None:
    """Has sources acknowledge messages: only what is committed may go. Any thread.

    A source that has left the pipeline is passed over: what it has read is delivered to whoever
    reads it next.

    Args:
        messages: by source and message id.

    Raises:
        JetError: given up, or not to be retried; the next start acknowledges.
    """
    retrying = context.retrying
    for name in messages.keys() & context.readers.keys():
        reader, commit = context.readers[name], StoreCall.COMMIT
        attempted = Attempted("acknowledgement", name, "its source", reader, commit)
        call = partial(context.polling.acknowledge, name, messages[name], retrying.ends_at_once)
        retrying.until_done(call, attempted, retrying.ending.is_set)


def unacknowledged(context: ExecutionContext) -> dict[str, Mapping[str, Any]]:
    """Per source, the messages that were read and are not acknowledged yet."""
    return {
        name: reader.unacknowledged()
        for name, reader in context.readers.items()
        if isinstance(reader, Acknowledging)
    }

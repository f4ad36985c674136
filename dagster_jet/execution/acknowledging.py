"""Acknowledges messages at their sources, as the last step of phase 2."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from dagster_jet.contract import Acknowledges, SourceReader
from dagster_jet.execution.retrying import Attempted, Retrying
from dagster_jet.execution.source_polling import SourcePolling
from dagster_jet.snapshot.store_reactions import StoreCall


def acknowledge(
    polling: SourcePolling, retrying: Retrying, messages: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Has sources acknowledge committed messages. Any thread. Returns whether all are confirmed.

    A source that has left the pipeline is skipped; its queue delivers the messages again.

    Args:
        messages: the messages, by source and message id.

    Raises:
        JetError: the call was given up or is not retryable; the next start acknowledges.
    """
    is_confirmed = not any(messages[name] for name in messages.keys() - polling.readers.keys())
    for name in messages.keys() & polling.readers.keys():
        reader, commit = polling.readers[name], StoreCall.COMMIT
        attempted = Attempted("acknowledgement", (name,), "its source", reader, commit)
        call = partial(polling.acknowledge, name, messages[name], retrying.ends_at_once)
        answer = retrying.until_done(call, attempted, retrying.ending.is_set)
        is_confirmed = is_confirmed and answer is not False
    return is_confirmed


def unacknowledged(readers: Mapping[str, SourceReader]) -> dict[str, Mapping[str, Any]]:
    """Returns per source the messages that were read and are not acknowledged yet."""
    return {
        name: reader.unacknowledged()
        for name, reader in readers.items()
        if reader.acknowledges is not Acknowledges.NOTHING
    }

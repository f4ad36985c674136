"""Owner of the markers and files that a sink leaves in its place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SinkOwner:
    """A sink of a job. Names of jobs are unique only within a namespace of a store.

    Each system derives its own form of id from it: the key of a message, the id of a row, the names
    of files.
    """

    store: str
    namespace: str
    job: str
    sink: str

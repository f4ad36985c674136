"""A code location as Dagster's webserver loads it, in this process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import dagster as dg
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceLoadTarget


@contextmanager
def loaded(
    instance: dg.DagsterInstance, target: WorkspaceLoadTarget
) -> Iterator[WorkspaceProcessContext]:
    """Dagster waits half a minute for the end of the code server, which on a busy machine takes
    longer. It ends without its client, too."""
    context = WorkspaceProcessContext(instance, target)
    context.__enter__()
    try:
        yield context
    finally:
        with suppress(subprocess.TimeoutExpired):
            context.__exit__(None, None, None)

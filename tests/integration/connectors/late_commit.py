"""A commit beside a proxy that holds its requests back, for every sink."""

from __future__ import annotations

from collections.abc import Collection

from dagster_jet.contract import CommitContext, Committer
from dagster_jet.errors import SinkUnavailableError
from dagster_jet.snapshot.manifest import Artifact
from tests.servers import wait_until


def commit_until_done(
    committer: Committer, artifacts: Collection[Artifact], context: CommitContext
) -> None:
    """Repeats a commit while the sink is unavailable, as the engine does."""

    def done() -> bool:
        try:
            committer.commit(artifacts, context)
        except SinkUnavailableError:
            return False
        return True

    wait_until(done, within=60)

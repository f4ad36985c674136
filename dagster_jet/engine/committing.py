"""Phase 2: what a decided snapshot names is made visible, in every sink."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from dagster_jet.core.failpoint import fail_point
from dagster_jet.engine.connector import CommitContext
from dagster_jet.engine.stopping import StopSignal
from dagster_jet.errors import FencedError, Reaction, SinkError
from dagster_jet.pipeline.graph import SinkNode
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import ExecutionRecord

_RETRY_FIRST_S, _RETRY_MAX_S = 0.1, 5.0
_ENDS_AT_ONCE = (StopKind.CANCEL, StopKind.SHUTDOWN)
"""Every other kind of stop means that the output is committed."""


@dataclass
class SinkCommitter:
    """Commits for one execution, until it is fenced, ends, or is asked to stop. Any thread."""

    job: str
    sinks: Sequence[SinkNode]
    accept_loss: bool
    record: Callable[[], ExecutionRecord]
    fenced: threading.Event
    tell: Callable[[str], None]
    """Of a commit that is being retried."""
    stop: StopSignal
    _ending: threading.Event = field(default_factory=threading.Event)

    def give_up(self) -> None:
        """Ends the waiting between two tries: the next start will commit."""
        self._ending.set()

    def abort_leftovers(self, keep: Collection[str]) -> None:
        """Removes what older executions left open in the sinks, except the tokens in `keep`."""
        for node in self.sinks:
            node.sink.abort_leftovers(self._context(node, recovering=True), keep)

    def commit(
        self, artifacts: Sequence[Artifact], *, recovering: bool, repeatable: bool = False
    ) -> None:
        """Phase 2 of every sink, each retried until it succeeds or is known to be lost.

        Raises:
            SinkError: given up; the record still names the artifacts, and the next start commits
                them.
            FencedError: that is another execution's to do.
        """
        fail_point("commit.before")
        for node in self.sinks:
            mine = [artifact for artifact in artifacts if artifact.sink == node.name]
            if mine:
                context = self._context(node, recovering=recovering)
                self._commit_one(node, mine, replace(context, repeatable=repeatable))
        fail_point("commit.after")

    def _commit_one(
        self, node: SinkNode, artifacts: list[Artifact], context: CommitContext
    ) -> None:
        pause_s = _RETRY_FIRST_S
        while True:
            try:
                node.sink.commit(artifacts, context)
                return
            except OSError as error:
                # Never swallowed, never skipped: the record says that this will be true.
                description = node.sink.describe()
                place = description.get("path", description["kind"])
                self.tell(f"{node.name} ({place}): commit is being retried: {error}")
            if self.fenced.is_set():
                raise FencedError("a newer execution owns the job.", job=self.job)
            if self._ending.wait(pause_s) or self.stop.kind in _ENDS_AT_ONCE:
                given_up = SinkError(
                    f"the execution ends before its output could be committed to {place}.",
                    job=self.job,
                    stage=node.name,
                    cure="Nothing is lost: the next start commits it.",
                )
                if self.stop.kind is StopKind.CANCEL:
                    given_up.reaction = Reaction.FAIL
                raise given_up
            pause_s = min(2 * pause_s, _RETRY_MAX_S)

    def _context(self, node: SinkNode, *, recovering: bool) -> CommitContext:
        record = self.record()
        return CommitContext(
            job=self.job,
            sink=node.name,
            line=record.line,
            execution_id=record.execution_id,
            recovering=recovering,
            accept_loss=self.accept_loss,
        )

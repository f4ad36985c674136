"""Phase 2: what a decided snapshot names is made visible, in every sink that it names.

Not in every sink of the pipeline: that may have changed since (`snapshot.owed`).
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dagster_jet.core.failpoint import fail_point
from dagster_jet.engine.connector import CommitContext, Sink
from dagster_jet.engine.events import JobEvent, OutputLost, SinkReopened
from dagster_jet.engine.stopping import StopSignal
from dagster_jet.errors import FencedError, JetError, Reaction, SinkError, SinkMismatchError
from dagster_jet.pipeline.graph import SinkNode
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.snapshot.owed import Destination, OwedCommit, SinkFate, owed_commits, sink_fate
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import ExecutionRecord

_logger = logging.getLogger(__name__)

_RETRY_FIRST_S, _RETRY_MAX_S = 0.1, 5.0
_ENDS_AT_ONCE = (StopKind.CANCEL, StopKind.SHUTDOWN)
"""Every other kind of stop means that the output is committed."""


@dataclass
class SinkCommitter:
    """Commits for one execution, until it is fenced, ends, or is asked to stop. Any thread."""

    job: str
    sinks: Sequence[SinkNode]
    destinations: Mapping[str, Destination]
    """Where each of `sinks` writes."""
    reopen: Callable[[Destination], Sink]
    """A sink that the pipeline does not have; raises `JetError` where it cannot be had."""
    accept_loss: bool
    record: Callable[[], ExecutionRecord]
    fenced: threading.Event
    tell: Callable[[str], None]
    """Of a commit that is being retried."""
    emit: Callable[[JobEvent], None]
    stop: StopSignal
    _ending: threading.Event = field(default_factory=threading.Event)

    def give_up(self) -> None:
        """Ends the waiting between two tries: the next start will commit."""
        self._ending.set()

    def abort_leftovers(
        self, keep: Collection[str], named: Iterable[Mapping[str, Destination]] = ()
    ) -> None:
        """Removes what older executions left open in the sinks, except the tokens in `keep`.

        Args:
            keep: what is named by a retained snapshot.
            named: by snapshot, the sinks as they were. One that has left the pipeline, or writes
                elsewhere, is cleaned as well. Best effort: nothing of it is visible, and starts
                try it again for as long as a snapshot is retained that names it.
        """
        for node in self.sinks:
            node.sink.abort_leftovers(self._context(node.name, recovering=True), keep)
        for sink, destination in self._former(named):
            try:
                reopened = self.reopen(destination)
                reopened.abort_leftovers(self._context(sink, recovering=True), keep)
            except (JetError, OSError) as error:
                where = _where(destination)
                _logger.warning(
                    "%s: leftovers of the former sink %s (%s) stay: %s",
                    self.job,
                    sink,
                    where,
                    error,
                )

    def _former(
        self, named: Iterable[Mapping[str, Destination]]
    ) -> Iterable[tuple[str, Destination]]:
        found: list[tuple[str, Destination]] = []
        for sinks in named:
            for sink, destination in sinks.items():
                if sink_fate(sink, sinks, self.destinations) is SinkFate.KEPT:
                    continue
                if (sink, destination) not in found:
                    found.append((sink, destination))
        return found

    def commit(
        self,
        artifacts: Sequence[Artifact],
        named: Mapping[str, Destination],
        *,
        recovering: bool,
        repeatable: bool = False,
    ) -> None:
        """Phase 2 of every sink. What a sink wants to be retried is, until it succeeds.

        Args:
            artifacts: of one snapshot.
            named: where the sinks wrote when the artifacts were staged. What has left the pipeline,
                or writes elsewhere by now, is reopened there.
            recovering: a dead execution has decided this.
            repeatable: below exactly-once, see `CommitContext`.

        Raises:
            SinkMismatchError: a sink has left or moved, and cannot be reopened. Nothing of it is
                committed, the others may be; the record still names all of it.
            SinkError: given up; the record still names the artifacts, and the next start commits
                them.
            FencedError: that is another execution's to do.
            JetError: whatever else a sink has said, with the reaction that it asks for.
        """
        fail_point("commit.before")
        for owed in owed_commits(artifacts, named, self.destinations):
            sink = self._sink_of(owed)
            if sink is not None:
                context = self._context(owed.sink, recovering=recovering, repeatable=repeatable)
                committed = self._commit_one(sink, owed, context)
                if committed and owed.fate is not SinkFate.KEPT:
                    self._tell_reopened(owed)
        fail_point("commit.after")

    def _sink_of(self, owed: OwedCommit) -> Sink | None:
        """None where it cannot be had and the loss is accepted."""
        if owed.fate is SinkFate.KEPT:
            sink: Sink = next(node.sink for node in self.sinks if node.name == owed.sink)
            return sink
        why = "the snapshot is of a version that did not note where its sinks write."
        if owed.destination is not None:
            try:
                return self.reopen(owed.destination)
            except JetError as error:
                why = str(error)
        if self.accept_loss:
            self._tell_lost(owed, why)
            return None
        raise SinkMismatchError(
            f"{owed.rows} rows of epochs {_span(owed.epoch_ids)} are decided and wait for their "
            f"commit; the sink {owed.fate.value}, and cannot be opened without it: {why}",
            job=self.job,
            stage=owed.sink,
            position=_where(owed.destination),
            cure="Start once with the pipeline as it was, which commits them; or let the job go on "
            "without these rows with JobConfig(accept_loss=True).",
        )

    def _tell_reopened(self, owed: OwedCommit) -> None:
        assert owed.destination is not None
        where = _where(owed.destination)
        _logger.warning(
            "%s: %d rows of epochs %s, decided before the sink %s %s, are committed to %s",
            self.job,
            owed.rows,
            _span(owed.epoch_ids),
            owed.sink,
            owed.fate.value,
            where,
        )
        execution_id = self.record().execution_id
        self.emit(
            SinkReopened(
                self.job, execution_id, owed.sink, owed.fate, where, owed.epoch_ids, owed.rows
            )
        )

    def _tell_lost(self, owed: OwedCommit, why: str) -> None:
        _logger.warning(
            "%s: %d rows of epochs %s are lost, as accepted, and never reach the sink %s: %s",
            self.job,
            owed.rows,
            _span(owed.epoch_ids),
            owed.sink,
            why,
        )
        tokens = tuple(artifact.token for artifact in owed.artifacts)
        execution_id = self.record().execution_id
        self.emit(
            OutputLost(self.job, execution_id, owed.sink, owed.epoch_ids, owed.rows, tokens, why)
        )

    def _commit_one(self, sink: Sink, owed: OwedCommit, context: CommitContext) -> bool:
        """False: its place is gone with the sink, and the loss is accepted."""
        pause_s = _RETRY_FIRST_S
        while True:
            try:
                sink.commit(owed.artifacts, context)
                return True
            except JetError as error:
                is_left = owed.fate is not SinkFate.KEPT and error.reaction is Reaction.RESTART
                if is_left and self.accept_loss and isinstance(error, SinkError):
                    # Nobody will bring back the place of a sink that the pipeline has given up.
                    self._tell_lost(owed, str(error))
                    return False
                if error.reaction is not Reaction.RETRY:
                    raise
                # Never swallowed, never skipped: the record says that this will be true.
                place = _where(sink.describe())
                self.tell(f"{owed.sink} ({place}): commit is being retried: {error}")
            except Exception as error:
                raise SinkError(
                    f"the commit raised {type(error).__name__}: {error}.",
                    job=self.job,
                    stage=owed.sink,
                    cure="Nothing is lost: the job restarts and commits again.",
                ) from error
            if self.fenced.is_set():
                raise FencedError("a newer execution owns the job.", job=self.job)
            ended = self._ending.wait(random.uniform(pause_s / 2, pause_s))
            if ended or self.stop.kind in _ENDS_AT_ONCE:
                given_up = SinkError(
                    f"the execution ends before its output could be committed to {place}.",
                    job=self.job,
                    stage=owed.sink,
                    cure="Nothing is lost: the next start commits it.",
                )
                if self.stop.kind is StopKind.CANCEL:
                    given_up.reaction = Reaction.FAIL
                raise given_up
            pause_s = min(2 * pause_s, _RETRY_MAX_S)

    def _context(self, sink: str, *, recovering: bool, repeatable: bool = False) -> CommitContext:
        record = self.record()
        return CommitContext(
            job=self.job,
            sink=sink,
            line=record.line,
            execution_id=record.execution_id,
            recovering=recovering,
            accept_loss=self.accept_loss,
            repeatable=repeatable,
            tell_lost=self._tell_artifact_lost,
        )

    def _tell_artifact_lost(self, artifact: Artifact) -> None:
        owed = OwedCommit(artifact.sink, None, SinkFate.KEPT, (artifact,))
        self._tell_lost(owed, "what was staged is gone, and nothing says that it was committed.")


def _where(destination: Destination | None) -> str | None:
    """For people."""
    if destination is None:
        return None
    return str(destination.get("path", destination["kind"]))


def _span(epoch_ids: Sequence[int]) -> str:
    return f"{epoch_ids[0]} to {epoch_ids[-1]}" if len(epoch_ids) > 1 else f"{epoch_ids[0]}"

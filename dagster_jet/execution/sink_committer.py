"""Phase 2: makes the output of a decided snapshot visible, in every sink that it names.

The snapshot's sinks may differ from the pipeline's present sinks (`snapshot.owed`). Sinks commit in
parallel, so one that does not answer does not delay the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dagster_jet.connectors.reopening import destination_of
from dagster_jet.contract import (
    CommitContext,
    CommitPart,
    Committer,
    Piece,
    Sink,
    carry_out_here,
)
from dagster_jet.contract.part import check_is_a
from dagster_jet.errors import (
    JetError,
    Reaction,
    ReferenceMissingError,
    SinkError,
    SinkMismatchError,
)
from dagster_jet.execution.commit_groups import RunAll, commit_together, grouped, in_threads
from dagster_jet.execution.commit_reports import CommitReports, place_text, span
from dagster_jet.execution.refused_output import RefusedOutput
from dagster_jet.execution.retrying import Attempted, GivenUpError, Retrying
from dagster_jet.pipeline.graph import SinkNode
from dagster_jet.snapshot.manifest import Artifact, Manifest, NewestOutput
from dagster_jet.snapshot.newest_output import output_later_than
from dagster_jet.snapshot.owed import (
    Destination,
    OwedCommit,
    SinkChange,
    names_at_place,
    owed_commits,
    present_name,
    sink_change,
)
from dagster_jet.snapshot.record import ExecutionRecord
from dagster_jet.snapshot.store_reactions import StoreCall
from dagster_jet.start_options import StartOptions
from dagster_jet.system.failpoint import fail_point

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PendingCommit:
    """A running commit of one sink."""

    since_ms: int
    """Start of the commit, by wall clock in ms."""
    error: str = ""
    """Reason of the retries; "" during the first try."""


@dataclass
class SinkCommitter:
    """Commits for one execution, until it is fenced, ends, or is asked to stop. Any thread."""

    job: str
    sinks: Sequence[SinkNode]
    destinations: Mapping[str, Destination]
    """Destination of each of `sinks`."""
    reopen: Callable[[Destination], Sink]
    """Reopens a sink that the pipeline does not have; raises `JetError` if it cannot be reopened.
    """
    options: StartOptions
    record: Callable[[], ExecutionRecord]
    retrying: Retrying
    reports: CommitReports
    in_tasks: Callable[[Sequence[Piece]], list[Any]] = carry_out_here
    """See `CommitContext`."""
    run_all: RunAll = in_threads
    """Runs the sinks' commits."""
    took_ms: dict[str, float] = field(default_factory=dict)
    """Duration of each sink's last commit, including retries."""
    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Facts about each sink's last commit, if it has any (`Committer.output_facts`)."""
    _began: dict[str, float] = field(default_factory=dict)
    """Start of each running commit by sink, by the monotonic clock."""
    _committers: dict[str, Committer] = field(default_factory=dict)
    """Committers of the pipeline's sinks, opened on first use."""

    def pending(self, now_ms: int) -> dict[str, PendingCommit]:
        """Returns the running commits by sink. Any thread."""
        now, errors = time.monotonic(), dict(self.retrying.errors)
        return {
            sink: PendingCommit(now_ms - round((now - began) * 1000), errors.get(sink, ""))
            for sink, began in dict(self._began).items()
        }

    def close(self) -> None:
        """Closes the opened committers. Called after the last commit."""
        while self._committers:
            _close(*self._committers.popitem())

    def abort_orphans(
        self, keep: Collection[str], named: Iterable[Mapping[str, Destination]] = ()
    ) -> None:
        """Removes what older executions left open in the sinks, except the tokens in `keep`.

        Args:
            keep: tokens that a retained snapshot names.
            named: by snapshot, the sinks at that time. A sink that has left the pipeline, or writes
                elsewhere, is cleaned as well. This is best effort: the rows are not visible, and
                later starts try again as long as a retained snapshot names the sink.
        """
        for node in self.sinks:
            committer = self._committer(node.name)
            committer.abort_orphans(self._context(node.name, recovering=True), keep)
        for sink, destination in self._former(named):
            try:
                reopened = self.reopen(destination).open_committer(self.job, sink)
                try:
                    reopened.abort_orphans(self._context(sink, recovering=True), keep)
                finally:
                    _close(sink, reopened)
            except (JetError, OSError) as error:
                where = place_text(destination)
                _logger.warning(
                    "%s: staged output of the former sink %s (%s) could not be removed: %s",
                    self.job,
                    sink,
                    where,
                    error,
                )

    def abort_own(self) -> None:
        """Removes what this execution has left open, at the end of a job that nobody may ever start
        again. All that is decided is committed. Best effort: the next start does the rest."""
        for node in self.sinks:
            context = self._context(node.name, recovering=True)
            context = replace(context, execution_id=context.execution_id + 1)
            try:
                self._committer(node.name).abort_orphans(context, ())
            except Exception as error:  # noqa: BLE001 - the job has ended
                _logger.warning(
                    "%s: what is open in the sink %s stays: %s", self.job, node.name, error
                )

    def _former(
        self, named: Iterable[Mapping[str, Destination]]
    ) -> Iterable[tuple[str, Destination]]:
        found: list[tuple[str, Destination]] = []
        for sinks in named:
            for sink, destination in sinks.items():
                if sink_change(sink, sinks, self.destinations) is SinkChange.KEPT:
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
        """Commits every sink. Retryable errors of a sink are retried until it succeeds.

        Args:
            artifacts: the artifacts of one snapshot.
            named: destinations of the sinks when the artifacts were staged. A sink that has left
                the pipeline, or writes elsewhere now, is reopened there.
            recovering: whether a dead execution has decided the snapshot.
            repeatable: for guarantees below exactly-once, see `CommitContext`.

        Raises:
            SinkMismatchError: a sink has left or moved, and cannot be reopened. Its output is not
                committed, that of others may be; the record still names all output.
            SinkError: the commit was given up; the record still names the artifacts, and the next
                start commits them.
            FencedError: another execution has to commit.
            JetError: any other error of a sink, with its reaction.
        """
        fail_point("commit.before")
        pending = owed_commits(artifacts, named, self.destinations)
        stuck: OwedCommit | None = None
        while pending:
            failures = self._commit_all(pending, stuck, recovering, repeatable)
            # A row may refer to a row of another sink, which had its turn first.
            waiting = tuple(o for o, error in failures if isinstance(error, ReferenceMissingError))
            others = [error for owed, error in failures if owed not in waiting]
            is_stuck = len(waiting) == len(pending)
            if others or (is_stuck and (stuck or not self.options.refused_to_dead_letters)):
                raise others[0] if others else failures[0][1]
            pending, stuck = waiting, waiting[0] if is_stuck else None
        fail_point("commit.after")

    def _commit_all(
        self,
        pending: Sequence[OwedCommit],
        stuck: OwedCommit | None,
        recovering: bool,
        repeatable: bool,
    ) -> list[tuple[OwedCommit, Exception]]:
        """Commits in parallel; returns the failures in order of time.

        Args:
            stuck: whether referenced rows will not come, so that rows referring to them may be left
                out.

        Raises:
            BaseException: a commit has raised what is no `Exception`.
        """
        failures: list[tuple[OwedCommit, Exception]] = []
        one_failed = threading.Event()

        def commit(group: Sequence[OwedCommit]) -> None:
            contexts = [
                self._context(
                    owed.sink, recovering=recovering, repeatable=repeatable, is_stuck=owed == stuck
                )
                for owed in group
            ]
            began = time.monotonic()
            self._began.update({owed.sink: began for owed in group})
            try:
                if len(group) == 1:
                    self._commit_owed(group[0], contexts[0], one_failed)
                elif not self._commit_together(group, contexts, one_failed):
                    self.run_all([partial(commit, [owed]) for owed in group])
                    return
                for owed in group:
                    self.took_ms[owed.sink] = (time.monotonic() - began) * 1000
            except Exception as failure:  # noqa: BLE001 - raised when all have ended
                failures.extend((owed, failure) for owed in group)
                if not isinstance(failure, ReferenceMissingError):
                    one_failed.set()
            except BaseException:
                one_failed.set()  # a panic in Rust, or SystemExit: it ends the execution
                raise
            finally:
                for owed in group:
                    self._began.pop(owed.sink, None)

        self.run_all([partial(commit, group) for group in self._grouped(pending)])
        return failures

    def _grouped(self, pending: Sequence[OwedCommit]) -> list[list[OwedCommit]]:
        """A sink that has left or moved is alone: its former place gets no more."""
        kept = {owed.sink for owed in pending if owed.change is SinkChange.KEPT}
        return grouped(pending, lambda o: self._committer(o.sink) if o.sink in kept else None)

    def _commit_together(
        self,
        group: Sequence[OwedCommit],
        contexts: Sequence[CommitContext],
        one_failed: threading.Event,
    ) -> bool:
        """Returns False if each has to be committed by itself."""
        parts = [
            CommitPart(self._committer(owed.sink), owed.artifacts, context)
            for owed, context in zip(group, contexts, strict=True)
        ]
        place = ", ".join(place_text(owed.destination) for owed in group)
        is_done = commit_together(parts, place, self.retrying, one_failed)
        for part in parts if is_done else ():
            self._keep_facts(part.context.sink, part.committer)
        return is_done

    def _keep_facts(self, sink: str, committer: Committer) -> None:
        if facts := committer.output_facts():
            self.facts[sink] = facts

    def missing_output(
        self, expected: Mapping[str, NewestOutput], named: Mapping[str, Destination]
    ) -> dict[str, NewestOutput]:
        """Returns the committed output that sinks of the pipeline have lost, by their places' own
        markers.

        Sinks that have moved or left are not checked; those without markers cannot say it.

        Args:
            expected: by sink, the output that its place must have.
            named: destinations of the sinks at that time.

        Raises:
            JetError: a place cannot be read and the error is not retryable; retryable errors are
                retried.
        """
        missing: dict[str, NewestOutput] = {}
        for sink, newest in expected.items():
            present = self._present(sink, named)
            if present is not None and self._has_committed(present, newest) is False:
                missing[present] = newest
        return missing

    def _has_committed(self, sink: str, newest: NewestOutput) -> bool | None:
        """Asks the place of a sink. The marker may have the sink's former name."""
        marked = newest.artifact.sink
        context = replace(
            self._context(marked, recovering=True),
            timeline=newest.timeline,
            repeatable=newest.execution_id > 0,
            owns_job=True,
        )
        if newest.execution_id:
            context = replace(context, execution_id=newest.execution_id)
        committer = self._committer(sink) if marked == sink else self._opened(sink, marked)
        try:
            ask = partial(committer.has_committed, [newest.artifact], context)
            has_committed: bool | None = self.retrying.ask(sink, committer, ask)
            if has_committed:
                self._keep_facts(sink, committer)
            return has_committed
        finally:
            if marked != sink:
                _close(marked, committer)

    def _present(self, sink: str, named: Mapping[str, Destination]) -> str | None:
        return present_name(sink, named, self.destinations, self.options.renamed)

    def sinks_with_output(self, newest: Manifest, since: tuple[int, int]) -> list[str]:
        """Returns the sinks of the pipeline whose places have later output. A place without markers
        is taken to have it.

        Args:
            newest: manifest of the newest snapshot, committed or not.
            since: timeline and epoch.
        """
        today, renamed = self.destinations, self.options.renamed
        there: set[str] = set()
        for sink, output in output_later_than(newest, since).items():
            present = self._present(sink, newest.sinks)
            if present is None or any(self._has_committed(present, o) is not False for o in output):
                there.update(names_at_place(sink, newest.sinks, today, renamed))
        return sorted(there)

    def report_missing(self, sink: str, newest: NewestOutput) -> None:
        """Reports committed output whose loss is accepted."""
        why = "the sink's location no longer has this epoch, and perhaps not others."
        self.reports.lost(sink, (newest.artifact,), why)

    def _commit_owed(
        self, owed: OwedCommit, context: CommitContext, one_failed: threading.Event
    ) -> None:
        if owed.change is SinkChange.KEPT:
            committer = self._committer(owed.sink)
            self._commit_one(committer, owed, context, one_failed)
            self._keep_facts(owed.sink, committer)
            return
        sink = self._former_sink(owed)
        if sink is None:
            return
        committer = sink.open_committer(self.job, owed.sink)
        try:
            if self._commit_one(committer, owed, context, one_failed):
                self.reports.reopened(owed)
        finally:
            _close(owed.sink, committer)

    def _committer(self, sink: str) -> Committer:
        if sink not in self._committers:
            self._committers[sink] = self._opened(sink, sink)
        return self._committers[sink]

    def _opened(self, sink: str, name: str) -> Committer:
        """Opens a committer of the pipeline's sink, under its present or former name."""
        node = next(node for node in self.sinks if node.name == sink)
        committer = node.sink.open_committer(self.job, name)
        check_is_a(Committer, committer, job=self.job, stage=sink)
        return committer

    def _former_sink(self, owed: OwedCommit) -> Sink | None:
        """Returns the reopened sink; None if it cannot be reopened and the loss is accepted."""
        try:
            return self.reopen(owed.destination)
        except JetError as error:
            why = str(error)
        if self.options.accept_loss:
            self.reports.lost(owed.sink, owed.artifacts, why)
            return None
        raise SinkMismatchError(
            f"{owed.rows} rows of epochs {span(owed.epoch_ids)} are decided and not committed "
            f"yet. Since then the sink {owed.change.value}, and its former location cannot be "
            f"opened without the former pipeline: {why}",
            job=self.job,
            stage=owed.sink,
            position=place_text(owed.destination),
            cure="Start once with the former pipeline: that start commits the rows. Or continue "
            "without them with the start option accept_loss=True.",
        )

    def _commit_one(
        self,
        committer: Committer,
        owed: OwedCommit,
        context: CommitContext,
        one_failed: threading.Event,
    ) -> bool:
        """Returns False if the sink's place is gone with the sink, and the loss is accepted."""
        place = place_text(owed.destination)
        is_decided = not context.repeatable
        attempted = Attempted(
            "commit", (owed.sink,), place, committer, StoreCall.COMMIT, is_decided
        )
        try:
            commit = partial(committer.commit, owed.artifacts, context)
            self.retrying.until_done(commit, attempted, one_failed.is_set)
            return True
        except GivenUpError:
            raise
        except SinkError as error:
            is_left = owed.change is not SinkChange.KEPT and error.reaction is Reaction.RESTART
            if not (is_left and self.options.accept_loss):
                raise
            # The place of a sink that was removed from the pipeline will not come back.
            self.reports.lost(owed.sink, owed.artifacts, str(error))
            return False

    def _context(
        self, sink: str, *, recovering: bool, repeatable: bool = False, is_stuck: bool = False
    ) -> CommitContext:
        record = self.record()
        context = CommitContext(
            job=self.job,
            sink=sink,
            timeline=record.timeline,
            execution_id=record.execution_id,
            recovering=recovering,
            accept_loss=self.options.accept_loss,
            repeatable=repeatable,
            report_lost=self.reports.artifact_lost,
            held_writers=record.held_writers.get(sink, 0),
            retained_epoch_id=record.snapshots[-1].epoch_id if record.snapshots else 0,
            in_tasks=self.in_tasks,
        )
        letters = [n for n in self.sinks if n.of_dead_letters and n.upstream == (sink,)]
        refused = RefusedOutput(
            context,
            letters[0] if letters else None,
            self.options.refused_to_dead_letters,
            is_stuck,
            destination_of,
            self.reopen,
            self.reports.refused,
        )
        return replace(context, refused=refused)


def _close(sink: str, committer: Committer) -> None:
    try:
        committer.close()
    except Exception as error:  # noqa: BLE001 - nothing depends on it any more
        _logger.warning("the sink %s: closing raised %r", sink, error)

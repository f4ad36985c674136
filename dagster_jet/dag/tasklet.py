"""Drives one processor through its callbacks: restore, process, snapshot, complete.

Pure: the clock is an argument; queues and the snapshot's writer are streams. A scheduler calls
`call` repeatedly; so does a Spark task, with queues that it fills itself.
Source: Hazelcast Jet `ProcessorTasklet`; the states are in `tasklet_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import islice
from typing import ClassVar

from dagster_jet.dag.calls import Callback, ProcessorCalls
from dagster_jet.dag.inbound import ProcessorInput
from dagster_jet.dag.inbox import Inbox
from dagster_jet.dag.items import DONE, IDLE, SnapshotBarrier, SnapshotEntry, Watermark
from dagster_jet.dag.outbox import ContractError
from dagster_jet.dag.snapshot_context import Phase1, SnapshotContext
from dagster_jet.dag.tasklet_state import LEGAL_MOVES, TaskletState
from dagster_jet.dag.watermark import WatermarkError

INBOX_LIMIT = 2048


class CallOutcome(Enum):
    """Result of a call of a tasklet."""

    NONE = "nothing to do, or nobody takes the output"
    MADE = "made progress"
    DONE = "ended; do not call it again"


class ProcessorTasklet:
    """One processor, its inputs, its outbox and its part in the snapshot protocol.

    Args:
        calls: the processor behind its contract.
        input: its inbound edges.
        snapshots: the requests of the coordinator.
        restored: entries of the restored snapshot; None: the job starts from scratch.
        is_finished: the processor had ended before the restored snapshot: it does not run again.
        inbox_limit: largest number of items passed to `process` at once.
        now_ms: wall clock, for watermarks that advance with time.
    """

    def __init__(
        self,
        calls: ProcessorCalls,
        input: ProcessorInput,
        snapshots: SnapshotContext,
        *,
        restored: Iterable[SnapshotEntry] | None = None,
        is_finished: bool = False,
        inbox_limit: int = INBOX_LIMIT,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self.calls = calls
        self.state = TaskletState.START
        self.input = input
        self._outbox = calls.outbox
        self._inbox = Inbox()
        self._inbox_limit = inbox_limit
        self._is_pending = False
        self._snapshots = snapshots
        self._restored: Iterator[SnapshotEntry] | None = (
            None if restored is None else iter(restored)
        )
        self._is_finished = is_finished
        self._now_ms = now_ms
        self._moved = False
        self._next_snapshot_id = snapshots.next_id
        self._barrier: SnapshotBarrier | None = None
        self._phase1: Phase1 | None = None
        self._to_commit: int | None = None
        """Id of the prepared snapshot whose phase 2 has not been seen yet."""

    # --- for the coordinator --------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether DONE was sent, or the tasklet was closed."""
        return self.state in (TaskletState.CLOSE, TaskletState.END)

    @property
    def has_restored(self) -> bool:
        """Whether `init` and the restore are complete."""
        return self.state not in _STARTING

    def has_saved(self, snapshot_id: int) -> bool:
        """Whether phase 1 of this snapshot is complete here: barrier sent, or nothing left."""
        return self._next_snapshot_id > snapshot_id or self.is_done

    def ended_before(self, snapshot_id: int) -> bool:
        """Whether it ended before it saw the barrier: the snapshot lacks its entries."""
        return self.is_done and self._next_snapshot_id <= snapshot_id

    def has_committed(self, snapshot_id: int) -> bool:
        """Whether phase 2 of this snapshot is complete here."""
        return self._to_commit is None or self._to_commit > snapshot_id or self.is_done

    # --- for the scheduler ----------------------------------------------------------------------

    @property
    def name(self) -> str:
        return f"{self.calls.context.vertex}#{self.calls.context.index}"

    @property
    def is_cooperative(self) -> bool:
        return self.calls.is_cooperative

    def call(self) -> CallOutcome:
        """Advance until it has to wait, or one callback has done some work.

        Raises:
            ProcessorError: the processor broke its contract or raised. Then call `close`.
        """
        self._moved = False
        steps = self._steps
        while steps[self.state](self):
            pass
        accepted = self._outbox.take_accepted() > 0
        if self.state is TaskletState.END:
            return CallOutcome.DONE
        return CallOutcome.MADE if self._moved or accepted else CallOutcome.NONE

    def close(self) -> None:
        """End the tasklet at once: the execution is cancelled or has failed."""
        if self.state is not TaskletState.END:
            self.state = TaskletState.CLOSE
            self._close()

    # --- state changes --------------------------------------------------------------------------

    def _move(self, to: TaskletState) -> None:
        """Change the state; the only method that does."""
        if to not in LEGAL_MOVES[self.state]:
            raise self.calls.error(
                Callback.PROCESS,
                f"the tasklet would move from {self.state.name} to {to.name}.",
                "This is a defect of the runtime; please report it.",
            )
        # A cycle of the processing loop alone is not progress.
        self._moved = self._moved or not {self.state, to} <= _LOOP
        self.state = to

    def _resume(self) -> None:
        self._move(TaskletState.COMPLETE if self.input.is_done else TaskletState.PROCESS_WATERMARK)

    # --- steps: True = continue in the same call ------------------------------------------------

    def _start(self) -> bool:
        if self._is_finished:
            self._move(TaskletState.EMIT_DONE)
            return False
        self.calls.init()
        if self._restored is not None:
            self._move(TaskletState.RESTORE)
        else:
            self._resume()
        return False

    def _restore(self) -> bool:
        assert self._restored is not None
        if not self._inbox and not self._is_pending:
            try:
                for entry in islice(self._restored, self._inbox_limit):
                    self._inbox.add(entry)
            except ContractError as error:
                raise self.calls.error(Callback.RESTORE, error.message, error.cure) from error
            if not self._inbox:
                self._move(TaskletState.FINISH_RESTORE)
                return False
        before = len(self._inbox)
        self._is_pending = not self.calls.restore(self._inbox)
        self._moved = self._moved or len(self._inbox) < before
        return False

    def _finish_restore(self) -> bool:
        if self.calls.finish_restore():
            self._resume()
        return False

    def _process_watermark(self) -> bool:
        self.input.check(self._now_ms())
        found = self.input.watermark
        if found is not None:
            if isinstance(found, Watermark):
                done = self.calls.watermark(found)
            else:
                done = self._outbox.offer_in_band(IDLE, to_snapshot=False)
            if not done:
                return False
            self.input.watermark = None
            self._moved = True
        self._move(TaskletState.TRY_PROCESS)
        return True

    def _try_process(self) -> bool:
        if not self.calls.try_process():
            return False
        self._move(TaskletState.PROCESS_INBOX)
        return True

    def _process_inbox(self) -> bool:
        if self._phase2_is_here():
            self._move(TaskletState.COMMIT_IN_PROCESS)
            return False
        if not self._inbox and not self._is_pending:
            self._fill()
        if self._inbox or self._is_pending:
            assert self.input.ordinal is not None
            before = len(self._inbox)
            done = self.calls.process(self.input.ordinal, self._inbox)
            # A processor that drains at once and emits slowly is called with an empty inbox.
            self._is_pending = not done and not self._inbox
            self._moved = self._moved or len(self._inbox) < before
        if self._inbox or self._is_pending:
            return False
        return self._after_inbox()

    def _after_inbox(self) -> bool:
        if self.input.watermark is not None:
            self._move(TaskletState.PROCESS_WATERMARK)
        elif self.input.exhausted is not None:
            self._move(TaskletState.COMPLETE_EDGE)
        elif self.input.barrier is not None:
            self._begin_snapshot(self.input.barrier)
        else:
            self._resume()
        return False

    def _fill(self) -> None:
        if self.input.exhausted is not None or self.input.watermark is not None:
            return
        try:
            if self.input.fill(self._inbox, self._inbox_limit, self._now_ms()):
                self._moved = True
        except WatermarkError as error:
            raise self.calls.error(
                Callback.WATERMARK,
                f"was to be given a wrong watermark: {error}.",
                "The processor before it must emit strictly increasing watermarks.",
            ) from error

    def _complete_edge(self) -> bool:
        assert self.input.exhausted is not None
        if self.calls.complete_edge(self.input.exhausted):
            self.input.exhausted = None
            self._resume()
        return False

    def _complete(self) -> bool:
        if self._phase2_is_here():
            self._move(TaskletState.COMMIT_IN_COMPLETE)
            return False
        request = self._snapshots.phase1
        if request is not None and request.snapshot_id == self._next_snapshot_id:
            # Crash window: saving with a half-emitted item would put it before the barrier on some
            # edges and behind it on others. So the outbox accepts that item, and no further one.
            if not self._outbox.has_unfinished_item:
                self._outbox.unblock()
                self._begin_snapshot(SnapshotBarrier(request.snapshot_id, request.terminal))
                return False
            self._outbox.block()
        if self.calls.complete():
            self._outbox.unblock()
            self._move(
                TaskletState.AWAIT_PHASE_2
                if self._to_commit is not None
                else TaskletState.EMIT_DONE
            )
        return False

    def _begin_snapshot(self, barrier: SnapshotBarrier) -> None:
        request = self._snapshots.phase1
        if barrier.snapshot_id != self._next_snapshot_id:
            raise self.calls.error(
                Callback.SAVE,
                f"expected the barrier of snapshot {self._next_snapshot_id}, got {barrier}.",
                "This is a defect of the runtime; please report it.",
            )
        self._barrier = barrier
        if request is None or request.snapshot_id != barrier.snapshot_id:
            request = Phase1(barrier.snapshot_id, barrier.terminal)
        self._phase1 = request
        self._outbox.begin_snapshot()
        self._move(TaskletState.SAVE_SNAPSHOT)

    def _save_snapshot(self) -> bool:
        assert self._phase1 is not None
        if self.calls.save():
            self._move(
                TaskletState.EMIT_BARRIER
                if self._phase1.export_only
                else TaskletState.PREPARE_COMMIT
            )
        return False

    def _prepare_commit(self) -> bool:
        if self.calls.prepare():
            self._move(TaskletState.EMIT_BARRIER)
        return False

    def _emit_barrier(self) -> bool:
        assert self._barrier is not None and self._phase1 is not None
        if not self._outbox.offer_in_band(self._barrier, to_snapshot=True):
            return False
        barrier, self._barrier = self._barrier, None
        # The order matters: the coordinator must not see "saved" and "nothing to commit" together.
        if not self._phase1.export_only:
            self._to_commit = barrier.snapshot_id
        self._next_snapshot_id += 1
        self.input.barrier_passed()
        if not barrier.terminal:
            self._resume()
        else:
            self._move(
                TaskletState.EMIT_DONE if self._to_commit is None else TaskletState.AWAIT_PHASE_2
            )
        return False

    def _phase2_is_here(self) -> bool:
        decided = self._snapshots.phase2
        return decided is not None and decided.snapshot_id == self._to_commit

    def _commit(self) -> bool:
        decided = self._snapshots.phase2
        assert decided is not None
        if self.calls.commit(success=decided.success):
            self._to_commit = None
            self._move(_AFTER_COMMIT[self.state])
        return False

    def _await_phase2(self) -> bool:
        if self._phase2_is_here():
            self._move(TaskletState.COMMIT_AT_END)
        return False

    def _emit_done(self) -> bool:
        if self._outbox.offer_in_band(DONE, to_snapshot=True):
            self._move(TaskletState.CLOSE)
        return False

    def _close(self) -> bool:
        self.calls.close()
        self._move(TaskletState.END)
        return False

    def _end(self) -> bool:
        return False

    _steps: ClassVar[dict[TaskletState, Callable[[ProcessorTasklet], bool]]] = {
        TaskletState.START: _start,
        TaskletState.RESTORE: _restore,
        TaskletState.FINISH_RESTORE: _finish_restore,
        TaskletState.PROCESS_WATERMARK: _process_watermark,
        TaskletState.TRY_PROCESS: _try_process,
        TaskletState.PROCESS_INBOX: _process_inbox,
        TaskletState.COMPLETE_EDGE: _complete_edge,
        TaskletState.COMPLETE: _complete,
        TaskletState.SAVE_SNAPSHOT: _save_snapshot,
        TaskletState.PREPARE_COMMIT: _prepare_commit,
        TaskletState.EMIT_BARRIER: _emit_barrier,
        TaskletState.COMMIT_IN_PROCESS: _commit,
        TaskletState.COMMIT_IN_COMPLETE: _commit,
        TaskletState.AWAIT_PHASE_2: _await_phase2,
        TaskletState.COMMIT_AT_END: _commit,
        TaskletState.EMIT_DONE: _emit_done,
        TaskletState.CLOSE: _close,
        TaskletState.END: _end,
    }


_STARTING = frozenset({TaskletState.START, TaskletState.RESTORE, TaskletState.FINISH_RESTORE})

_LOOP = frozenset(
    {TaskletState.PROCESS_WATERMARK, TaskletState.TRY_PROCESS, TaskletState.PROCESS_INBOX}
)

_AFTER_COMMIT = {
    TaskletState.COMMIT_IN_PROCESS: TaskletState.PROCESS_INBOX,
    TaskletState.COMMIT_IN_COMPLETE: TaskletState.COMPLETE,
    TaskletState.COMMIT_AT_END: TaskletState.EMIT_DONE,
}

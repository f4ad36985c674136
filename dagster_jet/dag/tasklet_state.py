"""The states of a processor tasklet and the legal transitions between them.

::

    START ─► RESTORE ─► FINISH_RESTORE ─┐
      └────────────────────────────────►│
      ┌─────────────────────────────────▼
      │  PROCESS_WATERMARK ─► TRY_PROCESS ─► PROCESS_INBOX ─┬─► PROCESS_WATERMARK
      │                                                     ├─► COMPLETE_EDGE
      │                                                     ├─► SAVE_SNAPSHOT
      │                                                     ├─► COMMIT_IN_PROCESS
      │                                                     └─► COMPLETE
      │  COMPLETE ─┬─► SAVE_SNAPSHOT ─► PREPARE_COMMIT ─► EMIT_BARRIER ─┬─► (back to processing)
      │            ├─► COMMIT_IN_COMPLETE ─► COMPLETE                   └─► AWAIT_PHASE_2
      │            ├─► AWAIT_PHASE_2 ─► COMMIT_AT_END ─► EMIT_DONE
      │            └─► EMIT_DONE ─► CLOSE ─► END

Source: Hazelcast Jet `ProcessorState` and `ProcessorTasklet`.
"""

from __future__ import annotations

from enum import Enum


class TaskletState(Enum):
    """The next action of a tasklet. Any state may also change to CLOSE when the execution is
    cancelled or has failed."""

    START = "start"
    """`init` has not been called."""
    RESTORE = "restore"
    """Saved entries are passed to `restore_from_snapshot`."""
    FINISH_RESTORE = "finish restore"
    """`finish_snapshot_restore` is called until it returns True."""
    PROCESS_WATERMARK = "process watermark"
    """A coalesced watermark is passed to `try_process_watermark`; IDLE is only forwarded."""
    TRY_PROCESS = "try process"
    """`try_process` is called until it returns True; phase 2 waits for it."""
    PROCESS_INBOX = "process inbox"
    """The inbox is filled if it is empty, and passed to `process`."""
    COMPLETE_EDGE = "complete edge"
    """`complete_edge` is called until it returns True."""
    COMPLETE = "complete"
    """No input is left: `complete` is called until True. Sources start here."""
    SAVE_SNAPSHOT = "save snapshot"
    """Phase 1: `save_to_snapshot` is called until it returns True."""
    PREPARE_COMMIT = "prepare commit"
    """Phase 1: `snapshot_commit_prepare` is called until True; skipped for exports."""
    EMIT_BARRIER = "emit barrier"
    """End of phase 1 for this tasklet: the barrier is sent on all edges and to the snapshot."""
    COMMIT_IN_PROCESS = "commit in process"
    """Phase 2: `snapshot_commit_finish` between two calls of `process`."""
    COMMIT_IN_COMPLETE = "commit in complete"
    """Phase 2: `snapshot_commit_finish` between two calls of `complete`."""
    AWAIT_PHASE_2 = "await phase 2"
    """All is done except for the decision about a snapshot; nothing is read or emitted."""
    COMMIT_AT_END = "commit at end"
    """Phase 2: `snapshot_commit_finish` after `complete` returned True or a terminal barrier."""
    EMIT_DONE = "emit done"
    """DONE is sent on all edges and to the snapshot."""
    CLOSE = "close"
    """`close` is called."""
    END = "end"
    """No callback is called any more."""


_PROCESSING = frozenset({TaskletState.PROCESS_WATERMARK, TaskletState.COMPLETE})
"""States in which a tasklet continues after an interruption: with inputs left, and without."""

LEGAL_MOVES: dict[TaskletState, frozenset[TaskletState]] = {
    TaskletState.START: _PROCESSING | {TaskletState.RESTORE, TaskletState.EMIT_DONE},
    TaskletState.RESTORE: frozenset({TaskletState.FINISH_RESTORE}),
    TaskletState.FINISH_RESTORE: _PROCESSING,
    TaskletState.PROCESS_WATERMARK: frozenset({TaskletState.TRY_PROCESS}),
    TaskletState.TRY_PROCESS: frozenset({TaskletState.PROCESS_INBOX}),
    TaskletState.PROCESS_INBOX: _PROCESSING
    | {TaskletState.COMPLETE_EDGE, TaskletState.SAVE_SNAPSHOT, TaskletState.COMMIT_IN_PROCESS},
    TaskletState.COMPLETE_EDGE: _PROCESSING,
    TaskletState.COMPLETE: frozenset(
        {
            TaskletState.SAVE_SNAPSHOT,
            TaskletState.COMMIT_IN_COMPLETE,
            TaskletState.AWAIT_PHASE_2,
            TaskletState.EMIT_DONE,
        }
    ),
    TaskletState.SAVE_SNAPSHOT: frozenset({TaskletState.PREPARE_COMMIT, TaskletState.EMIT_BARRIER}),
    TaskletState.PREPARE_COMMIT: frozenset({TaskletState.EMIT_BARRIER}),
    TaskletState.EMIT_BARRIER: _PROCESSING | {TaskletState.AWAIT_PHASE_2, TaskletState.EMIT_DONE},
    TaskletState.COMMIT_IN_PROCESS: frozenset({TaskletState.PROCESS_INBOX}),
    TaskletState.COMMIT_IN_COMPLETE: frozenset({TaskletState.COMPLETE}),
    TaskletState.AWAIT_PHASE_2: frozenset({TaskletState.COMMIT_AT_END}),
    TaskletState.COMMIT_AT_END: frozenset({TaskletState.EMIT_DONE}),
    TaskletState.EMIT_DONE: frozenset({TaskletState.CLOSE}),
    TaskletState.CLOSE: frozenset({TaskletState.END}),
    TaskletState.END: frozenset(),
}

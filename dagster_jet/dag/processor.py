"""The contract between the runtime and a processor: one instance of one vertex.

Order of calls::

    init
    restore_from_snapshot*  finish_snapshot_restore        only if a snapshot is restored
    ( try_process_watermark | try_process | process )*     per inbound edge, then complete_edge
    complete*                                              sources: from the start
    close                                                  also after a failure

In between, for each snapshot: `save_to_snapshot`, `snapshot_commit_prepare`, then the barrier is
sent, processing continues, and later `snapshot_commit_finish` is called. A runtime may also end an
instance after any barrier and continue with a new one: the new instance then learns the decision in
its restore.

Every callback except `init` and `close` returns True (done) or False (call it again, and nothing
else instead). Any other result, also a missing ``return``, is an error that names the processor. A
processor is called by one thread at a time, not always the same one.

Source: Hazelcast Jet `Processor` and `AbstractProcessor`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.core.job_context import Metrics, Parameters
from dagster_jet.dag.inbox import Inbox
from dagster_jet.dag.items import Watermark
from dagster_jet.dag.outbox import ContractError, Outbox


@dataclass(frozen=True)
class ProcessorContext:
    """Identity of a processor instance, and the guarantee expected from it."""

    vertex: str
    index: int = 0
    """0-based, among all instances of the vertex on all machines."""
    total_parallelism: int = 1
    """Number of instances of the vertex. It may differ from the last execution's."""
    guarantee: Guarantee = Guarantee.NONE
    job: str = "job"
    fencing_token: int = 0
    """Increases with every later start of the vertex, also in another process. A transaction
    carries the token of its start; a restore rolls back unknown transactions with a *smaller*
    token. Those with an equal token belong to another attempt of the same work, which may be the
    valid one, and those with a greater token to a successor."""
    parameters: Parameters = field(default_factory=Parameters, compare=False)
    """Values of `JobConfig.parameters`."""
    metrics: Metrics = field(default_factory=Metrics, compare=False)
    """Counters of its own, which count as rows do; see `dagster_jet.job_context`."""

    @property
    def logger(self) -> logging.Logger:
        return logging.getLogger(f"dagster_jet.processor.{self.vertex}.{self.index}")


class Processor:
    """Base of every processor; the default callbacks are correct if there is nothing to do.

    A cooperative processor (the default) shares its thread with others: a call returns within about
    a millisecond, never blocks, and returns as soon as the outbox refuses.
    """

    outbox: Outbox
    context: ProcessorContext

    @property
    def is_cooperative(self) -> bool:
        """Constant per instance. False: the processor may block, and gets its own thread.

        Even then a call should return about once a second, because it cannot be interrupted. At the
        end of the job a processor that does not return is logged and its thread abandoned.
        """
        return True

    # --- start ----------------------------------------------------------------------------------

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        """Called once, before all others; may block. Overrides must call ``super().init()``.

        After a crash here: nothing has happened yet; `close` is called.
        """
        self.outbox, self.context = outbox, context

    def restore_from_snapshot(self, inbox: Inbox) -> bool:
        """Restores `SnapshotEntry` items (key, value) of a snapshot.

        When: after `init`, while there are entries, with a non-empty inbox. No other callback comes
        before all entries are delivered.
        Obligations: accept entries saved at any parallelism. Entries whose key it would not own as
        a source (`BroadcastKey`) come to every instance. Skip ids of transactions that the resource
        does not know (any more). Commit its own transactions, here or when the restore is finished;
        a concurrent commit by another instance must do no harm. It may emit. True and False have
        the same meaning as in `process`.
        After a crash here: the same snapshot is restored again.
        """
        raise ContractError(
            f"was given {len(inbox)} saved entries but does not implement restore_from_snapshot().",
            "Implement it, or save nothing.",
        )

    def finish_snapshot_restore(self) -> bool:
        """Called after all entries were delivered: until True, only if a snapshot is restored.

        Rolls back transactions that were prepared and are in no snapshot; see
        `ProcessorContext.fencing_token`.
        """
        return True

    # --- processing -----------------------------------------------------------------------------

    def try_process(self) -> bool:
        """Does work without input, such as timers.

        When: repeatedly while the inbox is empty, after the restore; in `apply_processor` in every
        epoch, at least once a second even if nothing arrives. False: called again before anything
        else, also before phase 2 of a snapshot.
        """
        return True

    def try_process_watermark(self, watermark: Watermark) -> bool:
        """Receives a watermark that has come on all inputs; must emit it after its own results.

        When: the inbox is empty. Watermarks strictly increase within one execution. After a restart
        they may begin below the watermark of the restored state (at-least-once, or an idle source
        partition). False: called again with the same watermark.
        """
        return self.outbox.offer(watermark)

    def process(self, ordinal: int, inbox: Inbox) -> bool:
        """Processes items of one inbound edge.

        When: the inbox has items of the edge `ordinal`. It must remove an item only when it is done
        with it, or keep the drained items.

        Returns:
            True: nothing is pending. Items left in the inbox come again, without new ones.
            False: something is pending; called again with the same inbox, even if that is empty by
            now. Only `snapshot_commit_finish` may be called in between.
        """
        raise ContractError(
            f"was given {len(inbox)} items of edge {ordinal} but does not implement process().",
            "Implement it, or process_item() of an ItemProcessor.",
        )

    def complete_edge(self, ordinal: int) -> bool:
        """Called when the edge `ordinal` is exhausted.

        When: once per edge, until True. After a restart an edge that had ended at the snapshot ends
        again at once: a processor that emits here must save that it has, or it emits twice.
        """
        return True

    def complete(self) -> bool:
        """Called when all inputs are exhausted: emit the rest. Sources do all their work here.

        When: until it returns True. A snapshot may be taken between two calls, but only if no offer
        is unfinished. After True nothing is saved any more; a pending phase 2 still comes.
        """
        return True

    # --- snapshots ------------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        """Phase 1: saves the state as of the barrier, with `Outbox.offer_to_snapshot`.

        When: the barrier has come on all inputs and the inbox is empty, or between two calls of
        `complete`. Until True. Normal items may be emitted, too: they precede the barrier.
        After a crash here: the snapshot before this one is restored.
        """
        return True

    def snapshot_commit_prepare(self) -> bool:
        """Phase 1: promises that output up to the barrier can be committed.

        When: directly after `save_to_snapshot` returned True, until True; not for exports. It may
        save (the ids of transactions). It must be re-entrant: after a refusal it continues. An id
        must be unique to the instance: repeated work is prepared again under other ids.
        After a crash here: transactions that were prepared and are in no snapshot are rolled back
        at the restart, found by enumeration or by computable ids.
        """
        return True

    def snapshot_commit_finish(self, *, success: bool) -> bool:
        """Phase 2: the snapshot was decided.

        When: some time after the barrier was sent, also with items in the inbox and after
        `complete` returned True; until True, without other calls in between. Once for each
        prepared snapshot of a living execution. It **must not emit**.

        Args:
            success: True: commit all prepared output. False: the snapshot was discarded; keep the
                prepared output and promise it again with the next snapshot.

        After a crash here: the snapshot counts; `restore_from_snapshot` gets the ids and commits.
        """
        return True

    # --- end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """The last call, also after a failure and possibly without `init`; may block.

        It must not commit or roll back prepared output: the restart decides. Errors are logged.
        """


class ItemProcessor(Processor):
    """A processor that handles one item at a time."""

    def process(self, ordinal: int, inbox: Inbox) -> bool:
        while inbox:
            result: object = self.process_item(ordinal, inbox.peek())
            if result is False:
                return False
            if result is not True:
                raise ContractError(
                    f"process_item() returned {result!r}.",
                    "Return True when done with the item, or False to get it again.",
                )
            inbox.remove()
        return True

    def process_item(self, ordinal: int, item: object) -> bool:
        """Processes one item. True: done. False: the item comes again, before any other."""
        raise NotImplementedError(f"{type(self).__name__} must implement process_item()")

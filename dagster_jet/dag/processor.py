"""The contract between the runtime and a processor: one instance of one vertex.

Order of calls, as a story::

    init
    restore_from_snapshot*  finish_snapshot_restore        only if a snapshot is restored
    ( try_process_watermark | try_process | process )*     per inbound edge, then complete_edge
    complete*                                              sources: from the start
    close                                                  also after a failure

and for each snapshot, in between: `save_to_snapshot`, `snapshot_commit_prepare`, the barrier goes
out, processing goes on, and later `snapshot_commit_finish`. A runtime may also end an instance
behind any barrier and go on with a new one: then the decision meets the new one, in its restore.

Every callback but `init` and `close` returns True (done) or False (call me again, nothing else
instead); anything else, also a forgotten ``return``, is an error that names the processor. One
thread at a time calls a processor, not always the same one.

Source: Hazelcast Jet `Processor` and `AbstractProcessor`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.dag.inbox import Inbox
from dagster_jet.dag.items import Watermark
from dagster_jet.dag.outbox import ContractError, Outbox


@dataclass(frozen=True)
class ProcessorContext:
    """Who a processor is among its like, and what it is expected to guarantee."""

    vertex: str
    index: int = 0
    """0-based, among all instances of the vertex, on whatever machine."""
    total_parallelism: int = 1
    """Instances of the vertex. It may differ from the last execution's."""
    guarantee: Guarantee = Guarantee.NONE
    job: str = "job"
    fencing_token: int = 0
    """Greater for every later start of the vertex, also in another process. A transaction carries
    the one under which it was begun; who restores rolls back the unknown ones with a *smaller* one.
    Those with its own belong to another attempt of the same work, which may be the one that
    counts, and those with a greater one to a successor."""

    @property
    def logger(self) -> logging.Logger:
        return logging.getLogger(f"dagster_jet.processor.{self.vertex}.{self.index}")


class Processor:
    """Base of every processor; each callback here does what is right when there is nothing to do.

    A cooperative processor (the default) shares its thread with others: it returns within about a
    millisecond, never blocks, and returns as soon as the outbox refuses.
    """

    outbox: Outbox
    context: ProcessorContext

    @property
    def is_cooperative(self) -> bool:
        """Constant per instance. False: the processor may block, and gets a thread of its own.

        Even then a call should return about once a second: nothing else can end it. At the end of
        the job, one that does not is named in the log and its thread is left behind.
        """
        return True

    # --- start ----------------------------------------------------------------------------------

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        """Called once, before all others; it may block. Call ``super().init()`` if you override it.

        After a crash here: nothing has happened yet; `close` is called.
        """
        self.outbox, self.context = outbox, context

    def restore_from_snapshot(self, inbox: Inbox) -> bool:
        """Takes back `SnapshotEntry` items (key, value) of the snapshot that is restored.

        When: after `init`, while there are entries, with a non-empty inbox. No other callback comes
        before all entries are delivered.
        It owes: to take entries of any earlier parallelism; entries whose key it would not own as a
        source (`BroadcastKey`) come to every instance; ids of transactions that the resource does
        not know (any more) are skipped; its own are committed, here or when the restore is
        finished, and no harm is done if another instance commits them at the same time. It may
        emit. True and False mean the same as in `process`.
        After a crash here: the same snapshot is restored again.
        """
        raise ContractError(
            f"was given {len(inbox)} saved entries but does not implement restore_from_snapshot().",
            "Implement it, or save nothing.",
        )

    def finish_snapshot_restore(self) -> bool:
        """All entries were delivered. When: once, until True, only if a snapshot is restored.

        The place to roll back what was prepared and is in no snapshot; see
        `ProcessorContext.fencing_token`.
        """
        return True

    # --- processing -----------------------------------------------------------------------------

    def try_process(self) -> bool:
        """Work that no input asks for, such as timers.

        When: again and again while the inbox is empty, after the restore; in `apply_processor` in
        every epoch, of which there is one every second even if nothing arrives. False: called
        again before anything else, also before phase 2 of a snapshot.
        """
        return True

    def try_process_watermark(self, watermark: Watermark) -> bool:
        """A watermark has come on all inputs. It owes: to emit it, after what follows from it.

        When: the inbox is empty; strictly increasing within one execution, but after a restart it
        may begin below what the restored state has seen (at-least-once, or a source partition that
        was idle). False: called again with the same watermark.
        """
        return self.outbox.offer(watermark)

    def process(self, ordinal: int, inbox: Inbox) -> bool:
        """Processes items of one inbound edge.

        When: the inbox has items of the edge `ordinal`. It owes: to remove an item only when it is
        done with it, or to hold on to what it has drained.

        Returns:
            True: nothing is pending. Items left in the inbox come again, without new ones.
            False: something is pending; called again with the same inbox, even if that is empty by
            now. Between the two only `snapshot_commit_finish` may come.
        """
        raise ContractError(
            f"was given {len(inbox)} items of edge {ordinal} but does not implement process().",
            "Implement it, or process_item() of an ItemProcessor.",
        )

    def complete_edge(self, ordinal: int) -> bool:
        """The edge `ordinal` is exhausted.

        When: once per edge, until True; and again after a restart, where an edge that had ended at
        the snapshot ends again at once. Who emits here saves that it has, or emits it twice.
        """
        return True

    def complete(self) -> bool:
        """All inputs are exhausted: emit what is left. A source lives here from the start.

        When: until it returns True. Between two calls a snapshot may be taken, but only when no
        offer is unfinished. After True nothing is saved any more; what an unfinished phase 2 owes
        still comes.
        """
        return True

    # --- snapshots ------------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        """Phase 1: saves the state as of the barrier, with `Outbox.offer_to_snapshot`.

        When: the barrier has come on all inputs and the inbox is empty; or between two calls of
        `complete`. Until True. Normal items may be emitted too: they precede the barrier.
        After a crash here: the snapshot before this one is restored.
        """
        return True

    def snapshot_commit_prepare(self) -> bool:
        """Phase 1: promises that what was written until the barrier can be committed.

        When: directly after `save_to_snapshot` returned True, until True; not for exports. It may
        save (the ids of transactions). It must be re-entrant: after a refusal it goes on. An id
        is unique to the instance: work that is tried again is prepared again, under other ids.
        After a crash here: whatever was prepared and is in no snapshot is rolled back at the
        restart, found by enumeration or by ids that can be computed.
        """
        return True

    def snapshot_commit_finish(self, *, success: bool) -> bool:
        """Phase 2: the snapshot was decided.

        When: some time after the barrier went out, also with items in the inbox and after
        `complete` returned True; until True, and nothing else is called meanwhile. Once for each
        prepared snapshot of a living execution. It **must not emit**.

        Args:
            success: True: commit all that is prepared. False: the snapshot was discarded; keep what
                is prepared and promise it again with the next one.

        After a crash here: the snapshot counts; `restore_from_snapshot` gets the ids and commits.
        """
        return True

    # --- end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """The last call, also after a failure and possibly without `init`; it may block.

        It must neither commit nor roll back what is prepared: the restart decides about that.
        Errors are logged only.
        """


class ItemProcessor(Processor):
    """A processor that looks at one item at a time."""

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
        """Processes one item. True: done with it. False: it comes again, before any other."""
        raise NotImplementedError(f"{type(self).__name__} must implement process_item()")

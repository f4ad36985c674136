"""One tasklet on a bench: queues that a test fills by hand, and what came out."""

from collections.abc import Sequence
from typing import Any

from dagster_jet.dag import (
    DONE,
    IDLE,
    BoundedQueue,
    CallOutcome,
    InboundEdge,
    Inbox,
    ItemProcessor,
    Outbox,
    Processor,
    ProcessorCalls,
    ProcessorContext,
    ProcessorInput,
    ProcessorTasklet,
    SnapshotContext,
    SnapshotEntry,
)


class Sink:
    """An outbound stream that takes `room` items, then refuses."""

    def __init__(self, room: int = 10**6) -> None:
        self.items: list = []
        self.room = room

    def offer(self, item) -> bool:
        if self.room <= 0:
            return False
        self.room -= 1
        self.items.append(item)
        return True


class Echo(ItemProcessor):
    """Emits every item and remembers it; saves what it remembers."""

    def __init__(self) -> None:
        self.seen: list = []
        self.calls: list = []
        self._saved = 0

    def process_item(self, ordinal, item):
        if not self.outbox.offer(item):
            return False
        self.seen.append(item)
        return True

    def save_to_snapshot(self):
        while self._saved < len(self.seen):
            if not self.outbox.offer_to_snapshot(self._saved, self.seen[self._saved]):
                return False
            self._saved += 1
        return True

    def snapshot_commit_finish(self, *, success):
        self.calls.append(("finish", success))
        return True

    def restore_from_snapshot(self, inbox: Inbox):
        for entry in inbox.drain():
            self.seen.append(entry.value)
        return True

    def close(self):
        self.calls.append("close")


class Rig:
    """Args: `shape` is the number of queues per inbound edge."""

    def __init__(
        self,
        processor: Processor | None = None,
        *,
        shape: Sequence[int] = (2,),
        exactly_once: bool = True,
        priorities: Sequence[int] | None = None,
        outputs: int = 1,
        room: int = 10**6,
        inbox_limit: int = 2048,
        restored=None,
        max_retention_ms=None,
    ) -> None:
        self.processor: Any = processor if processor is not None else Echo()
        self.edges = [[BoundedQueue() for _ in range(count)] for count in shape]
        self.queues = [queue for edge in self.edges for queue in edge]
        self.outputs = [Sink(room) for _ in range(outputs)]
        self.snapshot = Sink()
        self.snapshots = SnapshotContext()
        self.now_ms = 0
        priorities = priorities or [0] * len(shape)
        edges = [
            InboundEdge(
                ordinal,
                queues,
                exactly_once=exactly_once,
                priority=priorities[ordinal],
                max_retention_ms=max_retention_ms,
            )
            for ordinal, queues in enumerate(self.edges)
        ]
        self.input = ProcessorInput(edges, exactly_once=exactly_once)
        self.tasklet = ProcessorTasklet(
            ProcessorCalls(
                self.processor,
                Outbox(self.outputs, self.snapshot),
                ProcessorContext("echo", 0),
            ),
            self.input,
            self.snapshots,
            restored=restored,
            inbox_limit=inbox_limit,
            now_ms=lambda: self.now_ms,
        )

    @property
    def out(self) -> list:
        return self.outputs[0].items

    @property
    def saved(self) -> list:
        return [i.value if isinstance(i, SnapshotEntry) else i for i in self.snapshot.items]

    def put(self, queue: int, *items) -> "Rig":
        for item in items:
            assert self.queues[queue].offer(item)
        return self

    def run(self) -> CallOutcome:
        """Calls the tasklet until it makes no progress three times in a row."""
        idle, progress = 0, CallOutcome.MADE
        while idle < 3:
            progress = self.tasklet.call()
            idle = 0 if progress is CallOutcome.MADE else idle + 1
        return progress


__all__ = ["DONE", "IDLE", "Echo", "Rig", "Sink"]

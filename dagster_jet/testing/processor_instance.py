"""One processor under `verify_processor`: an outbox of capacity 1, every call checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dagster_jet.core.job_context import own_metrics, own_parameters
from dagster_jet.core.state_format import StateFormat
from dagster_jet.dag import (
    DONE,
    Guarantee,
    Inbox,
    Outbox,
    Partitioning,
    Processor,
    ProcessorCalls,
    ProcessorContext,
    SnapshotEntry,
    Watermark,
)
from dagster_jet.dag.calls import Callback
from dagster_jet.dag.outbox import ContractError
from dagster_jet.dag.saved_entry import SavedEntry
from dagster_jet.operators.user import saved_value

REPEATS_MAX = 100_000
"""Maximum number of calls of one callback that does not return True."""


class Bucket:
    """Holds one item until it is taken."""

    def __init__(self) -> None:
        self.items: list[object] = []

    def offer(self, item: object) -> bool:
        if self.items:
            return False
        self.items.append(item)
        return True

    def take(self) -> list[object]:
        items, self.items = self.items, []
        return items


class SnapshotBucket(Bucket):
    """Serialises entries at once, like a snapshot, to find those that cannot be serialised."""

    def __init__(self, partitioning: Partitioning, state_format: StateFormat) -> None:
        super().__init__()
        self._partitioning, self._state_format = partitioning, state_format

    def offer(self, item: object) -> bool:
        if self.items:
            return False
        assert isinstance(item, SnapshotEntry)
        if self._state_format is StateFormat.PLAIN:
            item = self._read_back(item)
        entry = SavedEntry.of(item, self._partitioning)
        entry.load()
        return super().offer(entry)

    def _read_back(self, entry: SnapshotEntry) -> SnapshotEntry:
        """The entry as a job on Spark restores it."""
        try:
            saved = [saved_value.save(part, self._state_format) for part in entry]
        except Exception as error:
            raise ContractError(
                f"saved an entry with key {entry.key!r} that cannot be serialised: {error}.",
                self._state_format.cure,
            ) from error
        return SnapshotEntry(*(saved_value.load(part, self._state_format) for part in saved))


class Instance:
    """A processor between its `init` and its `close`.

    Args:
        outputs: collects emitted items, one list per outbound edge.
        checks_progress: every call must consume, emit, save or return True.
        ends: False: `complete` may make no progress.
    """

    def __init__(
        self,
        processor: Processor,
        *,
        vertex: str,
        index: int,
        parallelism: int,
        guarantee: Guarantee,
        outputs: list[list[object]],
        partitioning: Partitioning,
        state_format: StateFormat,
        checks_progress: bool,
        ends: bool,
        clock: Callable[[], float],
        slow_call_s: float,
        on_slow_call: Callable[[Callback, float], None],
        fencing_token: int = 0,
    ) -> None:
        self._outputs = outputs
        self._buckets = [Bucket() for _ in outputs]
        self._snapshot = SnapshotBucket(partitioning, state_format)
        self._checks_progress = checks_progress
        self._ends = ends
        self._outbox = Outbox(self._buckets, self._snapshot)
        context = ProcessorContext(
            *(vertex, index, parallelism, guarantee),
            fencing_token=fencing_token,
            parameters=own_parameters(),
            metrics=own_metrics(),
        )
        self.calls = ProcessorCalls(
            processor,
            self._outbox,
            context,
            clock=clock,
            slow_call_s=slow_call_s,
            on_slow_call=on_slow_call,
        )
        self._saved: list[SavedEntry] = []
        self.calls.init()
        self.is_completed = False

    # --- callbacks ------------------------------------------------------------------------------

    def restore(self, entries: Iterable[SavedEntry]) -> None:
        inbox = Inbox(entry.load() for entry in entries)
        pending = False
        while inbox or pending:
            pending = not self._once(Callback.RESTORE, lambda: self.calls.restore(inbox), inbox)
        self._until_true(Callback.FINISH_RESTORE, self.calls.finish_restore)

    def try_process(self) -> None:
        self._until_true(Callback.TRY_PROCESS, self.calls.try_process)

    def process(self, ordinal: int, inbox: Inbox) -> None:
        pending = False
        while inbox or pending:
            call = self._once(Callback.PROCESS, lambda: self.calls.process(ordinal, inbox), inbox)
            pending = not call

    def watermark(self, watermark: Watermark) -> None:
        self._until_true(Callback.WATERMARK, lambda: self.calls.watermark(watermark))

    def forward(self, item: object) -> None:
        """Forwards an item that the processor must not see, like the runtime."""
        assert item is not DONE
        for output in self._outputs:
            output.append(item)

    def complete_edge(self, ordinal: int) -> None:
        self._until_true(Callback.COMPLETE_EDGE, lambda: self.calls.complete_edge(ordinal))

    def complete_once(self) -> bool:
        """Calls `complete` once; True if it emitted an item or is completed."""
        before = self._collected()
        self.is_completed = self._once(Callback.COMPLETE, self.calls.complete)
        # As the runtime does before a snapshot: takes the refused item, and no other.
        self._outbox.block()
        while not self.is_completed and self._outbox.has_unfinished_item:
            self.is_completed = self._once(Callback.COMPLETE, self.calls.complete)
        self._outbox.unblock()
        return self.is_completed or self._collected() > before

    def snapshot(self) -> list[SavedEntry]:
        """Phase 1: saves and prepares."""
        self._saved = []
        self._outbox.begin_snapshot()
        self._until_true(Callback.SAVE, self.calls.save)
        self._until_true(Callback.PREPARE, self.calls.prepare)
        return self._saved

    def commit(self, *, success: bool) -> None:
        self._until_true(Callback.COMMIT, lambda: self.calls.commit(success=success))

    # --- inside ---------------------------------------------------------------------------------

    def _until_true(self, callback: Callback, call: Callable[[], bool]) -> None:
        for _ in range(REPEATS_MAX):
            if self._once(callback, call):
                return
        raise AssertionError(
            str(self.calls.error(callback, f"never returned True in {REPEATS_MAX} calls."))
        )

    def _once(
        self, callback: Callback, call: Callable[[], bool], inbox: Inbox | None = None
    ) -> bool:
        before = self._collected(), 0 if inbox is None else len(inbox)
        done = call()
        if not done and self._outbox.has_unfinished_item:
            # The outbox refused an item: the processor must handle a call with a full outbox.
            done = call()
        self._empty()
        after = self._collected(), 0 if inbox is None else len(inbox)
        moved = done or after != before
        if callback is Callback.PROCESS and inbox and done:
            moved = after != before  # True with items left: the same inbox again
        waits = callback is Callback.COMPLETE and not self._ends
        if self._checks_progress and not moved and not waits:
            raise AssertionError(
                str(
                    self.calls.error(
                        callback,
                        "made no progress: it consumed, emitted and saved nothing"
                        + (f" of {list(inbox)!r}." if inbox else "."),
                        "Consume or emit something in each call while the outbox has room, or"
                        " return True (assert_progress=False for processors that wait).",
                    )
                )
            )
        return done

    def _collected(self) -> int:
        return sum(len(output) for output in self._outputs) + len(self._saved)

    def _empty(self) -> None:
        for bucket, output in zip(self._buckets, self._outputs, strict=True):
            output.extend(bucket.take())
        for entry in self._snapshot.take():
            assert isinstance(entry, SavedEntry)
            self._saved.append(entry)

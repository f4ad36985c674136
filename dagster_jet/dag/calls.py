"""Calls a processor's callbacks and enforces its contract; used by every runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from dagster_jet.dag.inbox import Inbox
from dagster_jet.dag.items import Watermark
from dagster_jet.dag.outbox import ContractError, Outbox
from dagster_jet.dag.processor import Processor, ProcessorContext
from dagster_jet.errors import ProcessorError


@dataclass(frozen=True)
class _Rights:
    may_emit: bool
    may_save: bool


class Callback(Enum):
    """The callbacks, and whether each may emit items and save entries."""

    INIT = ("init", False, False)
    RESTORE = ("restore_from_snapshot", True, False)
    FINISH_RESTORE = ("finish_snapshot_restore", True, False)
    TRY_PROCESS = ("try_process", True, False)
    WATERMARK = ("try_process_watermark", True, False)
    PROCESS = ("process", True, False)
    COMPLETE_EDGE = ("complete_edge", True, False)
    COMPLETE = ("complete", True, False)
    SAVE = ("save_to_snapshot", True, True)
    PREPARE = ("snapshot_commit_prepare", True, True)
    COMMIT = ("snapshot_commit_finish", False, False)
    CLOSE = ("close", False, False)

    def __init__(self, method: str, may_emit: bool, may_save: bool) -> None:
        self.method = method
        self.rights = _Rights(may_emit, may_save)


SlowCall = Callable[[Callback, float], None]
"""Called after a slow cooperative call, with the callback and the seconds."""


class ProcessorCalls:
    """Calls one processor and enforces its contract.

    Args:
        processor: not yet initialised.
        outbox: the outbox that the processor will receive.
        context: the identity of the processor.
        clock: a monotonic clock in seconds; None: calls are not timed.
        slow_call_s: longer cooperative calls are reported, in seconds.
        on_slow_call: called for them.
    """

    def __init__(
        self,
        processor: Processor,
        outbox: Outbox,
        context: ProcessorContext,
        *,
        clock: Callable[[], float] | None = None,
        slow_call_s: float = 0.01,
        on_slow_call: SlowCall | None = None,
    ) -> None:
        self.processor, self.outbox, self.context = processor, outbox, context
        self._clock, self._slow_call_s, self._on_slow_call = clock, slow_call_s, on_slow_call
        self.is_cooperative = self._asked_whether_cooperative()
        self._restores = (
            type(processor).restore_from_snapshot is not Processor.restore_from_snapshot
        )

    def init(self) -> None:
        self._raw(Callback.INIT, lambda: self.processor.init(self.outbox, self.context))

    def restore(self, inbox: Inbox) -> bool:
        return self._call(Callback.RESTORE, lambda: self.processor.restore_from_snapshot(inbox))

    def finish_restore(self) -> bool:
        return self._call(Callback.FINISH_RESTORE, self.processor.finish_snapshot_restore)

    def try_process(self) -> bool:
        return self._call(Callback.TRY_PROCESS, self.processor.try_process)

    def watermark(self, watermark: Watermark) -> bool:
        return self._call(
            Callback.WATERMARK, lambda: self.processor.try_process_watermark(watermark)
        )

    def process(self, ordinal: int, inbox: Inbox) -> bool:
        return self._call(Callback.PROCESS, lambda: self.processor.process(ordinal, inbox))

    def complete_edge(self, ordinal: int) -> bool:
        return self._call(Callback.COMPLETE_EDGE, lambda: self.processor.complete_edge(ordinal))

    def complete(self) -> bool:
        return self._call(Callback.COMPLETE, self.processor.complete)

    def save(self) -> bool:
        return self._call(Callback.SAVE, self.processor.save_to_snapshot)

    def prepare(self) -> bool:
        return self._call(Callback.PREPARE, self.processor.snapshot_commit_prepare)

    def commit(self, *, success: bool) -> bool:
        return self._call(
            Callback.COMMIT, lambda: self.processor.snapshot_commit_finish(success=success)
        )

    def close(self) -> None:
        """Call `close`; never raises, because a more important error may be reported."""
        try:
            self._raw(Callback.CLOSE, self.processor.close)
        except ProcessorError:
            self.context.logger.warning("close() failed", exc_info=True)

    def error(self, callback: Callback, message: str, cure: str | None = None) -> ProcessorError:
        """Return an error about this processor, for its runtime."""
        return ProcessorError(
            message,
            vertex=self.context.vertex,
            index=self.context.index,
            callback=f"{callback.method}()",
            cure=cure,
        )

    def _call(self, callback: Callback, call: Callable[[], object]) -> bool:
        result = self._raw(callback, call)
        if result is not True and result is not False:
            what = "nothing" if result is None else repr(result)
            raise self.error(
                callback,
                f"returned {what}.",
                "Return True when done, or False to be called again (is a return missing?).",
            )
        # Phase 2 may come between two calls that offer the same item.
        owes = self.outbox.has_unfinished_item or self.outbox.has_refused
        if result and callback.rights.may_emit and owes:
            raise self.error(
                callback,
                "returned True although the outbox had refused an item, which would be lost.",
                "When offer() returns False, return False and offer the same item again.",
            )
        return result

    def _raw(self, callback: Callback, call: Callable[[], object]) -> object:
        self._allow(callback)
        started = self._clock() if self._clock else 0.0
        try:
            return call()
        except ContractError as error:
            raise self.error(callback, error.message, error.cure) from error
        except (Exception, SystemExit) as error:
            raise self._raised(callback.method, error) from error
        finally:
            if self._clock and self.is_cooperative and self._on_slow_call:
                took = self._clock() - started
                if took > self._slow_call_s and callback not in (Callback.INIT, Callback.CLOSE):
                    self._on_slow_call(callback, took)

    def _raised(self, method: str, error: BaseException) -> ProcessorError:
        context = self.context
        return ProcessorError.of(
            error, vertex=context.vertex, index=context.index, callback=f"{method}()"
        )

    def _allow(self, callback: Callback) -> None:
        rights = callback.rights
        if rights.may_save and not self._restores:
            why_not = "that it could not take back: it does not implement restore_from_snapshot()"
            self.outbox.begin_call(
                may_emit=rights.may_emit,
                may_save=False,
                why_not=why_not,
                cure="Implement it, or save nothing.",
            )
            return
        self.outbox.begin_call(
            may_emit=rights.may_emit,
            may_save=rights.may_save,
            why_not=f"in {callback.method}()",
        )

    def _asked_whether_cooperative(self) -> bool:
        """Return `is_cooperative`, also of processors that define it as a method."""
        try:
            value: object = self.processor.is_cooperative
            return bool(value() if callable(value) else value)
        except Exception as error:
            raise self._raised("is_cooperative", error) from error

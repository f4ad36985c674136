"""Runs one mode of `verify_processor`: feeds the instances, restarts them, compares output."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial

from dagster_jet.core.state_format import StateFormat
from dagster_jet.dag import (
    IDLE,
    Guarantee,
    Inbox,
    Partitioning,
    Processor,
    Watermark,
    new_processor,
)
from dagster_jet.dag.calls import Callback
from dagster_jet.dag.edge import KeyFunction, Splitter
from dagster_jet.dag.items import Signal
from dagster_jet.dag.saved_entry import SavedEntry, redistribute
from dagster_jet.dag.watermark import Emission, WatermarkCoalescer
from dagster_jet.testing.processor_instance import REPEATS_MAX, Instance
from dagster_jet.testing.processor_modes import Mode

_logger = logging.getLogger(__name__)

_QUIET_CALLS = 10
"""Calls after the expected output of an endless source, which must emit nothing more."""


@dataclass(frozen=True)
class Check:
    """Parameters of a check, the same in every mode."""

    supplier: Callable[[], Processor]
    inputs: list[list[object]]
    expected: list[list[object]] | None
    ordered: bool
    unpack: Callable[[object], Iterable[object]]
    key: KeyFunction | None
    split: Splitter | None
    ends: bool
    assert_progress: bool
    guarantee: Guarantee
    partitioning: Partitioning
    state_format: StateFormat
    slow_call_s: float
    call_limit_s: float
    clock: Callable[[], float]


@dataclass
class Reading:
    """Reading position in the input."""

    edges: list[deque[object]]
    """Remaining items per edge."""
    turns: deque[int]
    """The open edges; the first is read next."""
    coalescer: WatermarkCoalescer
    ended: list[int]

    @classmethod
    def of(cls, inputs: list[list[object]]) -> Reading:
        turns = deque(range(len(inputs)))
        return cls(list(map(deque, inputs)), turns, WatermarkCoalescer(len(inputs)), [])

    def copy(self) -> Reading:
        """Returns a copy to return to later; items are shared."""
        edges = [edge.copy() for edge in self.edges]
        return Reading(edges, self.turns.copy(), deepcopy(self.coalescer), self.ended.copy())


@dataclass
class ProcessorRun:
    """One mode: the instances, their output, and the last snapshot."""

    check: Check
    mode: Mode
    reading: Reading = field(init=False)
    outputs: list[list[object]] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    starts: int = 0
    steps: int = 0
    snapshots: int = 0

    def run(self) -> None:
        self.reading = Reading.of(self.check.inputs)
        count = 1 if self.check.expected is None else len(self.check.expected)
        self.outputs = [[] for _ in range(count)]
        try:
            self._start(None)
            self._after_step(first=True)
            while self.reading.turns:
                self._step()
                self._after_step()
            self._complete()
        finally:
            for instance in self.instances:
                instance.calls.close()
        self._compare()

    # --- running --------------------------------------------------------------------------------

    def _start(self, saved: list[SavedEntry] | None) -> None:
        parallelism = self.mode.parallelisms[self.starts % len(self.mode.parallelisms)]
        self.starts += 1
        shares = redistribute(saved, parallelism) if saved is not None else None
        name = getattr(self.check.supplier, "__name__", "processor")
        made = [instance.calls.processor for instance in self.instances]  # from the last start
        self.instances = []
        for index in range(parallelism):
            processor = new_processor(self.check.supplier, name, index, others=made)
            made.append(processor)
            instance = Instance(
                processor,
                vertex=type(processor).__name__,
                index=index,
                parallelism=parallelism,
                guarantee=self.check.guarantee,
                outputs=self.outputs,
                partitioning=self.check.partitioning,
                state_format=self.check.state_format,
                checks_progress=self.check.assert_progress,
                ends=self.check.ends,
                clock=self.check.clock,
                slow_call_s=self.check.slow_call_s,
                on_slow_call=partial(self._slow, type(processor).__name__),
                fencing_token=self.starts,
            )
            self.instances.append(instance)
            if shares is not None:
                instance.restore(shares[index])
                for ordinal in self.reading.ended:  # as in the runtime: they end again, at once
                    instance.complete_edge(ordinal)

    def _step(self, *, is_behind_barrier: bool = False) -> None:
        """Reads the next edge once. Its end is not observed after a barrier not yet forwarded."""
        reading, coalescer = self.reading, self.reading.coalescer
        ordinal = reading.turns.popleft()
        for instance in self.instances:
            instance.try_process()
        items, in_band = self._next(reading.edges[ordinal])
        if items:
            coalescer.observe_event(ordinal)
            self._process(ordinal, items)
        self._forward(self._observe(coalescer, ordinal, in_band))
        self._forward(coalescer.check())
        if reading.edges[ordinal] or is_behind_barrier:
            reading.turns.append(ordinal)
            return
        # As in the runtime: first the watermark caused by the end, then complete_edge.
        self._forward(coalescer.observe_done(ordinal))
        for instance in self.instances:
            instance.complete_edge(ordinal)
        reading.ended.append(ordinal)
        self._forward(coalescer.check())

    def _forward(self, emission: Emission) -> None:
        for instance in self.instances if emission is not None else ():
            if isinstance(emission, int):
                instance.watermark(Watermark(emission))
            else:
                instance.forward(IDLE)

    def _next(self, edge: deque[object]) -> tuple[list[object], Watermark | Signal | None]:
        items: list[object] = []
        while edge and len(items) < self.mode.inbox_limit:
            item = edge[0]
            if item is IDLE or isinstance(item, Watermark):
                break
            items.append(edge.popleft())
        if edge and (edge[0] is IDLE or isinstance(edge[0], Watermark)):
            found = edge.popleft()
            assert isinstance(found, Watermark | Signal)
            return items, found
        return items, None

    def _process(self, ordinal: int, items: list[object]) -> None:
        count = len(self.instances)
        inboxes = [Inbox() for _ in range(count)]
        for item in items:
            for owner, part in self._parts(item, count):
                inboxes[owner].add(part)
        for instance, inbox in zip(self.instances, inboxes, strict=True):
            instance.process(ordinal, inbox)

    def _parts(self, item: object, count: int) -> Iterable[tuple[int, object]]:
        partitioning = self.check.partitioning
        if count == 1:
            return [(0, item)]
        if self.check.split is not None:
            parts = self.check.split(item, partitioning.partition_count)
            return [(partition % count, part) for partition, part in parts]
        assert self.check.key is not None
        return [(partitioning.owner_of(self.check.key(item), count), item)]

    def _observe(
        self, coalescer: WatermarkCoalescer, ordinal: int, found: Watermark | Signal | None
    ) -> Emission:
        if found is None:
            return None
        if isinstance(found, Watermark):
            return coalescer.observe_watermark(ordinal, found.timestamp_ms)
        return coalescer.observe_idle(ordinal)

    def _complete(self) -> None:
        quiet = calls = 0
        while True:
            waiting = [i for i in self.instances if not i.is_completed]
            if not waiting or quiet > _QUIET_CALLS:
                return
            if not self.check.ends and self._is_all_there():
                quiet += 1
            progress = False
            for instance in waiting:
                progress = instance.complete_once() or progress
            calls += 1
            if calls % 1000 == 0 and self._is_too_much():
                return  # endless if each restart emits the same again; the comparison reports it
            if calls > REPEATS_MAX:
                raise AssertionError(
                    f"complete() did not return True in {REPEATS_MAX} calls"
                    " (ends=False for endless sources)"
                )
            if progress and not any(i.is_completed for i in self.instances):
                self._after_step()

    def _after_step(self, *, first: bool = False) -> None:
        mode = self.mode
        self.steps += 0 if first else 1
        if not mode.snapshot_every or self.steps % mode.snapshot_every:
            return
        self.snapshots += 1
        success = not (mode.fails_every and self.snapshots % mode.fails_every == 0)
        restores = bool(mode.restore_every) and self.snapshots % mode.restore_every == 0
        if mode.restores_in_the_middle and not first:
            restores = self.steps == max(1, sum(map(len, self.check.inputs)) // 2)
        barrier, before = self.reading.copy(), list(map(len, self.outputs))
        for _ in range(mode.overtaking if restores else 0):
            if any(self.reading.edges):
                self._step(is_behind_barrier=True)
        after = list(map(len, self.outputs))
        saved = [entry for instance in self.instances for entry in instance.snapshot()]
        if mode.commits_before_restore or not restores:
            for instance in self.instances:
                instance.commit(success=success)
        if restores:
            for instance in self.instances:
                instance.calls.close()
            # Items after the barrier are read again; their output before the restart is dropped.
            self.reading = barrier
            for output, begin, end in zip(self.outputs, before, after, strict=True):
                del output[begin:end]
            self._start(saved)

    def _slow(self, name: str, callback: Callback, seconds: float) -> None:
        message = (
            f"{name}.{callback.method}() took {1000 * seconds:.1f} ms; a cooperative processor"
            " returns within about a millisecond: do less per call, or set is_cooperative to False"
        )
        if seconds > self.check.call_limit_s:
            raise AssertionError(message)
        _logger.warning("%s", message)

    # --- comparing ------------------------------------------------------------------------------

    def _is_all_there(self) -> bool:
        assert self.check.expected is not None
        return all(
            len(self._unpacked(out)) >= len(want)
            for out, want in zip(self.outputs, self.check.expected, strict=True)
        )

    def _is_too_much(self) -> bool:
        return self.check.expected is not None and any(
            len(_without_watermarks(self._unpacked(out))) > len(want)
            for out, want in zip(self.outputs, self.check.expected, strict=True)
        )

    def _unpacked(self, items: Iterable[object]) -> list[object]:
        rows: list[object] = []
        for item in items:
            if isinstance(item, Watermark) or item is IDLE:
                rows.append(item)
            else:
                rows.extend(self.check.unpack(item))
        return rows

    def _compare(self) -> None:
        if self.check.expected is None:
            return
        together = self.mode.parallelisms != (1,) or self.mode.overtaking > 0
        for ordinal, (out, want) in enumerate(zip(self.outputs, self.check.expected, strict=True)):
            actual, expected = self._unpacked(out), list(want)
            if together:
                actual, expected = _without_watermarks(actual), _without_watermarks(expected)
            missing, extra = _difference(expected, actual)
            if self.mode.overtaking and not missing:
                continue  # at least once
            if missing or extra or (self.check.ordered and not together and actual != expected):
                raise AssertionError(
                    f"outbound edge {ordinal}:\n"
                    f"  expected {expected!r}\n"
                    f"  got      {actual!r}\n"
                    f"  missing  {missing!r}\n"
                    f"  extra    {extra!r}"
                    + ("" if missing or extra else "\n  the order differs (ordered=False?)")
                )


def _without_watermarks(items: list[object]) -> list[object]:
    return [item for item in items if not isinstance(item, Watermark) and item is not IDLE]


def _difference(expected: list[object], actual: list[object]) -> tuple[list[object], list[object]]:
    extra, missing = list(actual), []
    for item in expected:
        try:
            extra.remove(item)
        except ValueError:
            missing.append(item)
    return missing, extra

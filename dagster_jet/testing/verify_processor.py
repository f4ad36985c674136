"""Runs a processor through snapshots, restarts and full outboxes, and compares its output.

Source: Hazelcast Jet `TestSupport`. Additions: `try_process`, prepares and both outcomes of phase
2, crashes before phase 2, IDLE, several edges with coalesced watermarks, and restarts with another
number of instances.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from dagster_jet.core.state_format import StateFormat
from dagster_jet.dag import Guarantee, Partitioning, Processor
from dagster_jet.dag.edge import KeyFunction, Splitter
from dagster_jet.dag.local.partitioner import partitioning as default_partitioning
from dagster_jet.errors import ProcessorError
from dagster_jet.testing.processor_modes import modes
from dagster_jet.testing.processor_run import Check, ProcessorRun

SLOW_CALL_S = 0.005
CALL_LIMIT_S = 5.0


def verify_processor(
    supplier: Callable[[], Processor],
    *,
    input: Sequence[object] = (),
    inputs: Sequence[Sequence[object]] | None = None,
    expect: Sequence[object] | None = None,
    expect_each: Sequence[Sequence[object]] | None = None,
    ordered: bool = True,
    unpack: Callable[[object], Iterable[object]] | None = None,
    key: KeyFunction | None = None,
    split: Splitter | None = None,
    parallelisms: Sequence[int] = (2, 1, 3),
    snapshots: bool = True,
    ends: bool = True,
    assert_progress: bool = True,
    guarantee: Guarantee | str = Guarantee.EXACTLY_ONCE,
    partitioning: Partitioning | None = None,
    state_format: Literal["plain", "pickle"] = "plain",
    slow_call_s: float = SLOW_CALL_S,
    call_limit_s: float = CALL_LIMIT_S,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Checks that a processor gives the same output however its input is split and interrupted.

    Every mode feeds the same input: item by item and at once, with a snapshot after every step and
    a new instance restored from every one, every second one, or none, with the crash before or
    after phase 2, and with discarded snapshots; edges that had ended end again at once. The outbox
    takes one item per edge; after each refusal the callback is called once more before there is
    room again. With `key` or `split`, several instances share the input, and each restore changes
    their number.

    In at-least-once, items and watermarks after a barrier are also processed before the state is
    saved, and are replayed after the restart; watermarks then go back. Their output before the
    crash is dropped, as if its receiver had lost it: every expected item must come at least once
    from the saved state and the replay. A replayed item may be counted twice, which changes a
    count: compare without it (`unpack`).

    Args:
        supplier: makes an instance; called once for each restart.
        input: items of inbound edge 0. Watermarks in it go to `try_process_watermark`; `IDLE` is
            forwarded, as by the runtime, and never seen by the processor.
        inputs: instead of `input`, items of each inbound edge; read in turns, watermarks coalesced.
        expect: expected output on outbound edge 0. None: the output is not compared.
        expect_each: instead of `expect`, expected output on each outbound edge.
        ordered: False: compare as multisets.
        unpack: splits an item into the parts to compare, such as a batch into its rows; watermarks
            are not split.
        key: key of an item, as on a partitioned edge. Instances then also run side by side; their
            outputs are compared as multisets without watermarks, because each one emits its own.
        split: instead of `key`, for items that hold many keys: `Edge.partitioned_by`.
        parallelisms: the numbers of instances, one after the other.
        snapshots: False: the processor is for jobs without a guarantee.
        ends: False: `complete` never returns True; it is called until the expected output has come,
            and then a few times more.
        assert_progress: False: for processors that wait for something outside.
        guarantee: value of `ProcessorContext.guarantee`; "at-least-once" also lets items overtake
            barriers.
        partitioning: of keys; default: the store's.
        state_format: format of saved entries, as in `apply_processor`.
        slow_call_s: cooperative calls that take longer are logged as a warning.
        call_limit_s: cooperative calls that take longer are an error.
        clock: seconds, monotonic.

    Raises:
        AssertionError: unexpected output, no progress, or a call over the limit; the message names
            the mode.
        ProcessorError: the processor broke its contract; it names callback and cure.

    Example:
        >>> from dagster_jet.dag import ItemProcessor
        >>> class Double(ItemProcessor):
        ...     def process_item(self, ordinal, item):
        ...         return self.outbox.offer(2 * item)
        >>> verify_processor(Double, input=[1, 2], expect=[2, 4])
    """
    if expect is not None and expect_each is not None:
        raise ValueError("give expect or expect_each, not both")
    if inputs is not None and input:
        raise ValueError("give input or inputs, not both")
    expected = [list(e) for e in expect_each] if expect_each is not None else None
    if expect is not None:
        expected = [list(expect)]
    if not ends and expected is None:
        raise ValueError("a processor that never ends needs expect, to know when to stop")
    check = Check(
        supplier=supplier,
        inputs=[list(i) for i in inputs] if inputs is not None else [list(input)] if input else [],
        expected=expected,
        ordered=ordered,
        unpack=unpack or (lambda item: [item]),
        key=key,
        split=split,
        ends=ends,
        assert_progress=assert_progress,
        guarantee=Guarantee(guarantee),
        partitioning=partitioning or default_partitioning(),
        state_format=StateFormat(state_format),
        slow_call_s=slow_call_s,
        call_limit_s=call_limit_s,
        clock=clock,
    )
    several = tuple(parallelisms) if key is not None or split is not None else None
    overtaking = check.guarantee is Guarantee.AT_LEAST_ONCE
    for mode in modes(snapshots=snapshots, overtaking=overtaking, parallelisms=several):
        try:
            ProcessorRun(check, mode).run()
        except ProcessorError as error:
            error.args = (f"{error} (mode: {mode.name})",)
            raise
        except AssertionError as error:
            raise AssertionError(f"mode: {mode.name}\n{error}") from None

"""The row-wise operators as processors: the same results however they are cut and restarted."""

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dagster_jet.dag import (
    Guarantee,
    Inbox,
    Outbox,
    PartitionKey,
    ProcessorContext,
    SnapshotEntry,
    Watermark,
    broadcast_key,
)
from dagster_jet.errors import PipelineError, SnapshotInvalidError
from dagster_jet.operators.deduplicate import Deduplicate
from dagster_jet.operators.interval_join import IntervalJoin
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches
from dagster_jet.pipeline import aggregates as agg
from dagster_jet.testing import verify_processor
from tests.unit.operators.dag_operator import DagOperator, split_by_partition
from tests.unit.operators.frame_stage import FrameStage
from tests.unit.operators.rolling_stage import RollingStage
from tests.unit.operators.session_stage import SessionStage
from tests.unit.operators.stage import ms
from tests.unit.operators.stepping import addressed, as_input

ROWS = pa.schema([("k", pa.string()), ("n", pa.int64())])
PAIRS = pa.schema([("k", pa.string()), ("l", pa.int64()), ("r", pa.int64())])
DEDUPLICATE = Deduplicate(("k",), ROWS, within_ms=10)
JOIN = IntervalJoin(
    pa.schema([("k", pa.string())]),
    pa.schema([("l", pa.int64())]),
    pa.schema([("r", pa.int64())]),
    between_ms=(-5, 5),
    how="outer",
)


def running_total(state, row):
    state.value += row["n"]
    return {"k": row["k"], "n": state.value}


def last_word(key, value, watermark_ms):
    return {**key, "n": -value}


TOTALS = StatefulMap("totals", ("k",), ROWS, ROWS, running_total, int, 10, last_word)


def running_totals(state, rows):
    """`running_total` over tables."""
    sums = {s["k"]: s["sum"] or 0 for s in state.to_pylist()}
    results = []
    for row in rows.to_pylist():
        sums[row["k"]] += row["n"]
        results.append({"k": row["k"], "n": sums[row["k"]]})
    changed = pa.table({"k": pa.array(sums, pa.string()), "sum": list(sums.values())})
    return pa.Table.from_pylist(results, schema=ROWS), changed


def last_words(expired, watermarks):
    return pa.table({"k": expired["k"], "n": pc.negate(expired["sum"])})


SUM = pa.schema([("sum", pa.int64())])
IN_BATCHES = StatefulMapInBatches("totals", ("k",), ROWS, ROWS, SUM, running_totals, 10, last_words)


def batch(operator, ordinal, *rows):
    """One item; its rows are of one partition, as on a partitioned edge."""
    return as_input(list(rows), operator.input_schemas[ordinal])


def item(operator, time, k, ordinal=0, **payload):
    return batch(operator, ordinal, addressed(time, {"k": k}, **payload))


def partition_of(table):
    return PartitionKey(table.column("__partition")[0].as_py())


def values(table):
    return [tuple(row.values()) for row in table.to_pylist()]


def verify(operator, expect, **inputs):
    verify_processor(
        lambda: DagOperator(operator),
        expect=expect,
        unpack=values,
        key=partition_of,
        ordered=False,
        **inputs,
    )


def test_deduplication():
    def row(time, n, k="x"):
        return item(DEDUPLICATE, time, k, n=n)

    verify(
        DEDUPLICATE,
        input=[
            *[row(0, 1), row(4, 2), row(4, 3, None), Watermark(5), row(4, 4), row(7, 5)],
            *[row(11, 6), Watermark(30), row(30, 7), row(35, 8, "y"), row(31, 9, None)],
        ],
        expect=[
            *[("x", 1), (None, 3), Watermark(5), ("x", 6), Watermark(30)],
            *[("x", 7), ("y", 8), (None, 9)],
        ],
    )


def test_outer_interval_join():
    def left(time, n, k="x"):
        return item(JOIN, time, k, 0, l=n)

    def right(time, n, k="x"):
        return item(JOIN, time, k, 1, r=n)

    verify(
        JOIN,
        inputs=[
            [
                *[left(0, 1), left(0, 1), left(1, 2, "y"), Watermark(4)],
                *[left(9, 3, None), left(20, 4), Watermark(13)],
            ],
            # Ahead from early on: the left side's watermark is the join's.
            [right(5, 1), Watermark(13), right(30, 2, "y"), right(15, 3), right(16, 4)],
        ],
        expect=[
            *[("x", 1, 1), ("x", 1, 1), Watermark(4), ("y", 2, None), Watermark(13)],
            *[(None, 3, None), ("x", 4, 3), ("x", 4, 4), ("y", None, 2)],
        ],
    )


@pytest.mark.parametrize("totals", [TOTALS, IN_BATCHES], ids=["per row", "in batches"])
def test_stateful_map_with_time_to_live(totals):
    def row(time, n, k="x"):
        return item(totals, time, k, n=n)

    verify(
        totals,
        input=[
            *[row(0, 1), row(5, 2, "y"), Watermark(10), row(9, 100), row(10, 2, "y")],
            *[Watermark(11), row(12, 3), Watermark(20), Watermark(21), row(22, 1, "y")],
        ],
        expect=[
            *[("x", 1), ("y", 2), Watermark(10), ("y", 4), ("x", -1), Watermark(11)],
            *[("x", 3), Watermark(20), ("y", -4), Watermark(21), ("y", 1), ("x", -3), ("y", -1)],
        ],
    )


def picky_total(state, row):
    state.value += row["n"]
    if row["n"] < 0:
        raise ValueError("negative")
    return {"k": row["k"], "n": state.value}


PICKY = StatefulMap(
    "picky", ("k",), ROWS, ROWS, picky_total, int, 10, last_word, keeps_dead_letters=True
)


def test_rows_set_aside_go_out_on_their_edge():
    def row(time, n, k="x"):
        return item(PICKY, time, k, n=n)

    def rejected(time, n, k="x"):
        position = f"k={k!r} at 1970-01-01T00:00:00.{time:03}+00:00"
        return ("picky", position, "ValueError: negative", f'{{"k":"{k}","n":{n}}}')

    verify_processor(
        lambda: DagOperator(PICKY, dead_letters_to=1),
        input=[
            *[row(0, 1), row(1, -5), row(5, -2, "y"), Watermark(10), row(10, 2, "y")],
            *[row(10, -7), Watermark(11), row(12, 3), Watermark(23), row(24, -1, "y")],
        ],
        # At 11 the state of x is over: the row at 10 was no touch.
        expect_each=[
            [
                *[("x", 1), Watermark(10), ("y", 2), ("x", -1), Watermark(11), ("x", 3)],
                *[("y", -2), ("x", -3), Watermark(23)],
            ],
            [
                *[rejected(1, -5), rejected(5, -2, "y"), Watermark(10), rejected(10, -7)],
                *[Watermark(11), Watermark(23), rejected(24, -1, "y")],
            ],
        ],
        unpack=values,
        key=partition_of,
        ordered=False,
    )


def test_rows_set_aside_need_an_edge():
    processor, _, _ = started(PICKY, Guarantee.NONE)
    with pytest.raises(PipelineError, match="no edge takes them"):
        processor.process(0, Inbox([item(PICKY, 0, "x", n=1)]))


def windows_of(table):
    return [(row["k"], ms(row["window_end"]), row["n"]) for row in table.to_pylist()]


def test_sliding_windows():
    stage = FrameStage(4, 2, n=agg.count())

    def row(time, k="x"):
        return stage.first_stage([(k, time, 1)])

    verify_processor(
        lambda: DagOperator(stage.operator),
        input=[row(0), row(1, "y"), Watermark(2), row(1), row(3), Watermark(5), row(9, None)],
        expect=[
            *[("x", 2, 1), ("y", 2, 1), Watermark(2), ("x", 4, 2), ("y", 4, 1), Watermark(5)],
            *[("x", 6, 1), (None, 10, 1), (None, 12, 1)],
        ],
        unpack=windows_of,
        key=partition_of,
        ordered=False,
    )


def test_session_windows():
    stage = SessionStage(10)

    def row(time, k="x"):
        return stage.first_stage([(k, time, 1)])

    verify_processor(
        lambda: DagOperator(stage.operator),
        input=[row(1), row(12, "y"), row(8), Watermark(9), row(30), Watermark(18), Watermark(19)],
        expect=[
            *[Watermark(9), Watermark(18), ("x", 18, 2), Watermark(19)],
            *[("y", 22, 1), ("x", 40, 1)],
        ],
        unpack=windows_of,
        key=partition_of,
        ordered=False,
    )


def test_rolling_aggregates():
    """The number of updates depends on the rows of a step; here each key comes once between two
    watermarks."""
    stage = RollingStage(n=agg.count(), total=agg.sum("v"))

    def row(k, value):
        return stage.first_stage([(k, 0, value)])

    verify_processor(
        lambda: DagOperator(stage.operator),
        input=[row("x", 1), row("y", 2), Watermark(1), row("x", 10), Watermark(2), row("y", 20)],
        expect=[
            *[("x", 1, 1), ("y", 1, 2), Watermark(1), ("x", 2, 11), Watermark(2), ("y", 2, 22)],
        ],
        unpack=values,
        key=partition_of,
        ordered=False,
    )


def test_results_that_are_behind_the_watermark_hold_it_back():
    """An evicted state comes out once the watermark is beyond its time to live: a stage behind it
    must not find that it is late."""
    row = item(TOTALS, 0, "x", n=1)
    verify_processor(
        lambda: DagOperator(TOTALS, output_delay_ms=10),
        input=[row, Watermark(5), Watermark(12)],
        expect=[("x", 1), Watermark(-5), ("x", -1), Watermark(2)],
        unpack=values,
        key=partition_of,
    )


@pytest.mark.parametrize("kind", ["table", "batch"])
def test_tables_are_split_by_partition_in_their_order(kind):
    rows = [addressed(n, {"k": "xyz"[n % 3]}, n=n) for n in range(7)]
    whole = batch(DEDUPLICATE, 0, *rows)
    parts = dict(split_by_partition(whole if kind == "table" else whole.to_batches()[0], 7))
    assert len(parts) > 1
    for partition, part in parts.items():
        mine = [row["n"] for row in rows if row["__partition"] == partition]
        assert part.column("n").to_pylist() == mine
    assert list(split_by_partition(whole.slice(0, 0), 7)) == []


class Taking:
    """An endless stream."""

    def __init__(self):
        self.items = []

    def offer(self, item):
        self.items.append(item)
        return True


def started(operator, guarantee):
    out, saved = Taking(), Taking()
    processor = DagOperator(operator)
    processor.init(Outbox([out], saved), ProcessorContext("v", guarantee=guarantee))
    return processor, out, saved


def restored(operator, guarantee, *watermarks):
    processor, out, _ = started(operator, guarantee)
    entries = [SnapshotEntry(broadcast_key("progress"), (w, 3)) for w in watermarks]
    assert processor.restore_from_snapshot(Inbox(entries))
    assert processor.finish_snapshot_restore()
    return processor, out


def test_instances_that_disagree_about_the_watermark():
    with pytest.raises(SnapshotInvalidError, match="different watermarks"):
        restored(DEDUPLICATE, Guarantee.EXACTLY_ONCE, 20, 10)
    processor, out = restored(DEDUPLICATE, Guarantee.AT_LEAST_ONCE, 20, 10)
    rows = [item(DEDUPLICATE, 9, "late", n=1), item(DEDUPLICATE, 10, "x", n=2)]
    assert processor.process(0, Inbox(rows))
    assert values(out.items[0]) == [("x", 2)]
    assert (processor.rows_in, processor.late_rows) == (2, 1)


def test_an_instance_without_a_watermark_is_the_lowest():
    processor, _ = restored(DEDUPLICATE, Guarantee.AT_LEAST_ONCE, 20, None)
    assert processor.process(0, Inbox([item(DEDUPLICATE, 1, "x", n=1)]))
    assert processor.late_rows == 0


def test_a_watermark_below_the_restored_one_is_forwarded_and_closes_nothing_again():
    processor, out = restored(JOIN, Guarantee.AT_LEAST_ONCE, 100)
    assert processor.try_process_watermark(Watermark(50))
    assert out.items == [Watermark(50)]
    assert processor.process(0, Inbox([item(JOIN, 60, "x", l=1)]))
    assert processor.late_rows == 1


def test_record_batches_and_several_items_are_one_step():
    processor, out, _ = started(DEDUPLICATE, Guarantee.NONE)
    rows = [item(DEDUPLICATE, 5, "x", n=1), item(DEDUPLICATE, 0, "x", n=2)]
    assert processor.process(0, Inbox(batch for row in rows for batch in row.to_batches()))
    assert [values(table) for table in out.items] == [[("x", 1)]]


def test_state_is_saved_by_partition_and_progress_by_everybody():
    processor, _, saved = started(DEDUPLICATE, Guarantee.EXACTLY_ONCE)
    for k in "abcdefgh":
        processor.process(0, Inbox([item(DEDUPLICATE, 0, k, n=1)]))
    assert processor.save_to_snapshot()
    kinds = Counter(type(entry.key).__name__ for entry in saved.items)
    assert kinds["BroadcastKey"] == 1
    assert kinds["PartitionKey"] == len({e.key.partition for e in saved.items[:-1]}) > 1

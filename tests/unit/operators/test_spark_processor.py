"""Processors that commit in two phases, driven as Spark's tasks do it: an instance per epoch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet.core.partition import partition_of_key
from dagster_jet.dag import Emitter, Guarantee, ItemProcessor, PartitionKey, Processor
from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.errors import ProcessorError
from dagster_jet.operators.operator import (
    ARRIVAL_COLUMN,
    PARTITION_COLUMN,
    MemoryState,
    Step,
    StepInput,
)
from dagster_jet.operators.user.spark_processor import SparkProcessor
from dagster_jet.testing import verify_processor
from tests.integration.two_phase_child import into_files

PARTITIONS = 7
ROWS = pa.schema([("k", pa.string()), ("v", pa.int64())])
NUMBERED = pa.schema([*ROWS, ("n", pa.int64())])
Row = dict[str, Any]


def operator(supplier: Any, *, keys: Sequence[str] = ("k",), output: pa.Schema = NUMBERED):
    return SparkProcessor(
        stage="s",
        supplier=supplier,
        row_schema=ROWS,
        output_schema=output,
        row_keys=tuple(keys),
        in_batches=False,
        partition_count=PARTITIONS,
        commits_in_two_phases=True,
    )


class Job:
    """Epochs, decisions and commits of one stage, one after the other."""

    def __init__(self, operator: SparkProcessor, shards: int = 1) -> None:
        self.operator, self.shards = operator, shards
        self.states = [MemoryState(operator) for _ in range(shards)]
        self.watermark: int | None = None
        self.epoch_id = 0
        self.execution_id = 1

    def attempt(self, rows: Sequence[Row] = (), watermark: int | None = None) -> list[Step]:
        """The next epoch's tasks; nothing is decided yet."""
        return [
            self.operator.step(self.given(shard, self.epoch_id + 1, rows, watermark), state)
            for shard, state in enumerate(self.states)
        ]

    def decide(self, steps: list[Step], watermark: int | None = None) -> None:
        for state, step in zip(self.states, steps, strict=True):
            state.append(step.delta, None)
        self.watermark = self.watermark if watermark is None else watermark
        self.epoch_id += 1

    def commit(self) -> None:
        for shard, state in enumerate(self.states):
            self.operator.commit(self.given(shard, self.epoch_id), state)

    def epoch(self, rows: Sequence[Row] = (), watermark: int | None = None) -> list[Row]:
        steps = self.attempt(rows, watermark)
        self.decide(steps, watermark)
        self.commit()
        return [row for step in steps for row in step.results.to_pylist()]

    def given(
        self, shard: int, epoch_id: int, rows: Sequence[Row] = (), watermark: int | None = None
    ) -> StepInput:
        (schema,) = self.operator.input_schemas
        mine = []
        for row in rows:
            partition = partition_of_key(row["k"], PARTITIONS) if self.operator.is_keyed else 0
            if partition % self.shards == shard:
                address = dict.fromkeys(schema.names, 0)
                mine.append({**address, PARTITION_COLUMN: partition, **row})
        return StepInput(
            (pa.Table.from_pylist(mine, schema=schema),),
            self.watermark,
            self.watermark if watermark is None else watermark,
            version=epoch_id,
            shard=shard,
            shard_count=self.shards,
            fencing_token=(self.execution_id << 40) + epoch_id,
        )


def rows_in(folder: Path) -> Counter[tuple[str, int, int]]:
    found = [json.loads(line) for f in folder.iterdir() for line in f.read_text().splitlines()]
    return Counter((row["k"], row["v"], row["n"]) for row in found)


def numbered(*rows: tuple[str, int, int]) -> Counter[tuple[str, int, int]]:
    return Counter(rows)


def test_prepared_in_one_epoch_and_committed_by_a_new_instance(tmp_path: Path) -> None:
    job = Job(operator(into_files(tmp_path, rows_at_most=1)))
    steps = job.attempt([{"k": "a", "v": 1}, {"k": "a", "v": 2}])
    truth = numbered(("a", 1, 1), ("a", 2, 2))
    assert rows_in(tmp_path / "prepared") == truth and steps[0].prepared
    assert rows_in(tmp_path / "committed") == numbered(), "nothing is decided yet"

    job.decide(steps)
    job.commit()
    assert rows_in(tmp_path / "committed") == truth
    job.commit()
    assert rows_in(tmp_path / "committed") == truth, "twice is once"

    assert job.epoch([{"k": "a", "v": 3}]) == [{"k": "a", "v": 3, "n": 3}]
    assert rows_in(tmp_path / "committed") == truth + numbered(("a", 3, 3))
    assert not list((tmp_path / "prepared").iterdir())


def test_the_next_epochs_instance_commits_what_phase_2_did_not_reach(tmp_path: Path) -> None:
    job = Job(operator(into_files(tmp_path)), shards=2)
    job.decide(job.attempt([{"k": k, "v": 1} for k in "abcd"]))
    job.attempt()
    assert rows_in(tmp_path / "committed") == numbered(*((k, 1, 1) for k in "abcd"))


def test_nothing_is_prepared_where_nothing_has_happened(tmp_path: Path) -> None:
    job = Job(operator(into_files(tmp_path)))
    assert [step.prepared for step in job.attempt()] == [False]
    assert [step.prepared for step in job.attempt(watermark=5)] == [True], "it might react to it"


def test_of_two_attempts_the_acknowledged_one_counts(tmp_path: Path) -> None:
    """The other attempt removes nothing of the one that counts, even if it ends late."""
    job = Job(operator(into_files(tmp_path)))
    job.epoch([{"k": "a", "v": 1}])
    lost, counts = (job.attempt([{"k": "a", "v": 2}]) for _ in range(2))
    assert rows_in(tmp_path / "prepared") == numbered(("a", 2, 2), ("a", 2, 2)), lost
    before = job.states[0].scan()
    job.decide(counts)
    zombie = job.given(0, job.epoch_id, [{"k": "a", "v": 2}])
    old = MemoryState(job.operator)
    old.append(before, None)
    job.operator.step(zombie, old)
    job.commit()
    truth = numbered(("a", 1, 1), ("a", 2, 2))
    assert rows_in(tmp_path / "committed") == truth
    assert rows_in(tmp_path / "prepared").total() == 2, "of attempts that nobody acknowledged"

    job.attempt()
    assert rows_in(tmp_path / "committed") == truth
    assert rows_in(tmp_path / "prepared") == numbered(), "the next epoch rolls them back"


def test_a_zombie_of_an_older_execution_does_not_roll_back_its_successors(tmp_path: Path) -> None:
    job = Job(operator(into_files(tmp_path)))
    job.epoch([{"k": "a", "v": 1}])
    zombie = job.given(0, job.epoch_id + 1, [{"k": "a", "v": 2}])
    state = MemoryState(job.operator)
    state.append(job.states[0].scan(), None)

    job.execution_id += 1
    job.decide(job.attempt([{"k": "a", "v": 2}]))
    job.operator.step(zombie, state)
    job.commit()
    assert rows_in(tmp_path / "committed") == numbered(("a", 1, 1), ("a", 2, 2))
    job.attempt()
    assert rows_in(tmp_path / "prepared") == numbered()


def test_a_crash_in_the_first_epoch_leaves_nothing(tmp_path: Path) -> None:
    """There are no entries to restore, and the restore finishes all the same."""
    job = Job(operator(into_files(tmp_path)))
    job.attempt([{"k": "a", "v": 1}])
    job.execution_id += 1
    job.attempt()
    assert rows_in(tmp_path / "prepared") == numbered()


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 5)])
def test_another_parallelism_commits_and_rolls_back_all(
    tmp_path: Path, before: int, after: int
) -> None:
    keys = "abcdefgh"
    job = Job(operator(into_files(tmp_path)), shards=before)
    job.decide(job.attempt([{"k": k, "v": 1} for k in keys]))
    job.attempt([{"k": k, "v": 2} for k in keys])  # it crashes: this epoch is never acknowledged

    again = Job(job.operator, shards=after)
    again.execution_id, again.epoch_id = 2, job.epoch_id
    for state in job.states:
        for row in state.scan().to_pylist():
            mine = again.states[row[PARTITION_COLUMN] % after]
            mine.append(pa.Table.from_pylist([row], schema=job.operator.state_schema), None)
    again.commit()
    assert rows_in(tmp_path / "committed") == numbered(*((k, 1, 1) for k in keys))
    assert rows_in(tmp_path / "prepared") == numbered()


def test_the_last_epoch_is_prepared_before_complete(tmp_path: Path) -> None:
    job = Job(operator(into_files(tmp_path)))
    steps = job.attempt([{"k": "a", "v": 1}], FINAL_WATERMARK_MS)
    assert rows_in(tmp_path / "committed") == numbered()
    job.decide(steps, FINAL_WATERMARK_MS)
    job.commit()
    assert rows_in(tmp_path / "committed") == numbered(("a", 1, 1))


class Noting(ItemProcessor):
    """Notes every callback."""

    calls: list[str] = []  # noqa: RUF012 - shared by its instances

    def init(self, outbox, context):
        super().init(outbox, context)
        self.telling = Emitter(outbox.offer)
        self.note(f"init {context.fencing_token & 0xFF}")

    def note(self, call: str) -> bool:
        Noting.calls.append(call)
        return True

    def restore_from_snapshot(self, inbox):
        return self.note(f"restore {sorted(entry.value for entry in inbox.drain())}")

    def finish_snapshot_restore(self):
        return self.note("restored")

    def process_item(self, ordinal, item):
        return self.note(f"item {item['v']}")

    def save_to_snapshot(self):
        return self.outbox.offer_to_snapshot(PartitionKey(0, "state"), "state") and self.note(
            "save"
        )

    def snapshot_commit_prepare(self):
        return self.outbox.offer_to_snapshot(PartitionKey(0, "id"), "id") and self.note("prepare")

    def snapshot_commit_finish(self, *, success):
        return self.note("finish")

    def complete_edge(self, ordinal):
        return self.note("edge over")

    def complete(self):
        return self.telling.emit(lambda: [{"k": "end", "v": 0, "n": 0}]) and self.note("complete")

    def close(self):
        self.note("close")


def test_the_order_of_callbacks() -> None:
    Noting.calls.clear()
    job = Job(operator(Noting))
    job.epoch([{"k": "a", "v": 1}])
    restored = "restore ['id', 'state']"
    assert Noting.calls == [
        *("init 1", "restored", "item 1", "save", "prepare", "close"),
        *("init 1", restored, "restored", "close"),
    ]
    Noting.calls.clear()
    assert job.epoch([{"k": "a", "v": 2}], FINAL_WATERMARK_MS) == [{"k": "end", "v": 0, "n": 0}]
    assert Noting.calls == [
        *("init 2", restored, "restored", "item 2", "edge over", "save", "prepare"),
        *("complete", "close"),
        *("init 2", restored, "restored", "close"),
    ]


class Telling(ItemProcessor):
    """Emits every row with the number of rows before it, and its guarantee in place of the key."""

    def init(self, outbox, context):
        super().init(outbox, context)
        self.count = 0

    def process_item(self, ordinal, item):
        row = {"k": self.context.guarantee.value, "v": item["v"], "n": self.count}
        self.count += 1
        return self.outbox.offer(row)


@pytest.mark.parametrize("guarantee", Guarantee)
def test_rows_come_in_order_of_arrival_and_the_guarantee_is_the_jobs(guarantee: Guarantee):
    job = Job(operator(Telling))
    places = [5, 0, 3, 9, 2, 6, 1, 7]
    rows = [{"k": "a", "v": n, ARRIVAL_COLUMN: place} for n, place in enumerate(places)]
    given = replace(job.given(0, 1, rows), guarantee=guarantee)
    results = job.operator.step(given, job.states[0]).results.to_pylist()
    assert [row["v"] for row in results] == [1, 6, 4, 2, 0, 5, 7, 3]
    assert {row["k"] for row in results} == {guarantee.value}


def test_one_instance_commits_where_there_is_no_key() -> None:
    Noting.calls.clear()
    job = Job(operator(Noting, keys=()), shards=3)
    job.epoch([{"k": "a", "v": 1}])
    assert Noting.calls.count("close") == 2


def test_a_commit_that_gets_stuck_or_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(Processor):
        def finish_snapshot_restore(self):
            return False

    class Fails(Processor):
        def finish_snapshot_restore(self):
            raise OSError("the database is away")

    monkeypatch.setattr("dagster_jet.operators.user.spark_processor.IDLE_CALLS_MAX", 10)
    with pytest.raises(ProcessorError, match=r"makes no progress"):
        Job(operator(Stuck)).commit()
    with pytest.raises(ProcessorError, match=r"finish_snapshot_restore\(\).*database is away"):
        Job(operator(Fails)).commit()


class Emits(Processor):
    """Emits one item, whatever it is given, and saves one entry."""

    def __init__(self, item: Any = None, key: Any = "a") -> None:
        self.item, self.key = item, key

    def process(self, ordinal, inbox):
        inbox.drain()
        return self.item is None or self.outbox.offer(self.item)

    def save_to_snapshot(self):
        return self.outbox.offer_to_snapshot(self.key, 1)

    def restore_from_snapshot(self, inbox):
        inbox.drain()
        return True


def emitted(item: Any, *, in_batches: bool) -> list[Row]:
    stage = replace(operator(lambda: Emits(item)), in_batches=in_batches)
    return Job(stage).epoch([{"k": "a", "v": 1}])


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    "item, message",
    [
        ({"k": "a", "v": 1}, "emitted a row without the column n"),
        ({"k": "a", "v": "x", "n": 1}, "emitted 'x' for the column v, which is int64"),
        (batch(k=["a"], v=[1]), "emitted a batch with the columns k, v, expected k, v, n"),
        (batch(k=["a"], v=[1], n=[0.5]), "emitted a batch whose column 'n' is double, expected in"),
        (
            batch(k=["a"], v=[1], n=pa.array([2**63], pa.uint64())),
            "'n' is uint64, expected int64.*not in range",
        ),
        (pa.table({"k": ["a"]}), "emitted a Table"),
    ],
)
def test_output_of_another_shape_or_type_is_the_processors_mistake(item: Any, message: str) -> None:
    in_batches = not isinstance(item, dict)
    of = "record batches" if in_batches else "rows as dicts"
    with pytest.raises(ProcessorError, match=rf"{message}.*Offer (Arrow )?{of}.*output_schema"):
        emitted(item, in_batches=in_batches)


def test_columns_of_a_batch_come_in_any_order_and_width() -> None:
    given = batch(n=pa.array([3], pa.int8()), k=pa.array(["a"], pa.large_string()), v=[1])
    assert emitted(given, in_batches=True) == [{"k": "a", "v": 1, "n": 3}]


@pytest.mark.parametrize("partition", [PARTITIONS, -1])
def test_state_of_a_partition_that_does_not_exist_is_refused(partition: int) -> None:
    """No start would restore it."""
    job = Job(operator(lambda: Emits(key=PartitionKey(partition))))
    with pytest.raises(ProcessorError, match=r"save_to_snapshot\(\).*has no partition: .*0 to 6"):
        job.epoch([{"k": "a", "v": 1}])


@pytest.mark.parametrize(
    "supplier, message",
    [(lambda: None, "returned None, which is not a Processor"), (lambda: 1 / 0, "ZeroDivision")],
)
def test_suppliers_that_supply_nothing(supplier: Any, message: str) -> None:
    with pytest.raises(ProcessorError, match=message) as caught:
        Job(operator(supplier)).epoch()
    assert caught.value.vertex == "s" and caught.value.callback == "supplier()"


def test_the_processor_keeps_the_contract(tmp_path: Path) -> None:
    rows = [{"k": k, "v": 1} for k in "abab"]
    verify_processor(
        into_files(tmp_path),
        input=rows,
        expect=[{**row, "n": 1 + number // 2} for number, row in enumerate(rows)],
        key=lambda row: row["k"],
    )


class Slowly(ItemProcessor):
    """Emits what it has kept in its third `complete`."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.calls = 0

    def process_item(self, ordinal: int, item: Any) -> bool:
        self.rows.append(item)
        return True

    def complete(self) -> bool:
        self.calls += 1
        return self.calls >= 3 and self.outbox.offer({**self.rows[0], "n": len(self.rows)})

    def snapshot_commit_finish(self, *, success: bool) -> bool:
        return True


def test_completing_may_take_calls_that_emit_nothing() -> None:
    job = Job(operator(Slowly))
    last = job.epoch([{"k": "a", "v": 1}, {"k": "a", "v": 2}], FINAL_WATERMARK_MS)
    assert last == [{"k": "a", "v": 1, "n": 2}]

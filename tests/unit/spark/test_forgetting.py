"""State that a stage has given up is gone for good, wherever it was: in runs and chunks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet.dag import Inbox, Processor
from dagster_jet.operators.operator import Operator
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches
from dagster_jet.operators.user.spark_processor import SparkProcessor
from dagster_jet.store import Store
from tests.unit.operators.stepping import PARTITIONS, addressed
from tests.unit.spark.shard import Row, Shard

ROWS = pa.schema([("k", pa.string()), ("last", pa.bool_())])
COUNTS = pa.schema([("k", pa.string()), ("n", pa.int64())])
KEYS_PER_EPOCH = 20
EPOCHS = 80


def count(state: Any, row: Row) -> Row:
    state.value += 1
    told = {"k": row["k"], "n": state.value}
    if row["last"]:
        state.clear()
    return told


class Counts(Processor):
    """`count`, with as many entries as there are keys."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def process(self, ordinal: int, inbox: Inbox) -> bool:
        for row in inbox.drain():
            self.counts[row["k"]] += 1
            self.outbox.offer({"k": row["k"], "n": self.counts[row["k"]]})
            if row["last"]:
                del self.counts[row["k"]]
        return True

    def save_to_snapshot(self) -> bool:
        return all(self.outbox.offer_to_snapshot(*entry) for entry in self.counts.items())

    def restore_from_snapshot(self, inbox: Inbox) -> bool:
        self.counts.update(dict(inbox.drain()))
        return True


def count_in_batches(state: pa.Table, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """`count`, over tables."""
    before = {row["k"]: row["n"] for row in state.to_pylist()}
    now, results = dict(before), []
    for row in rows.to_pylist():
        n = (now[row["k"]] or 0) + 1
        results.append({"k": row["k"], "n": n})
        now[row["k"]] = None if row["last"] else n
    changed = [{"k": k, "n": n} for k, n in now.items() if n != before[k]]
    return (
        pa.Table.from_pylist(results, schema=COUNTS),
        pa.Table.from_pylist(changed, schema=COUNTS),
    )


OPERATORS: list[Operator] = [
    StatefulMap("s", ("k",), ROWS, COUNTS, count, int),
    StatefulMapInBatches(
        "s", ("k",), ROWS, COUNTS, pa.schema([("n", pa.int64())]), count_in_batches
    ),
    SparkProcessor("s", Counts, ROWS, COUNTS, ("k",), False, PARTITIONS),
]


@pytest.mark.parametrize("every", [2, None], ids="snapshot every {}".format)
@pytest.mark.parametrize(
    "operator", OPERATORS, ids=["map_stateful", "in_batches", "apply_processor"]
)
def test_keys_that_are_gone_leave_nothing(
    store: Store, tmp_path: Path, operator: Operator, every: int | None
) -> None:
    random, shard = Random(1), Shard(store, tmp_path, operator)
    counts: Counter[str] = Counter()
    saved: Counter[str] = Counter()
    for epoch in range(EPOCHS):
        rows = [("stays", False), *((f"{epoch}-{n}", False) for n in range(KEYS_PER_EPOCH))]
        rows += [(key, True) for key in counts if key != "stays"]
        truth = []
        for key, last in rows:
            counts[key] += 1
            truth.append({"k": key, "n": counts[key]})
            if last:
                del counts[key]
        saves = every is not None and epoch % every == 0
        fails = saves and epoch > 0 and random.random() < 0.1
        arrived = [addressed(0, {"k": key}, last=last) for key, last in rows]
        found = shard.step(arrived, watermark=0, saves=saves, fails=fails)
        assert sorted(found, key=str) == sorted(truth, key=str)
        if saves and not fails:
            saved = counts.copy()
            if random.random() < 0.1:
                shard.restart()
    assert shard.run_rows <= 40 * KEYS_PER_EPOCH, "what some epochs wrote, not all of them"
    if every is not None:
        shard.restart()
        assert shard.run_rows == len(saved)
        last_words = [addressed(0, {"k": key}, last=True) for key in saved]
        told = shard.step(last_words, watermark=0)
        assert {row["k"]: row["n"] - 1 for row in told} == saved

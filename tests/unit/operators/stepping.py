"""Drives any operator through steps, snapshots and restores, and checks the contract on the way.

    run = Stepping(operator)
    run.step([row(...), ...], watermark=10)      # one list of dicts per ordinal -> result dicts
    run.restore(random.Random(7))                # state rebuilt from the saved deltas

Every step is taken twice on the same state: an operator that remembers anything of its own, or
changes what it was given, answers differently the second time.
"""

import pickle
from random import Random

import numpy as np
import pyarrow as pa

from dagster_jet.core.partition import key_hash
from dagster_jet.operators.operator import (
    ARRIVAL_COLUMN,
    HASH_COLUMN,
    PARTITION_COLUMN,
    TIME_COLUMN,
    MemoryState,
    StepInput,
)
from dagster_jet.operators.user.dead_letters import DEAD_LETTER_SCHEMA

FINAL_WATERMARK = 9_000_000_000_000_000
PARTITIONS = 7


class Stepping:
    def __init__(self, operator):
        self.operator = operator
        self.state = MemoryState(operator)
        self.watermark = None
        self.version = 0
        self.deltas = []
        self.rejected = []
        self.late = 0
        self.rows_in = 0

    def step(self, *arrived, watermark=None, early=False):
        """Rows per ordinal come in; the results go out. The watermark stays if none is given."""
        after = self.watermark if watermark is None else watermark
        self.version += 1
        tables = tuple(
            as_input(list(rows), schema)
            for rows, schema in zip(arrived, self.operator.input_schemas, strict=True)
        )
        given = StepInput(tables, self.watermark, after, self.version, early=early)
        step = self.operator.step(given, self.state)
        self._check_contract(given, step)
        self.state.append(step.delta, after)
        self.deltas.append(step.delta)
        if step.rejected is not None:
            self.rejected += step.rejected.to_pylist()
        self.watermark = after
        self.late += step.late
        self.rows_in += step.rows_in
        return step.results.to_pylist()

    def complete(self):
        return self.step(*([] for _ in self.operator.input_schemas), watermark=FINAL_WATERMARK)

    def restore(self, random):
        """A new operator, and a state put together from all deltas: whole or without dead rows,
        merged in any grouping and order, as compaction and re-divided shards do."""
        self.operator = pickle.loads(pickle.dumps(self.operator, protocol=5))
        groups = [[] for _ in range(3)]
        for delta in self.deltas:
            random.choice(groups).append(delta)
        runs = [self.operator.merge(group) for group in groups if group]
        runs = [self._without_dead(run) if random.random() < 0.5 else run for run in runs]
        random.shuffle(runs)
        self.state = MemoryState(self.operator)
        if runs:
            for part in self._by_partition(self.operator.merge(runs), random):
                self.state.append(part, None)
        self.state.append(self.operator.state_schema.empty_table(), self.watermark)

    def _by_partition(self, run, random):
        """Restored state comes partition by partition, in any order, each of them whole."""
        partitions = run.column(PARTITION_COLUMN).to_numpy()
        parts = [run.filter(pa.array(partitions == p)) for p in np.unique(partitions)]
        random.shuffle(parts)
        return parts

    def _without_dead(self, table):
        dead = self.operator.expired_until(self.watermark)
        if dead is None:
            return table
        times = table.column(self.operator.time_column).to_numpy()
        return table.filter(pa.array(times > dead))

    def _check_contract(self, given, step):
        operator = self.operator
        assert step.results.schema.equals(operator.result_schema)
        assert step.delta.schema.equals(operator.state_schema)
        assert step.rows_in == sum(table.num_rows for table in given.arrived)
        for column in (PARTITION_COLUMN, operator.time_column):
            assert step.delta.column(column).null_count == 0
        dead = operator.expired_until(given.after_ms)
        if dead is not None:
            assert all(t > dead for t in step.delta.column(operator.time_column).to_pylist())
        again = operator.step(given, self.state)
        assert again.results.equals(step.results)
        assert again.delta.equals(step.delta)
        assert (step.rejected is None) == (again.rejected is None)
        if step.rejected is not None:
            assert step.rejected.schema.equals(DEAD_LETTER_SCHEMA)
            assert again.rejected.equals(step.rejected)
        merged = operator.merge([step.delta])
        assert as_multiset(operator.merge([merged])) == as_multiset(merged)


def addressed(time, keys, hash_of=key_hash, **payload):
    """An input row: `keys` is a dict of the key columns; `hash_of` may make keys collide."""
    hashed = hash_of(*keys.values())
    return {
        PARTITION_COLUMN: hashed % PARTITIONS,
        HASH_COLUMN: hashed,
        TIME_COLUMN: time,
        **keys,
        **payload,
    }


def as_input(rows, schema):
    """The rows in this order of arrival, as an input of an operator."""
    return pa.Table.from_pylist(
        [{**row, ARRIVAL_COLUMN: number} for number, row in enumerate(rows)], schema=schema
    )


def colliding(*_values):
    """A hash that all keys share."""
    return 42


def as_multiset(rows):
    rows = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    return sorted(repr(sorted(row.items())) for row in rows)


def split(random: Random, rows, parts):
    """The rows in `parts` lists, in any order."""
    lists = [[] for _ in range(parts)]
    for row in random.sample(rows, len(rows)):
        random.choice(lists).append(row)
    return lists

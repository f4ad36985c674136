"""The newest event of each partition is observed while rows pass, however many there are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.partition_tops import cpu_s, numbered, observing, warm_up
from dagster_jet.contract import SOURCE_PARTITION_COLUMN
from dagster_jet.spark.epoch_contract import Observed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMES = (None, 0, -1, 1_700_000_000_123, -62_135_596_800_000, 2**53, 2**53 + 1, 2**63 - 1, -(2**63))


def observed(rows: DataFrame, names: Sequence[str]) -> Observed:
    action, observations = observing(rows)
    action.collect()
    return observations.seen(action, (), {"rows": names}).event_times["rows.timestamps"]


def is_top(found: int, expected: int) -> bool:
    """Exact but for times that no clock shows, and never ahead."""
    return found == expected if abs(expected) <= 2**53 else 0 <= expected - found <= 2048


def test_every_partition_has_its_own(spark: SparkSession) -> None:
    chance = random.Random(7)
    names = [f"topic/{number}" for number in range(300)]
    rows = [
        (chance.randrange(290), chance.choice([*TIMES, chance.randrange(10**13)]))
        for _ in range(5_000)
    ]
    tops: dict[str, int] = {}
    for number, time in rows:
        if time is not None:
            tops[names[number]] = max(time, tops.get(names[number], time))
    frame = spark.createDataFrame(rows, f"{SOURCE_PARTITION_COLUMN} int, ts bigint")
    seen = observed(frame.repartition(3), names)
    assert seen.arrived.rows == len(rows)
    assert seen.arrived.rows_with_time == sum(time is not None for _, time in rows)
    assert seen.arrived.top_event_ms == 2**63 - 1
    assert seen.partition_tops_ms.keys() == tops.keys()
    assert not [n for n, top in tops.items() if not is_top(seen.partition_tops_ms[n], top)]


def test_many_partitions_cost_what_one_costs(spark: SparkSession) -> None:
    """In the first run, where programs are compiled: with a column each, 256 take four times as
    much CPU as one."""
    warm_up(spark)
    spent = {}
    for partitions in (1, 256):
        action, _ = observing(numbered(spark, partitions))
        before = cpu_s(spark)
        action.collect()
        spent[partitions] = cpu_s(spark) - before
    assert spent[256] < 2 * spent[1] + 0.5, spent

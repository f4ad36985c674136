"""The source, chosen by measurement: our readers in tasks against Spark's own Kafka connector.

One session, one topic, the same offsets, raw values that nobody looks at or JSON objects that are
parsed: what a source gives an epoch. The CPU is of the whole tree: the JVM, its compiler threads
and the Python workers.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.jet_query import SPARK
from benchmarks.kafka_race.messages import PARTITIONS, SCHEMA, Messages
from benchmarks.ratios import Ratio, ratio
from dagster_jet import Jet
from dagster_jet.connectors.kafka.cluster import Cluster
from dagster_jet.connectors.kafka.kafka_reader import KafkaReader, Reading
from dagster_jet.connectors.kafka.offsets import Partition, Topics
from dagster_jet.connectors.kafka.ranges import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUES = {"raw": None, "json": SCHEMA}
FIGURES = ("rows_per_s", "cpu_s_per_m")
WARM_UP_ROUNDS = 2
Read = Callable[["SparkSession", str, str, Sequence[int], str | None], "DataFrame"]


@dataclass(frozen=True)
class Measured:
    """One reader, once."""

    rows_per_s: float
    cpu_s_per_m: float


@dataclass(frozen=True)
class Compared:
    """Ratios of our readers to Spark's."""

    values: str
    rows_per_s: Ratio
    cpu: Ratio
    ours: Measured
    """Medians."""
    sparks: Measured


def by_our_tasks(
    session: SparkSession, servers: str, topic: str, ends: Sequence[int], schema: str | None
) -> DataFrame:
    topics = Topics((topic,))
    reading = Reading(Cluster(servers), topics, schema, "earliest", (), False, "skip", "")
    split = tuple(Range(Partition(topic, number), 0, end) for number, end in enumerate(ends))
    return KafkaReader(reading, "readers", "rows", None).frame(session, split).rows


def by_sparks_connector(
    session: SparkSession, servers: str, topic: str, ends: Sequence[int], schema: str | None
) -> DataFrame:
    from pyspark.sql import functions as F

    starting = {topic: {str(number): 0 for number in range(len(ends))}}
    ending = {topic: {str(number): end for number, end in enumerate(ends)}}
    found = (
        session.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", json.dumps(starting))
        .option("endingOffsets", json.dumps(ending))
        .load()
    )
    if schema is None:
        return found.select("value", "partition")
    parsed = F.from_json(F.col("value").cast("string"), schema, {"mode": "FAILFAST"})
    return found.select(parsed.alias("row"), "partition").select("row.*", "partition")


READERS: dict[str, Read] = {"ours": by_our_tasks, "Spark's": by_sparks_connector}


def run(
    servers: str,
    topic: str,
    messages: Messages,
    folder: Path,
    jars: Sequence[str],
    rounds: int,
    tell: Callable[[str], None],
) -> list[Compared]:
    """Rounds of both, in an order drawn at random; the first ones warm up and do not count."""
    ends = [len(range(n, messages.count, PARTITIONS)) for n in range(PARTITIONS)]
    draw, found, cpu = random.Random(5), [], TreeCpu()
    members = [f"file://{folder}/readers-{letter}" for letter in "abc"]
    settings = {**SPARK, "spark.jars": ",".join(jars)}
    with Jet(store=members, spark=settings, work_dir=folder / "work") as jet:
        session = jet.session()
        for values, schema in VALUES.items():
            measured: list[dict[str, Measured]] = []
            for number in range(WARM_UP_ROUNDS + rounds):
                order = list(READERS)
                draw.shuffle(order)
                once = {
                    name: _measure(READERS[name](session, servers, topic, ends, schema), ends, cpu)
                    for name in order
                }
                if number >= WARM_UP_ROUNDS:
                    measured.append(once)
                    tell(f"readers, {values}, round {number - WARM_UP_ROUNDS + 1}: {_shown(once)}")
            found.append(_compared(values, measured))
    return found


def _measure(rows: DataFrame, ends: Sequence[int], cpu: TreeCpu) -> Measured:
    before, begun = cpu.seconds(), time.monotonic()
    rows.write.format("noop").mode("overwrite").save()
    seconds = time.monotonic() - begun
    return Measured(sum(ends) / seconds, 1e6 * (cpu.seconds() - before) / sum(ends))


class TreeCpu:
    """CPU-seconds of this process and all below it, so far. Of one that is gone, what it had used
    when it was seen last: PySpark ends workers that are idle, and nobody is told what they used."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, float], float] = {}

    def seconds(self) -> float:
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            try:
                used = process.cpu_times()
                self._seen[process.pid, process.create_time()] = used.user + used.system
            except psutil.Error:
                continue
        return sum(self._seen.values())


def _compared(values: str, measured: Sequence[Mapping[str, Measured]]) -> Compared:
    def of(name: str, figure: str) -> list[float]:
        return [getattr(once[name], figure) for once in measured]

    def compared(figure: str) -> Ratio:
        return ratio(*([[value] for value in of(name, figure)] for name in READERS))

    ours, sparks = (
        Measured(*(statistics.median(of(name, figure)) for figure in FIGURES)) for name in READERS
    )
    rows, cpu = map(compared, FIGURES)
    return Compared(values, rows, cpu, ours, sparks)


def _shown(once: Mapping[str, Measured]) -> str:
    return "; ".join(
        f"{name} {one.rows_per_s:,.0f} rows/s, {one.cpu_s_per_m:.2f} CPU-s/M"
        for name, one in once.items()
    )

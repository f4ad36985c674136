"""The world of `kafka_child`: a topic of rows, and what is found in the topics that it writes."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from dagster_jet import JobConfig, JobResult

from .. import child
from ..oracle import Rows, windowed
from ..world import START_OPTIONS, World, random_rows
from . import kafka_child
from .held_transactions import open_transactions
from .kafka_world import KafkaWorld
from .plain_markers import KafkaMarkers

FILE_ROWS = 12


class KafkaPipelineWorld(World):
    driver = staticmethod(kafka_child.main)
    job = kafka_child.JOB
    kafka: KafkaWorld
    place: dict[str, Any]
    sent: list[dict[str, Any]]
    partitions = 2
    """Partitions of the topic that is read."""

    def set_up(self, kafka: KafkaWorld) -> None:
        self.kafka, self.sent = kafka, []
        self.place = {"servers": kafka.servers, "in": kafka.topic(self.partitions)}
        self.place |= {name: kafka.topic(2) for name in ("counts", "big")}
        self.write_to()

    def write_to(self, **sinks: Any) -> None:
        """Sets the options of the next execution's sinks, beside their topics."""
        self.sinks = sinks
        place = {**self.place, "sinks": sinks}
        (self.folder / "kafka.json").write_text(json.dumps(place))

    def send(self, files: int, first: int = 0) -> None:
        for number in range(first, first + files):
            rows = random_rows(number, FILE_ROWS, seed=3)
            self.kafka.send(self.place["in"], rows, partition=number % self.partitions)
            self.sent += rows

    def run(self, until: str = "completed", **config: Any) -> JobResult:
        start = {name: config.pop(name) for name in START_OPTIONS & config.keys()}
        with self.jet() as jet:
            return jet.run(
                kafka_child.kafka_pipeline(self.folder),
                JobConfig(**{**child.CONFIG, "max_items_per_epoch": 12, **config}),
                until=until,
                on_event=self.see,
                **start,
            )

    def found(self) -> dict[str, Counter[tuple[Any, ...]]]:
        return found_in(self.kafka, self.place)

    def wanted(self) -> dict[str, Counter[tuple[Any, ...]]]:
        return wanted_of(self.sent)

    def marked(self, sink: str, epochs: set[int]) -> set[int]:
        """Those of the epochs that have a marker, in the topic that only this world's sinks use."""
        markers = KafkaMarkers(self.kafka.servers, sink, self.sinks["marker_topic"], silence_s=60)
        newest = markers()
        return {epoch for epoch in epochs if epoch <= newest}

    def open_transactions(self) -> set[str]:
        """Ids of this store's open transactions, as the broker lists them."""
        with self.jet() as jet:
            return open_transactions(self.kafka, jet.store.store_id)

    def assert_nothing_doubled(self) -> None:
        for name, rows in self.found().items():
            assert not rows - self.wanted()[name], "nothing is there twice, or too early"

    def assert_in_order(self) -> None:
        """Asserts that `big` has, for each key, the rows of each input partition in their order."""
        of: dict[tuple[Any, ...], set[int]] = defaultdict(set)
        for number, row in enumerate(self.sent):
            of[row["k"], row["ts"], row["v"]].add(number // FILE_ROWS % self.partitions)
        found: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
        wanted: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
        big = [row for row in self.sent if row["v"] >= child.BIG]
        for rows, into in ((self.kafka.rows(self.place["big"]), found), (big, wanted)):
            for row in rows:
                place = row["k"], row["ts"], row["v"]
                if len(of[place]) == 1:
                    into[(row["k"], *of[place])].append(place)
        assert found == wanted

    def assert_exactly_once(self) -> None:
        found, wanted = self.found(), self.wanted()
        for name, rows in wanted.items():
            missing, surplus = rows - found[name], found[name] - rows
            assert not missing and not surplus, (name, missing, surplus)


def found_in(kafka: KafkaWorld, topics: Mapping[str, Any]) -> dict[str, Rows]:
    """The committed rows of both topics that the job writes."""
    counts = kafka.rows(topics["counts"])
    ends = [(r["k"], _ms(r["window_start"]), _ms(r["window_end"])) for r in counts]
    return {
        "counts": Counter((*end, r["n"], r["total"]) for end, r in zip(ends, counts, strict=True)),
        "big": Counter((r["k"], r["ts"], r["v"]) for r in kafka.rows(topics["big"])),
    }


def wanted_of(sent: Sequence[dict[str, Any]]) -> dict[str, Rows]:
    """The rows that the job makes of these."""
    return {
        "counts": Counter(windowed(sent, child.WINDOW_MS)),
        "big": Counter((r["k"], r["ts"], r["v"]) for r in sent if r["v"] >= child.BIG),
    }


def _ms(text: Any) -> int:
    if isinstance(text, int):
        return text
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)

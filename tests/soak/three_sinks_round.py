"""A round with two sources and three sinks, whose servers are victims, too.

The three outputs are compared with the input and with each other, by plain clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from confluent_kafka import Producer

from ..integration.connectors.kafka_world import KafkaWorld
from ..integration.connectors.plain_markers import FileMarkers, KafkaMarkers, Reader, TableMarkers
from ..integration.oracle import Rows, committed, input_rows
from ..integration.world import random_rows, write_input
from .database_round import DatabaseRound
from .round import ROWS, Round
from .three_sinks_driver import COLUMNS, TABLE, TOPIC

SINKS = ("to_kafka", "to_table", "to_parquet")


class ThreeSinksRound(DatabaseRound):
    """Each turn of the feeder sends a batch of messages and puts a file."""

    driver_module = "tests.soak.three_sinks_driver"
    topics = (TOPIC,)
    tables: ClassVar[Mapping[str, str]] = {TABLE: "k text, ts bigint, v bigint, n bigint"}

    def _readers(self) -> dict[str, Reader]:
        rolled, held = (
            KafkaMarkers(self._servers_of_kafka, "to_kafka", topic)
            for topic in ("dagster-jet-markers", "dagster-jet-markers-held")
        )
        return {
            "to_kafka": lambda: max(rolled(), held()),
            "to_table": TableMarkers(self._tables.url, "to_table"),
            "to_parquet": FileMarkers(self.folder / "out" / "raw"),
        }

    def _hidden(self) -> set[str]:
        return {"to_kafka"} if self.setting.held else set()

    def _feed_once(self, producer: Producer) -> None:
        rows = random_rows(self._files, ROWS, self.setting.seed + 1)
        write_input(self.folder / "in" / "left", self._files, rows)
        super()._feed_once(producer)

    def _epochs(self) -> int:
        return Round._epochs(self)

    def _in_order(self) -> dict[str, Iterable[tuple[Any, ...]]]:
        """Behind a stage with state there is no order."""
        return {}

    # --- the verdict ----------------------------------------------------------------------------

    def _judge(self) -> None:
        super()._judge()
        found = {sink: Counter(self._rows(sink)) for sink in SINKS}
        if differ := [sink for sink in SINKS if found[sink] != found[SINKS[0]]]:
            self.verdict.broken.append(f"{differ} have other rows than {SINKS[0]}")

    def _expected(self) -> dict[str, Rows]:
        """Expected rows of every sink; each key's rows are numbered from 1 without a gap."""
        rows = [
            *KafkaWorld(self._servers_of_kafka).rows("in"),
            *input_rows(self.folder / "in" / "left"),
        ]
        per_key = Counter(row["k"] for row in rows)
        numbers = Counter((k, n) for k, count in per_key.items() for n in range(1, count + 1))
        given = Counter((row["k"], row["ts"], row["v"]) for row in rows)
        return {
            name: expected
            for sink in SINKS
            for name, expected in ((f"{sink} rows", given), (f"{sink} numbers", numbers))
        }

    def _found(self, name: str) -> Rows:
        sink, _, what = name.partition(" ")
        rows = self._rows(sink)
        if what == "rows":
            return Counter((k, ts, v) for k, ts, v, _ in rows)
        return Counter((k, n) for k, _, _, n in rows)

    def _rows(self, sink: str) -> Iterable[tuple[Any, ...]]:
        if sink == "to_kafka":
            messages = KafkaWorld(self._servers_of_kafka).rows(TOPIC)
            return [tuple(row[name] for name in COLUMNS) for row in messages]
        if sink == "to_table":
            return self._tables.run(f"select {', '.join(COLUMNS)} from {TABLE}")
        return committed(self.folder / "out" / "raw", COLUMNS).elements()

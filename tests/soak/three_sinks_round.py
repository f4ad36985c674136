"""A round with two sources and three sinks, whose servers are victims, too.

The three outputs are compared with the input and with each other, by plain clients.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from ..integration.connectors.kafka_world import KafkaWorld
from ..integration.oracle import Rows, committed, input_rows
from ..integration.world import random_rows, write_input
from ..servers import SharedServer, launch, own_folder, stop
from ..servers import postgres as server
from ..servers.shared import new_run
from .kafka_round import KafkaRound
from .round import ROWS, Round, Verdict
from .three_sinks_driver import COLUMNS, TABLE, TOPIC
from .three_sinks_watch import SINKS, MarkerWatch


class ThreeSinksRound(KafkaRound):
    """Each turn of the feeder sends a batch of messages and puts a file."""

    driver_module = "tests.soak.three_sinks_driver"
    topics = (TOPIC,)
    _database: SharedServer | None = None
    _of_run: Path | None = None
    _tables: server.PostgresDatabase

    def play(self) -> Verdict:
        try:
            return super().play()
        finally:
            if self._of_run is not None:
                shutil.rmtree(self._of_run, ignore_errors=True)

    def _open_store(self) -> None:
        super()._open_store()
        self._of_run = new_run()  # a place that PostgreSQL's user can reach
        self._database_folder = own_folder("postgres")
        self._start_database()
        assert self._database is not None
        self._tables = server.new_database(self._database)
        self._tables.run(f"create table {TABLE} (k text, ts bigint, v bigint, n bigint)")
        (self.folder / "url").write_text(self._tables.url)
        self._watch = MarkerWatch(
            self._members, self._servers_of_kafka, self._tables.url, self.folder / "out" / "raw"
        )

    def _start_database(self) -> None:
        folder = self._database_folder
        self._database = launch("postgres", folder, server.prepared(folder))

    def _kill_all(self) -> None:
        with self._watch.watching():
            super()._kill_all()

    def _feed_once(self, producer: Producer) -> None:
        rows = random_rows(self._files, ROWS, self.setting.seed + 1)
        write_input(self.folder / "in" / "left", self._files, rows)
        super()._feed_once(producer)

    def _epochs(self) -> int:
        return Round._epochs(self)

    def _kill_server(self, victim: str) -> None:
        if victim != "database":
            super()._kill_server(victim)
            return
        assert self._database is not None
        stop(self._database, signal.SIGKILL)
        self._count(victim)
        time.sleep(self._rng.uniform(0, 2))
        self._start_database()

    def _end_all(self) -> None:
        super()._end_all()
        if self._database is not None:
            stop(self._database)

    # --- the verdict ----------------------------------------------------------------------------

    def _judge(self) -> None:
        super()._judge()
        found = {sink: Counter(self._rows(sink)) for sink in SINKS}
        if differ := [sink for sink in SINKS if found[sink] != found[SINKS[0]]]:
            self.verdict.broken.append(f"{differ} have other rows than {SINKS[0]}")
        self.verdict.broken += self._watch.ahead[:3]
        unseen = [sink for sink in SINKS if not self._watch.looked[sink]]
        if unseen:
            self.verdict.broken.append(f"no marker of {unseen} was ever compared")
        looked = ", ".join(f"{sink} {self._watch.looked[sink]}" for sink in SINKS)
        self.verdict.notes = (
            f"markers compared with the record: {looked}; ahead: {len(self._watch.ahead)}"
        )

    def _expected(self) -> dict[str, Rows]:
        """Of every sink: the rows, and that each key's are numbered from 1 without a gap."""
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

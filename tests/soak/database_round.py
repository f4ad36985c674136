"""A round out of Kafka into PostgreSQL and perhaps elsewhere; both servers are victims.

What is read by plain clients is compared with the input, and with what the job says of itself.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from ..integration.connectors.plain_markers import Reader
from ..servers import SharedServer, launch, own_folder, stop
from ..servers import postgres as server
from ..servers.proxy import Proxy
from ..servers.shared import new_run
from .kafka_round import KafkaRound
from .late_requests import CommitOfSql, LateRequests
from .marker_watch import MarkerWatch
from .round import Verdict


class DatabaseRound(KafkaRound):
    """A `KafkaRound` with a database, and a watch on the markers of its sinks."""

    tables: ClassVar[Mapping[str, str]]
    """Columns of the tables that are there before the job, by name."""
    _database: SharedServer | None = None
    _of_run: Path | None = None
    _tables: server.PostgresDatabase
    _watch: MarkerWatch
    _late_sql: LateRequests | None = None

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
        for name, columns in self.tables.items():
            self._tables.run(f"create table {name} ({columns})")
        proxy = Proxy(self._tables.port)
        self._late_sql = LateRequests(proxy, CommitOfSql, self.setting.seed + 1)
        self._late_sql.start()
        (self.folder / "url").write_text(self._tables.through(proxy.port))
        self._watch = MarkerWatch(self._members, self._readers(), self._hidden())

    def _readers(self) -> dict[str, Reader]:
        raise NotImplementedError

    def _hidden(self) -> set[str]:
        """Sinks whose markers plain readers see late."""
        return set()

    def _start_database(self) -> None:
        folder = self._database_folder
        self._database = launch("postgres", folder, server.prepared(folder))

    def _kill_all(self) -> None:
        self._watch.start()
        super()._kill_all()

    def _complete(self) -> None:
        super()._complete()
        self._watch.stop()

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
        if hasattr(self, "_watch"):
            self._watch.stop()
        super()._end_all()
        if self._late_sql is not None:
            self._late_sql.stop()
        if self._database is not None:
            stop(self._database)

    def _judge(self) -> None:
        super()._judge()
        left = self._tables.run(
            "select gid from pg_prepared_xacts where database = current_database()"
        )
        if left:
            self.verdict.broken.append(f"still prepared: {left[:3]}")
        self.verdict.broken += self._watch.broken()
        assert self._late_sql is not None
        self.verdict.notes += f"PostgreSQL: {self._late_sql.note()}\n"
        self.verdict.notes += self._watch.notes()

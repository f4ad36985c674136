"""A round from Kafka through a window into tables of PostgreSQL: appended, and put under a key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import psycopg

from ..integration.child import WINDOW_MS
from ..integration.connectors.kafka_world import KafkaWorld
from ..integration.connectors.plain_markers import Reader, TableMarkers
from ..integration.oracle import Rows, windowed
from .database_round import DatabaseRound
from .round import ROWS

_SELECTS = {
    "rows": "select k, ts, v from rows",
    "counts": "select k, (extract(epoch from window_start) * 1000)::bigint, "
    "(extract(epoch from window_end) * 1000)::bigint, n, total from counts",
}


class PostgresRound(DatabaseRound):
    """Read by a plain client, against what the topic has."""

    driver_module = "tests.soak.postgres_driver"
    topics = ()
    tables: ClassVar[Mapping[str, str]] = {
        "rows": "k text, ts bigint, v bigint, inserted bigserial",
        "counts": "k text, window_start timestamptz, window_end timestamptz, n bigint, "
        "total bigint, primary key (k, window_start)",
    }

    def _readers(self) -> dict[str, Reader]:
        return {sink: TableMarkers(self._tables.url, sink) for sink in ("rows_out", "counts_out")}

    def _epochs(self) -> int:
        """Number of committed epochs, by the rows in the table, as far as the database answers."""
        with suppress(psycopg.Error):
            [(count,)] = self._tables.run("select count(*) from rows")
            self._seen = max(self._seen, count // (2 * ROWS))
        return self._seen

    def _expected(self) -> dict[str, Rows]:
        rows = KafkaWorld(self._servers_of_kafka).rows("in")
        return {
            "rows": Counter((row["k"], row["ts"], row["v"]) for row in rows),
            "counts": windowed(rows, WINDOW_MS),
        }

    def _in_order(self) -> dict[str, Iterable[tuple[Any, ...]]]:
        """Held transactions insert at the same time."""
        in_order = f"{_SELECTS['rows']} order by inserted"
        return {} if self.setting.held else {"rows": self._tables.run(in_order)}

    def _found(self, name: str) -> Rows:
        return Counter(self._tables.run(_SELECTS[name]))

"""Connection that a committer keeps from one commit to the next."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_jet.connectors.sql.place import SqlPlace, sqlalchemy

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine


@dataclass
class KeptConnection:
    """Connects once for many commits. One caller at a time, on any thread; another one waits.

    For a small epoch, connecting and looking at the marker tables takes longer than the rows do.
    """

    place: SqlPlace
    found: set[str] = field(default_factory=set)
    """Names of marker tables, and ids of their rows, that are known to be there."""
    _engine: Engine | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Yields the connection, without a transaction. After an error it is closed and nothing is
        known: the next call connects as the first one. So does a call that finds another URL, such
        as one with a new password."""
        with self._lock:
            url = self.place.parsed()
            if self._engine is None or self._engine.url != url:
                self.close()
                self._engine = self.place.engine(keeps_connection=True)
                # Another server may answer now, without what was found on the former one.
                listen = sqlalchemy().event.listen
                listen(self._engine, "connect", lambda *_: self.found.clear())
            try:
                with self._engine.connect() as connection:
                    yield connection
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        engine, self._engine = self._engine, None
        self.found.clear()
        if engine is not None:
            engine.dispose()

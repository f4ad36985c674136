"""Catalogs of the soak's Iceberg tables: a REST server that can be killed, and a SQLite file."""

from __future__ import annotations

import http.client
import json
import re
import signal
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Protocol

import requests
from pyiceberg.catalog import load_catalog

from ..servers import SharedServer, iceberg_catalog, launch, stop
from ..servers.proxy import Proxy
from .lake_driver import SPACE
from .late_requests import LateRequests

DOWN = (ConnectionError, requests.RequestException)
"""Errors of a client whose catalog is killed, perhaps in the middle of an answer."""


class LakeCatalog(Protocol):
    """A catalog of one round.

    Attributes:
        of_job: properties of the job's client, without the token.
        of_clients: properties of a plain client.
        late: holds requests of the job back; None if there is no network between.
    """

    of_job: Mapping[str, str]
    of_clients: Mapping[str, str]
    late: LateRequests | None

    def mark(self, table: str) -> int:
        """Returns the marker of a table. Raises one of `DOWN` while the catalog is down."""

    def kill(self) -> None: ...

    def restart(self) -> None: ...

    def close(self) -> None: ...


class RestCatalog:
    """Commits all tables of a job together. It is down between `kill` and `restart`."""

    def __init__(self, folder: Path, warehouse: str, seed: int) -> None:
        (folder / "catalog").mkdir()
        self._folder, self._warehouse = folder / "catalog", warehouse
        self._server = self._launched(None)
        self._port = int(self._server.facts["port"])
        proxy = Proxy(self._port, is_http=True)
        self.late = LateRequests(proxy, lambda: is_change, seed, loses_answers=True)
        self.late.start()
        self.of_job = {"type": "rest", "uri": f"http://127.0.0.1:{proxy.port}"}
        self.of_clients = iceberg_catalog.RestCatalog(self._port).options

    def mark(self, table: str) -> int:
        return self.marks().get(table, 0)

    def marks(self) -> dict[str, int]:
        """Returns the marker of each table, all as of one moment."""
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)) as client:
            headers = {"Authorization": f"Bearer {iceberg_catalog.TOKEN}"}
            try:
                client.request("GET", f"/v1/marks/{SPACE}", headers=headers)
                answer = client.getresponse()
                text = answer.read()
            except http.client.HTTPException as error:
                raise ConnectionError(f"{type(error).__name__}: {error}") from error
        assert answer.status == 200, text
        found: dict[str, int] = json.loads(text)
        return found

    def kill(self) -> None:
        stop(self._server, signal.SIGKILL)

    def restart(self) -> None:
        self._server = self._launched(self._port)

    def close(self) -> None:
        self.late.stop()
        stop(self._server)

    def _launched(self, port: int | None) -> SharedServer:
        told = iceberg_catalog.prepared(
            self._folder, self._warehouse, port=port, state=self._folder / "state.json"
        )
        return launch("iceberg", self._folder, told)


class SqlCatalog:
    """Commits each table by itself; a file cannot be killed."""

    late = None

    def __init__(self, folder: Path, warehouse: str, storage: Mapping[str, str]) -> None:
        uri = f"sqlite:///{folder}/catalog.db"
        self.of_job = self.of_clients = {"type": "sql", "uri": uri, "warehouse": warehouse}
        self._storage = storage

    def mark(self, table: str) -> int:
        with closing(load_catalog("lake", **self.of_clients, **self._storage)) as catalog:
            properties = catalog.load_table(f"{SPACE}.{table}").properties
        ours = (value for key, value in properties.items() if key.startswith("dagster-jet/"))
        return max((int(value) for value in ours if re.fullmatch(r"\d{10,19}", value)), default=0)

    def kill(self) -> None: ...

    def restart(self) -> None: ...

    def close(self) -> None: ...


def is_change(sent: bytes) -> bool:
    """Whether a request changes one table, or several."""
    head = sent.partition(b"\r\n")[0]
    return head.startswith(b"POST") and (b"/tables/" in head or b"/transactions/commit" in head)

"""A REST catalog: Iceberg's own, in memory, with its own handlers of the protocol, in Java."""

from __future__ import annotations

import os
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.members import free_port

from .packages import fetch_jars
from .shared import ToStart, shared_server

TOKEN = "a-bearer-token"
_VERSION = "1.10.1"
_SERVER = Path(__file__).with_name("IcebergCatalog.java")


def install() -> None:
    """Installs it once, before the tests."""
    _jars()


@dataclass(frozen=True)
class RestCatalog:
    """The run's server; its tables are in a folder of it."""

    port: int

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, Any]:
        """Properties of a client, with the token in plain text."""
        return {"type": "rest", "uri": self.uri, "token": TOKEN}


def rest_catalog() -> RestCatalog:
    return RestCatalog(shared_server("iceberg", prepared).facts["port"])


def _jars() -> Path:
    return fetch_jars("iceberg", "org.apache.iceberg", "iceberg-core", _VERSION)


def prepared(
    folder: Path,
    warehouse: str | None = None,
    *,
    port: int | None = None,
    state: Path | None = None,
) -> ToStart:
    """Returns how a server is started.

    Args:
        warehouse: URL of its tables, by default in the folder.
        port: by default a free one.
        state: a file that has all tables, so that a server that was killed goes on with them. By
            default they end with the server.
    """
    import pyspark

    port, spark = port or free_port(), Path(pyspark.__file__).parent / "jars"
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    jars = ":".join([f"{_jars()}/*", *map(str, spark.glob("hadoop-client-api-*.jar"))])
    warehouse = warehouse or f"file://{folder}/warehouse"
    command = [java, "-Xmx256m", "-cp", jars, str(_SERVER), str(port), TOKEN, warehouse]
    command += [str(state)] if state else []
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/config", headers={"Authorization": f"Bearer {TOKEN}"}
    )

    def is_ready() -> bool:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)

    return ToStart(command, is_ready, {"port": port})

"""MariaDB, Debian's: one per run, for tests with databases of their own; or one to kill."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.members import free_port

from .packages import executable, install_packages
from .shared import SharedServer, ToStart, shared_server

USER, PASSWORD = "jet", "a-secret-word"


def install() -> None:
    """Installs it once, before the tests."""
    if executable("mariadbd", "/usr/sbin/mariadbd") is None:
        install_packages("mariadb-server")


@dataclass(frozen=True)
class MariaDatabase:
    """An empty database of a server, for one test."""

    port: int
    name: str
    user: str = USER
    password: str = PASSWORD

    @property
    def url(self) -> str:
        return self.through(self.port)

    def through(self, port: int) -> str:
        """The URL by way of another port: of a proxy."""
        return f"mariadb+pymysql://{self.user}:{self.password}@127.0.0.1:{port}/{self.name}"

    def run(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Runs a statement by a plain client."""
        import pymysql

        connection = pymysql.connect(
            host="127.0.0.1", port=self.port, user=self.user, password=self.password,
            database=self.name, autocommit=True, ssl_disabled=True,
        )  # fmt: skip
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, parameters or None)
                return list(cursor.fetchall())
        finally:
            connection.close()


def mariadb() -> MariaDatabase:
    """A new database on the run's server."""
    return new_database(shared_server("mariadb", prepared))


def new_database(server: SharedServer) -> MariaDatabase:
    name = f"db{uuid.uuid4().hex[:12]}"
    MariaDatabase(server.facts["port"], "mysql").run(f"create database {name}")
    return MariaDatabase(server.facts["port"], name)


def prepared(folder: Path) -> ToStart:
    """How a server is started in a folder; one that was there before keeps its data and port."""
    user = "mysql" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    data, port_file, first = folder / "data", folder / "port", folder / "first.sql"
    if not data.exists():
        port_file.write_text(str(free_port()))
        first.write_text(
            f"create user if not exists {USER}@'127.0.0.1' identified by '{PASSWORD}';\n"
            f"grant all privileges on *.* to {USER}@'127.0.0.1' with grant option;\n"
        )
        if os.geteuid() == 0:
            for path in (folder, first):
                shutil.chown(path, user, user)
        install_db = executable("mariadb-install-db")
        assert install_db is not None, "`python -m tests.servers` installs it"
        subprocess.run(
            [str(install_db), "--no-defaults", f"--datadir={data}", f"--user={user}",
             "--skip-test-db", "--innodb-flush-log-at-trx-commit=0"],
            check=True, capture_output=True, cwd=folder,
        )  # fmt: skip
    port = int(port_file.read_text())
    server = executable("mariadbd", "/usr/sbin/mariadbd")
    return ToStart(
        [
            str(server), "--no-defaults", f"--datadir={data}", f"--port={port}",
            "--bind-address=127.0.0.1", f"--socket={folder}/socket", f"--pid-file={folder}/pid",
            f"--init-file={first}", "--skip-name-resolve", "--innodb-buffer-pool-size=32M",
            "--innodb-flush-log-at-trx-commit=2", "--max-allowed-packet=64M",
        ],
        lambda: bool(MariaDatabase(port, "mysql").run("select 1")),
        {"port": port},
        user=user if os.geteuid() == 0 else None,
    )  # fmt: skip

"""PostgreSQL, Debian's: one per run, for tests with databases of their own; or one to kill."""

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
_PLACES = "/usr/lib/postgresql/*/bin"
_SETTINGS = {
    "wal_level": "logical",
    "max_prepared_transactions": "50",
    "max_connections": "60",
    "max_replication_slots": "20",
    "shared_buffers": "32MB",
    "fsync": "off",  # processes are killed here, machines are not
    "full_page_writes": "off",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
    "max_wal_size": "256MB",
    "dynamic_shared_memory_type": "mmap",  # in its folder: who is killed leaves nothing elsewhere
}


def install() -> None:
    """Installs it once, before the tests."""
    if executable("initdb", f"{_PLACES}/initdb") is None:
        install_packages("postgresql")


@dataclass(frozen=True)
class PostgresDatabase:
    """An empty database of the run's server, for one test."""

    port: int
    name: str
    user: str = USER
    password: str = PASSWORD

    @property
    def url(self) -> str:
        return self.through(self.port)

    def through(self, port: int) -> str:
        """The URL by way of another port: of a proxy."""
        return f"postgresql://{self.user}:{self.password}@127.0.0.1:{port}/{self.name}"

    @property
    def dagster_variables(self) -> dict[str, str]:
        """Variables by which `deploy/dagster.yaml` finds its storage."""
        return {
            "DAGSTER_POSTGRES_HOST": "127.0.0.1",
            "DAGSTER_POSTGRES_PORT": str(self.port),
            "DAGSTER_POSTGRES_USER": self.user,
            "DAGSTER_POSTGRES_PASSWORD": self.password,
            "DAGSTER_POSTGRES_DB": self.name,
        }

    def run(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Runs a statement by a plain client."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []


def postgres() -> PostgresDatabase:
    """A new database on the run's server."""
    return new_database(postgres_server())


def postgres_server() -> SharedServer:
    return shared_server("postgres", prepared)


def new_database(server: SharedServer) -> PostgresDatabase:
    name = f"db{uuid.uuid4().hex[:12]}"
    PostgresDatabase(server.facts["port"], "postgres").run(f"create database {name}")
    return PostgresDatabase(server.facts["port"], name)


def prepared(folder: Path, **settings: str) -> ToStart:
    """How a server is started in a folder; one that was there before keeps its data and port."""
    user = _other_user()
    data, port_file, secret = folder / "data", folder / "port", folder / "password"
    if not data.exists():
        port_file.write_text(str(free_port()))
        secret.write_text(PASSWORD)
        if user:
            for path in (folder, secret):
                shutil.chown(path, user, user)
        subprocess.run(
            [
                _program("initdb"), "-D", str(data), "-U", USER, f"--pwfile={secret}",
                "--auth=scram-sha-256", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8",
            ],
            check=True, capture_output=True, user=user, group=user,
            extra_groups=[] if user else None, cwd=folder,
        )  # fmt: skip
    _forget_killed(data)
    port = int(port_file.read_text())
    chosen = {**_SETTINGS, "port": str(port), **settings}
    return ToStart(
        [
            _program("postgres"), "-D", str(data),
            *(word for name, value in chosen.items() for word in ("-c", f"{name}={value}")),
        ],
        lambda: bool(PostgresDatabase(port, "postgres").run("select 1")),
        {"port": port},
        user=user,
    )  # fmt: skip


def _forget_killed(data: Path) -> None:
    """A server that was killed has left its lock; where nobody reaps it, it seems to be running."""
    (data / "postmaster.pid").unlink(missing_ok=True)  # `stop` has waited for its end


def _program(name: str) -> str:
    found = executable(name, f"{_PLACES}/{name}")
    assert found is not None, "`python -m tests.servers` installs it"
    return str(found)


def _other_user() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return pwd.getpwnam("nobody").pw_name

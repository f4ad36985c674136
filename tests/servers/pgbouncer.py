"""PgBouncer, Debian's: few connections to a database for many clients."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.members import free_port

from .packages import executable, install_packages
from .postgres import PASSWORD, USER
from .shared import ToStart, launch, own_folder, stop

_PLACE = "/usr/sbin/pgbouncer"


def install() -> None:
    """Installs it once, before the tests."""
    if executable("pgbouncer", _PLACE) is None:
        install_packages("pgbouncer")


@contextmanager
def pooler(target_port: int, mode: str) -> Iterator[int]:
    """The port of one that passes on what comes to a server of ours.

    Args:
        mode: "session": a client has a connection until it goes; "transaction": for a transaction.
    """
    folder = own_folder("pgbouncer")
    running = launch("pgbouncer", folder, prepared(folder, target_port, mode))
    try:
        yield int(running.facts["port"])
    finally:
        stop(running)


def prepared(folder: Path, target_port: int, mode: str) -> ToStart:
    """How one is started in a folder."""
    port, settings = free_port(), folder / "pgbouncer.ini"
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    settings.write_text(
        "[databases]\n"
        f"* = host=127.0.0.1 port={target_port} user={USER} password={PASSWORD}\n"
        "[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = any\npool_mode = {mode}\ndefault_pool_size = 5\n"
    )
    if user is not None:
        shutil.chown(settings, user, user)
    program = executable("pgbouncer", _PLACE)
    assert program is not None, "`python -m tests.servers` installs it"
    return ToStart([str(program), str(settings)], lambda: _answers(port), {"port": port}, user=user)


def _answers(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True

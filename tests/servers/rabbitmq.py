"""RabbitMQ, Debian's: one per run, for tests with queues of their own; or one to kill."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.members import free_port

from .packages import executable, install_packages
from .shared import SharedServer, ToStart, shared_server

USER, PASSWORD = "jet", "a-secret-word"
_PLACE = "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"
_CONTROL = "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmqctl"


def install() -> None:
    """Installs it once, before the tests."""
    if executable("rabbitmq-server", _PLACE) is None:
        install_packages("rabbitmq-server")


@dataclass(frozen=True)
class RabbitQueue:
    """A queue for one test, by a plain client."""

    port: int
    name: str

    @property
    def url(self) -> str:
        return self.through(self.port)

    def through(self, port: int) -> str:
        """The URL by way of another port: of a proxy."""
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{port}/%2F"

    @contextmanager
    def channel(self) -> Iterator[Any]:
        import pika

        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()

    def declare(self, kind: str = "classic", **arguments: Any) -> RabbitQueue:
        with self.channel() as channel:
            given = {"x-queue-type": kind, **arguments}
            channel.queue_declare(self.name, durable=True, arguments=given)
        return self

    def delete(self) -> None:
        with self.channel() as channel:
            channel.queue_delete(self.name)

    def send(self, rows: Iterable[Mapping[str, Any] | bytes], ids: Iterable[Any] = ()) -> None:
        """Sends messages in one transaction, so that the queue has them; with these ids, or new
        ones."""
        import pika

        given = iter(ids)
        with self.channel() as channel:
            channel.tx_select()
            for row in rows:
                body = row if isinstance(row, bytes) else json.dumps(row).encode()
                properties = pika.BasicProperties(
                    message_id=str(next(given, uuid.uuid4().hex)), delivery_mode=2
                )
                channel.basic_publish("", self.name, body, properties)
            channel.tx_commit()

    def left(self) -> int:
        """Number of messages that nobody has taken."""
        with self.channel() as channel:
            return int(channel.queue_declare(self.name, passive=True).method.message_count)


def the_server() -> SharedServer:
    """The run's."""
    return shared_server("rabbitmq", prepared)


def rabbitmq(kind: str = "classic", **arguments: Any) -> RabbitQueue:
    """A new queue on the run's server."""
    return new_queue(the_server(), kind, **arguments)


def new_queue(server: SharedServer, kind: str = "classic", **arguments: Any) -> RabbitQueue:
    name = f"q-{uuid.uuid4().hex[:12]}"
    return RabbitQueue(server.facts["port"], name).declare(kind, **arguments)


def control(server: SharedServer, *words: str) -> str:
    """`rabbitmqctl`, which takes more than half a second."""
    folder, program = Path(server.folder), executable("no-wrapper", _CONTROL)
    port, epmd, _ = _ports(folder)
    named = {"HOME": str(folder), "RABBITMQ_NODENAME": f"n{port}@localhost"}
    reached = {"ERL_EPMD_PORT": str(epmd), "RABBITMQ_CONF_ENV_FILE": "/dev/null"}
    done = subprocess.run(
        [str(program), *words],
        env=os.environ | named | reached,
        user="rabbitmq" if os.geteuid() == 0 else None,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_down(server: SharedServer) -> None:
    """Queues that were declared are on its disk from now on; the server itself writes them down
    some moments later, and one that is killed before has lost them."""
    control(server, "eval", "mnesia:sync_log(), [dets:sync(Table) || Table <- dets:all()].")


def _ports(folder: Path) -> list[int]:
    """Ports of clients, of epmd, of peers."""
    return [int(word) for word in (folder / "ports").read_text().split()]


def prepared(folder: Path, **settings: str) -> ToStart:
    """How a server is started in a folder; one that was there before keeps its data and ports.

    Its node has a name and ports of its own, and an epmd of its own, which ends with it.
    """
    user = "rabbitmq" if os.geteuid() == 0 else None
    ports_file, config = folder / "ports", folder / "rabbitmq.conf"
    if not ports_file.exists():
        ports_file.write_text(" ".join(str(free_port()) for _ in range(3)))
        own = "".join(f"{name} = {value}\n" for name, value in settings.items())
        config.write_text(f"default_user = {USER}\ndefault_pass = {PASSWORD}\n{own}")
        (folder / "plugins").write_text("[].\n")
        if user:
            pwd.getpwnam(user)
            for path in (folder, *folder.iterdir()):
                if path.name != "log":
                    shutil.chown(path, user, user)
    port, epmd, peers = _ports(folder)
    server = executable("rabbitmq-server", _PLACE)
    assert server is not None, "`python -m tests.servers` installs it"
    # Debian's wrapper on the path changes user and folders; the script behind it does not.
    real = executable("no-wrapper", _PLACE) or server
    epmd_program = executable("epmd", "/usr/lib/erlang/erts-*/bin/epmd")
    # The node would start a daemon, which outlives it; this one is in the keeper's group.
    command = ["/bin/sh", "-c", '"$1" & exec "$0"', str(real), str(epmd_program)]
    return ToStart(
        command,
        lambda: answers(port),
        {"port": port},
        environment={
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"n{port}@localhost",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(peers),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none",
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        },
        user=user,
    )


def answers(port: int) -> bool:
    """Whether a client gets a channel."""
    with RabbitQueue(port, "").channel() as channel:
        return bool(channel.is_open)

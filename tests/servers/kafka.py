"""Apache Kafka as one KRaft node, from its Maven artifacts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .packages import fetch_jars
from .shared import SharedServer, ToStart, free_port, shared_server

VERSION = "4.1.0"
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
"""A random one may begin with a dash, and is taken for an option then."""
_JAVA = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},PROXIED://127.0.0.1:{proxied}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},PROXIED://127.0.0.1:{proxy}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
log.segment.delete.delay.ms=100
"""


def install() -> None:
    """Once, before the tests."""
    fetch_jars("kafka", "org.apache.kafka", "kafka_2.13", VERSION)


def kafka() -> str:
    """`host:port` of the run's broker."""
    return str(kafka_server().facts["servers"])


def kafka_server() -> SharedServer:
    return shared_server("kafka", prepared)


def prepared(folder: Path, *, proxied: int | None = None, proxy: int | None = None) -> ToStart:
    """How a broker is started in a folder; one that was there before keeps its data and ports.

    Args:
        proxied: the port of a second listener.
        proxy: where clients of that one are told to connect to.
    """
    jars = fetch_jars("kafka", "org.apache.kafka", "kafka_2.13", VERSION)
    properties = folder / "server.properties"
    java = str(Path(os.environ["JAVA_HOME"], "bin", "java")) if "JAVA_HOME" in os.environ else None
    command = [java or shutil.which("java") or "java", *_JAVA, "-cp", f"{jars}/*"]
    if properties.exists():
        port = int((folder / "port").read_text())
    else:
        port, proxied = free_port(), proxied or free_port()
        properties.write_text(
            _PROPERTIES.format(
                port=port,
                controller=free_port(),
                proxied=proxied,
                proxy=proxy or proxied,
                folder=folder,
            )
        )
        subprocess.run(
            [*command, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(properties)],
            check=True,
            capture_output=True,
        )
        (folder / "port").write_text(str(port))
    servers = f"127.0.0.1:{port}"
    return ToStart(
        [*command, "kafka.Kafka", str(properties)],
        lambda: answers(servers),
        {"servers": servers, "port": port},
    )


def answers(servers: str) -> bool:
    """Whether a client finds the broker."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    return bool(admin.list_topics(timeout=2).brokers)

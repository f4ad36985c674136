"""Apache Kafka as one KRaft node, from its Maven artifacts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from .packages import fetch_jars
from .shared import SharedServer, ToStart, free_port, shared_server

VERSION = "4.1.0"
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
"""A random one may begin with a dash, and is taken for an option then."""
USER, PASSWORD = "limited", "hush-hush"
"""Of the SASL listener: may do nothing, until a test grants it. Who comes without may do all."""
_JAVA = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},PROXIED://127.0.0.1:{proxied},SASL_PLAINTEXT://127.0.0.1:{sasl}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},PROXIED://127.0.0.1:{proxy},SASL_PLAINTEXT://127.0.0.1:{sasl}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.sasl_plaintext.plain.sasl.jaas.config=\\
  org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config=\\
  org.apache.kafka.common.security.scram.ScramLoginModule required;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
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
        proxy: where clients of that one are told to connect to; a test puts a `Proxy` there.
    """
    jars = fetch_jars("kafka", "org.apache.kafka", "kafka_2.13", VERSION)
    properties = folder / "server.properties"
    java = str(Path(os.environ["JAVA_HOME"], "bin", "java")) if "JAVA_HOME" in os.environ else None
    command = [java or shutil.which("java") or "java", *_JAVA, "-cp", f"{jars}/*"]
    if properties.exists():
        ports = json.loads((folder / "ports").read_text())
    else:
        ports = {
            "port": free_port(),
            "proxied": proxied or free_port(),
            "proxy": proxy or free_port(),
            "sasl": free_port(),
        }
        properties.write_text(
            _PROPERTIES.format(
                **ports, controller=free_port(), folder=folder, user=USER, password=PASSWORD
            )
        )
        subprocess.run(
            [*command, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(properties)],
            check=True,
            capture_output=True,
        )
        (folder / "ports").write_text(json.dumps(ports))
    servers = f"127.0.0.1:{ports['port']}"
    return ToStart(
        [*command, "kafka.Kafka", str(properties)],
        lambda: answers(servers),
        {"servers": servers, "sasl_servers": f"127.0.0.1:{ports['sasl']}", **ports},
    )


def answers(servers: str) -> bool:
    """Whether a client finds the broker."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    return bool(admin.list_topics(timeout=2).brokers)

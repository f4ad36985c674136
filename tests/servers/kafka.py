"""Apache Kafka as one KRaft node, from its Maven artifacts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from tests.servers.members import _self_signed, free_port

from .packages import fetch_jars
from .proxy import Proxy
from .shared import SharedServer, ToStart, shared_server

VERSION = "4.1.0"
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
"""A random one may begin with a dash, and is taken for an option then."""
USER, PASSWORD = "limited", "hush-hush"
"""User of the SASL listener, with no rights until a test grants some. Clients without a user have
all rights."""
PROXIED = ("outage", "held", "contracts", "late")
"""Listeners whose clients are sent to a `Proxy`: one for each file of tests that has one, because
they run at the same time."""
_JAVA = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners={listeners}
advertised.listeners={advertised}
controller.listener.names=CONTROLLER
listener.security.protocol.map={protocols}
ssl.keystore.type=PEM
ssl.keystore.location={folder}/server.pem
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.sasl_plaintext.plain.sasl.jaas.config=\\
  org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config=\\
  org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config=\\
  org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
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
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=300
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
log.segment.delete.delay.ms=100
"""


def install() -> None:
    """Installs it once, before the tests."""
    fetch_jars("kafka", "org.apache.kafka", "kafka_2.13", VERSION)


def kafka() -> str:
    """`host:port` of the run's broker."""
    return str(kafka_server().facts["servers"])


def kafka_server() -> SharedServer:
    return shared_server("kafka", prepared)


def network(name: str) -> Proxy:
    """Proxy whose clients are sent back through it by the broker; one of `PROXIED`."""
    ports = kafka_server().facts
    return Proxy(ports[name], port=ports[f"{name}_proxy"])


def prepared(folder: Path, host: str = "127.0.0.1") -> ToStart:
    """Starts a broker in a folder; one that was there before keeps its data and ports."""
    jars = fetch_jars("kafka", "org.apache.kafka", "kafka_2.13", VERSION)
    properties = folder / "server.properties"
    java = str(Path(os.environ["JAVA_HOME"], "bin", "java")) if "JAVA_HOME" in os.environ else None
    command = [java or shutil.which("java") or "java", *_JAVA, "-cp", f"{jars}/*"]
    if properties.exists():
        ports = json.loads((folder / "ports").read_text())
    else:
        names = ["port", "controller", "sasl", "tls"]
        names += [name + end for name in PROXIED for end in ("", "_proxy")]
        ports = {name: free_port() for name in names}
        certificate, key = _self_signed(folder)
        (folder / "server.pem").write_bytes(key.read_bytes() + certificate.read_bytes())
        properties.write_text(
            _PROPERTIES.format(
                **_listeners(ports, host), folder=folder, host=host, controller=ports["controller"],
                user=USER, password=PASSWORD,
            )
        )  # fmt: skip
        subprocess.run(
            [*command, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(properties)],
            check=True,
            capture_output=True,
        )
        (folder / "ports").write_text(json.dumps(ports))
    servers = f"{host}:{ports['port']}"
    return ToStart(
        [*command, "kafka.Kafka", str(properties)],
        lambda: answers(servers),
        {
            "servers": servers,
            "sasl_servers": f"{host}:{ports['sasl']}",
            "tls_servers": f"{host}:{ports['tls']}",
            "certificate": f"{folder}/certificate.pem",
            **ports,
        },
    )


def _listeners(ports: dict[str, int], host: str) -> dict[str, str]:
    """Settings of the broker: where it listens, and what it tells its clients of that."""
    own = {
        "PLAINTEXT": ports["port"],
        "CONTROLLER": ports["controller"],
        "SASL_PLAINTEXT": ports["sasl"],
        "SASL_SSL": ports["tls"],
    }
    through = {name.upper(): ports[name] for name in PROXIED}
    told = {**own, **{name.upper(): ports[f"{name}_proxy"] for name in PROXIED}}
    del told["CONTROLLER"]

    def places(of: dict[str, int]) -> str:
        return ",".join(f"{name}://{host}:{port}" for name, port in of.items())

    named = [f"{n}:{n if 'SASL' in n else 'PLAINTEXT'}" for n in (*own, *through)]
    return {
        "listeners": places({**own, **through}),
        "advertised": places(told),
        "protocols": ",".join(named),
    }


def answers(servers: str) -> bool:
    """Whether a client finds the broker."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    return bool(admin.list_topics(timeout=2).brokers)

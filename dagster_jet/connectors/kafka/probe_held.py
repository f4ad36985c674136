"""Whether Kafka keeps a transaction whose producer has gone: tried with a topic of its own.

A probe that dies leaves the topic `jet-probe-...`; its transaction ends by itself after ten
minutes.
"""

from __future__ import annotations

import re
import secrets
from contextlib import closing, suppress

from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    Troubles,
    admin_library,
    client_library,
    error_of,
    is_lasting,
    said,
)
from dagster_jet.connectors.kafka.coordinator import TransactionCoordinator
from dagster_jet.connectors.kafka.transactions import TRANSACTION_MAX_S, new_client
from dagster_jet.core.findings import Finding, answered
from dagster_jet.errors import ConfigurationError, JetError, MissingEnvironmentError, SinkError

RESTART = "Does it keep a transaction that is held when its brokers are restarted?"
_DISCONNECT = "Does it keep a transaction that is held when its producer has gone?"
_HELD = 'Only sinks.kafka(transactions="held") needs that; the default does not.'
_NAME = re.compile(r"jet-probe-[0-9a-f]{12}")
_CALL_S = 10.0
_OPEN = "Ongoing"


def probe_held(cluster: Cluster) -> list[Finding]:
    """Both questions; the second one cannot be answered by now.

    Raises:
        KafkaException, JetError: it cannot be reached.
    """
    unknown = answered(
        RESTART,
        None,
        unknown=f"They were not restarted. {_HELD}",
        cure="Run this with --leave, restart the brokers, then run it with --find within ten "
        "minutes.",
    )
    try:
        name = leave(cluster)
        is_there = _given_up(cluster, name)
    except (MissingEnvironmentError, SinkError) as error:
        why = f"It cannot be tried: {error.message} {_HELD}"
        return [answered(_DISCONNECT, None, unknown=why, cure=error.cure or ""), unknown]
    except client_library().KafkaException as error:
        raised = error_of(error)
        if raised is None or not is_lasting(raised):
            raise
        return [
            answered(_DISCONNECT, None, unknown=f"It cannot be tried: {said(raised)}. {_HELD}"),
            unknown,
        ]
    held = 'sinks.kafka(transactions="held") can be used.'
    found = answered(_DISCONNECT, is_there, yes=f"It was found again. {held}", no=f"Gone. {_HELD}")
    return [found, unknown]


def leave(cluster: Cluster) -> str:
    """Leaves an open transaction with one message behind, in a topic of its own, and returns the
    name to `find` it by. Raises as `probe_held`."""
    name = f"jet-probe-{secrets.token_hex(6)}"
    with closing(_coordinator(cluster)) as coordinator:
        coordinator.describe(_id(name))  # so that nothing is left that cannot be found
    administration = admin_library()
    admin = administration.AdminClient(cluster.settings(error_cb=Troubles()))
    admin.create_topics([administration.NewTopic(name, 1)])[name].result(_CALL_S)
    client = new_client(cluster, _id(name), TRANSACTION_MAX_S)
    client.init_transactions(_CALL_S)
    client.begin_transaction()
    client.produce(name, b"probe")
    if client.flush(_CALL_S):
        raise JetError(f"the message for the topic {name} was not taken within {_CALL_S:g} s.")
    return name  # the client goes, its transaction stays open


def find(cluster: Cluster, name: str) -> list[Finding]:
    """Whether what `leave` has left is open still; gives it up, and removes the topic.

    Raises:
        ConfigurationError: that is no name that `leave` gives out.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"--find: {name!r} is no name that --leave gives out.", cure="It begins: jet-probe-."
        )
    return [
        answered(
            RESTART,
            _given_up(cluster, name),
            yes="It was found, and is given up now.",
            no='It is gone, perhaps because its ten minutes are over: transactions="held" would '
            "have to roll the epoch forward.",
            cure='Use transactions="roll-forward", the default, which holds nothing.',
            needed=True,
        )
    ]


def _given_up(cluster: Cluster, name: str) -> bool:
    """Whether it was open until now."""
    with closing(_coordinator(cluster)) as coordinator:
        found = coordinator.describe(_id(name))
        is_open = found is not None and found.state == _OPEN
        if found is not None and is_open:
            ids = found.producer_id, found.producer_epoch
            is_open = coordinator.end(_id(name), *ids, commit=False)
    admin = admin_library().AdminClient(cluster.settings(error_cb=Troubles()))
    with suppress(client_library().KafkaException):
        admin.delete_topics([name])[name].result(_CALL_S)
    return is_open


def _coordinator(cluster: Cluster) -> TransactionCoordinator:
    return TransactionCoordinator(cluster, "probe", "probe")


def _id(name: str) -> str:
    return f"dagster_jet/{name}"

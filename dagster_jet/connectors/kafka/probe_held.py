"""Probes whether Kafka keeps a transaction whose producer has ended, with a topic of its own.

If it crashes, the topic `jet-probe-...` remains; its transaction times out after ten minutes.
"""

from __future__ import annotations

import re
import secrets
from contextlib import closing, suppress

from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    LastError,
    admin_library,
    client_library,
    error_of,
    is_lasting,
    said,
)
from dagster_jet.connectors.kafka.transaction_coordinator import TransactionCoordinator
from dagster_jet.connectors.kafka.transactions import TRANSACTION_MAX_S, new_client
from dagster_jet.core.answers import Answer, answered
from dagster_jet.errors import ConfigurationError, JetError, MissingEnvironmentError, SinkError

RESTART = "Does it keep a transaction that is held when its brokers are restarted?"
_DISCONNECT = "Does it keep a transaction that is held when its producer has gone?"
_HELD = 'Only sinks.kafka(transactions="held") needs that; the default does not.'
_NAME = re.compile(r"jet-probe-[0-9a-f]{12}")
_CALL_S = 10.0
_OPEN = "Ongoing"


def probe_held(cluster: Cluster) -> list[Answer]:
    """Returns both answers; the one about a restart is still unknown.

    Raises:
        KafkaException, JetError: the cluster cannot be reached.
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
    """Leaves an open transaction with one message in a topic of its own, and returns its name for
    `find`. Raises as `probe_held`."""
    name = f"jet-probe-{secrets.token_hex(6)}"
    with closing(_coordinator(cluster)) as coordinator:
        coordinator.describe(_id(name))  # fails before anything is left that `find` could not query
    administration = admin_library()
    admin = administration.AdminClient(cluster.settings(error_cb=LastError()))
    admin.create_topics([administration.NewTopic(name, 1)])[name].result(_CALL_S)
    client = new_client(cluster, _id(name), TRANSACTION_MAX_S)
    client.init_transactions(_CALL_S)
    client.begin_transaction()
    client.produce(name, b"probe")
    if client.flush(_CALL_S):
        raise JetError(f"the message for the topic {name} was not taken within {_CALL_S:g} s.")
    return name  # the client ends, its transaction stays open


def find(cluster: Cluster, name: str) -> list[Answer]:
    """Checks whether the transaction of `leave` is still open; aborts it and deletes the topic.

    Raises:
        ConfigurationError: the name is not one that `leave` returns.
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
    """Aborts the transaction and deletes the topic; returns whether it was open."""
    with closing(_coordinator(cluster)) as coordinator:
        found = coordinator.describe(_id(name))
        is_open = found is not None and found.state == _OPEN
        if found is not None and is_open:
            ids = found.producer_id, found.producer_epoch
            is_open = coordinator.end(_id(name), *ids, commit=False)
    admin = admin_library().AdminClient(cluster.settings(error_cb=LastError()))
    with suppress(client_library().KafkaException):
        admin.delete_topics([name])[name].result(_CALL_S)
    return is_open


def _coordinator(cluster: Cluster) -> TransactionCoordinator:
    return TransactionCoordinator(cluster, "probe", "probe")


def _id(name: str) -> str:
    return f"dagster_jet/{name}"

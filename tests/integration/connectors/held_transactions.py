"""Lists a broker's open transactions."""

from __future__ import annotations

from contextlib import closing

from kafka import KafkaAdminClient

from .kafka_world import KafkaWorld


def transaction_states(kafka: KafkaWorld, store: str) -> dict[str, str]:
    """States of a store's transactions, by the last part of their ids."""
    mine = f"dagster_jet/{store}/"
    return {
        id.rpartition("/")[2]: state
        for id, state in _states(kafka.servers).items()
        if id.startswith(mine)
    }


def open_transactions(kafka: KafkaWorld, store: str) -> set[str]:
    """Ids of a store's open transactions."""
    states = transaction_states(kafka, store)
    return {part for part, state in states.items() if state == "Ongoing"}


def still_open(servers: str) -> list[str]:
    """Ids of all open transactions of a broker."""
    return sorted(id for id, state in _states(servers).items() if state == "Ongoing")


def _states(servers: str) -> dict[str, str]:
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        listed = [one for some in admin.list_transactions().values() for one in some]
    return {one.transactional_id: one.state.value for one in listed}

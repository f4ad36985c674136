"""What a broker says of the transactions that are open."""

from __future__ import annotations

from kafka import KafkaAdminClient

from .kafka_world import KafkaWorld


def transaction_states(kafka: KafkaWorld, store: str) -> dict[str, str]:
    """By the last part of their ids, those of a store."""
    admin = KafkaAdminClient(bootstrap_servers=kafka.servers)
    listed = [one for some in admin.list_transactions().values() for one in some]
    admin.close()
    mine = f"dagster_jet/{store}/"
    return {
        one.transactional_id.rpartition("/")[2]: one.state.value
        for one in listed
        if one.transactional_id.startswith(mine)
    }


def open_transactions(kafka: KafkaWorld, store: str) -> set[str]:
    """Those of a store."""
    states = transaction_states(kafka, store)
    return {part for part, state in states.items() if state == "Ongoing"}

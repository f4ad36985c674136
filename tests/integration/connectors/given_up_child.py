"""Producers that are given up right after they have produced, many at a time: a fault of the client
library would end this process."""

from __future__ import annotations

import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from dagster_jet.connectors.kafka.cluster import Cluster
from dagster_jet.connectors.kafka.markers import Owner
from dagster_jet.connectors.kafka.producing import EpochProducer


def give_up(servers: str, topic: str, number: int) -> None:
    owner = Owner("s", "n", "given_up", f"{topic}-{number}")
    producer = EpochProducer(Cluster(servers), topic, topic, owner)
    client = producer.client = producer._new_client()
    client.list_topics(topic, timeout=10)  # connected: the next call does not wait for that
    client.init_transactions(30)
    client.begin_transaction()
    for value in range(4):
        client.produce(topic, f"{value}", f"{value}")
    del client
    time.sleep(random.random() * 0.002)  # in which the partitions are added to the transaction
    producer.give_up()


def main(servers: str, topic: str, count: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(give_up, servers, topic, n) for n in range(int(count))]:
            done.result()


if __name__ == "__main__":
    main(*sys.argv[1:])

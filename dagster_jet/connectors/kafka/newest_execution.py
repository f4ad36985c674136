"""Newest execution that writes to a sink, so that tasks of a dead one stop.

Tasks outlive a dead driver for a while. A transaction that one leaves open would block readers of
the topic, and opening one aborts the open transaction of the same id. So an execution notes its id
before it looks for open transactions. A writer checks the note before it opens a transaction and
again before it leaves it open; so one that the execution has not found aborts itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_jet.connectors.staging import StoreArea
from dagster_jet.store import ReplicatedMap
from dagster_jet.store.map.stored_key import VERSION_BYTES, version_of

_KEY = "execution"


@dataclass(frozen=True)
class NewestExecution:
    """Note of a job's newest execution, per sink, in the job's store."""

    area: StoreArea

    def note(self, execution_id: int) -> None:
        """Notes the id unless a newer one is noted; safe if the request arrives late."""
        map = self._map()
        map.put_newer({map.key(_KEY): execution_id.to_bytes(VERSION_BYTES, "big")})

    def noted(self) -> int:
        """Returns the noted id; 0 if there is none."""
        map = self._map()
        found = map.get(map.key(_KEY), every_replica=True)
        return 0 if found is None else version_of(found)

    def _map(self) -> ReplicatedMap:
        return self.area.store.map(f"jobs/{self.area.job}/held/{self.area.sink}")

"""Which execution of a job writes to a sink now, so that tasks of a dead one find out.

Tasks go on for a while when their driver is dead. A transaction that one of them left open would
hold back who reads the topic, and to open one aborts what is open under its id. So an execution
notes itself before it looks for open transactions, and a writer looks at the note before it opens
one, and again before it leaves it open: what the execution has not found gives itself up.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_jet.connectors.staging import StoreArea
from dagster_jet.store import ReplicatedMap
from dagster_jet.store.map.stored_key import VERSION_BYTES, version_of

_KEY = "execution"


@dataclass(frozen=True)
class NewestExecution:
    """Of a job, at one of its sinks; in the job's store."""

    area: StoreArea

    def note(self, execution_id: int) -> None:
        """Notes it, unless a newer one is; also where the request arrives late."""
        map = self._map()
        map.put_newer({map.key(_KEY): execution_id.to_bytes(VERSION_BYTES, "big")})

    def noted(self) -> int:
        """Its id; 0: none."""
        map = self._map()
        found = map.get(map.key(_KEY), every_replica=True)
        return 0 if found is None else version_of(found)

    def _map(self) -> ReplicatedMap:
        return self.area.store.map(f"jobs/{self.area.job}/held/{self.area.sink}")

"""What the demo knows about the job: from Dagster as a browser sees it, and from the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dagster_jet import ExecutionRecord, Jet
from demo.dagster_process import GraphqlError, graphql

PIPELINE = "airport_delays"
DAGSTER_JOB = "airport_delays_job"
ASSETS = ("hourly_delays", "hourly_out", "badly_delayed_out", "bad_rows")

_MATERIALIZATIONS = """
query Latest($keys: [AssetKeyInput!]!) {
  assetNodes(assetKeys: $keys) {
    assetKey { path }
    assetMaterializations(limit: 1) {
      runId
      metadataEntries { label ... on IntMetadataEntry { intValue } }
    }
  }
}
"""

_RUNS = """
query Runs($job: String!) {
  runsOrError(filter: {pipelineName: $job}, limit: 50) {
    ... on Runs { results { id status creationTime startTime tags { key value } } }
  }
}
"""


@dataclass(frozen=True)
class Run:
    """A Dagster run of the demo's job."""

    run_id: str
    status: str
    requested_at: float


@dataclass(frozen=True)
class Progress:
    """The numbers in the newest materialization of each asset."""

    numbers: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def rows_committed(self) -> int:
        """Source rows whose effects are committed, as Dagster plots it."""
        return max((n.get("rows_read", 0) for n in self.numbers.values()), default=0)

    @property
    def late(self) -> int:
        return sum(numbers.get("late_rows", 0) for numbers in self.numbers.values())


@dataclass(frozen=True)
class Observer:
    """Looks, changes nothing."""

    url: str
    jet: Jet

    def record(self) -> ExecutionRecord | None:
        return self.jet.job(PIPELINE).record()

    def progress(self) -> Progress:
        """Return what Dagster shows now; nothing if it is too busy to answer."""
        keys = [{"path": [PIPELINE, name]} for name in ASSETS]
        try:
            nodes = graphql(self.url, _MATERIALIZATIONS, {"keys": keys})["assetNodes"]
        except GraphqlError:
            return Progress()
        return Progress({node["assetKey"]["path"][-1]: _numbers(node) for node in nodes})

    def runs(self, job: str = DAGSTER_JOB) -> list[Run]:
        """Return a job's runs, oldest first; by default the stream's."""
        results = graphql(self.url, _RUNS, {"job": job})["runsOrError"]["results"]
        found = [Run(run["id"], run["status"], run["creationTime"]) for run in results]
        return sorted(found, key=lambda run: run.requested_at)


def _numbers(node: dict[str, Any]) -> dict[str, int]:
    return {
        entry["label"]: entry["intValue"]
        for materialization in node["assetMaterializations"]
        for entry in materialization["metadataEntries"]
        if entry.get("intValue") is not None
    }

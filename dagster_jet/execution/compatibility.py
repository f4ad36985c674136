"""Checks whether a pipeline can continue from a snapshot. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_jet.errors import JetError
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.plan import Change, compare_plans


def check_compatible(
    job: str, manifest: Manifest, plan: Mapping[str, Any], partition_count: int
) -> None:
    """Matches state and positions by name, and refuses stages that cannot continue."""
    refused = [c for c in compare_plans(manifest.plan, plan) if c.is_refused]
    gone = [c.stage for c in refused if c.change is Change.DROPPED]
    if gone:
        raise JetError(
            f"snapshot {manifest.snapshot_id} has state of {', '.join(gone)}, which the pipeline "
            "does not have.",
            job=job,
            cure="If the stage has another name now, say so with the start option "
            f"renamed={{{gone[0]!r}: ...}}. To drop its state, use dropped_state={gone!r}. "
            "'dagster-jet plan' shows the command.",
        )
    if refused:
        raise JetError(
            f"the pipeline cannot continue from the state in snapshot {manifest.snapshot_id}: "
            f"{refused[0].reason}.",
            job=job,
            stage=refused[0].stage,
            cure="Undo the change, or drop the state with the start option "
            f"dropped_state={[change.stage for change in refused]!r}: the stage then starts empty.",
        )
    if manifest.partition_count != partition_count:
        raise JetError(
            f"the snapshot was taken with {manifest.partition_count} partitions, the store "
            f"has {partition_count}.",
            job=job,
        )

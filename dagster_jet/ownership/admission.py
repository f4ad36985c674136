"""Decides whether a job may (re)start on its store in its present state. Pure.

Split-brain protection uses the highest number of members that the job has ever seen, not the
present number: members that an operator removed on one side of a split still count. The number only
grows. Two sides that both *add* members while they cannot see each other defeat it.
"""

from __future__ import annotations

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.snapshot.record import ExecutionRecord
from dagster_jet.store import StoreStatus


def quorum(members_max: int) -> int:
    """Return how many members must be reachable: more than half of ``members_max``."""
    return members_max // 2 + 1


def check_admission(
    job: str, status: StoreStatus, record: ExecutionRecord | None, *, split_brain_protection: bool
) -> int:
    """Return the highest number of members the job has ever seen, including now.

    Args:
        job: name for the error.
        status: the store's status.
        record: the job's record; None for a new job.
        split_brain_protection: refuse to start with a minority.

    Raises:
        StoreUnavailableError: partitions are lost, or too few members are reachable. Restartable:
            members come back and splits heal.
    """
    away = {m.member_id: m.error for m in status.members if not m.reachable}
    reasons = "; ".join(f"{member}: {why}" for member, why in sorted(away.items()))
    if status.lost:
        raise StoreUnavailableError(
            f"no member that holds partitions {list(status.lost)} is reachable: {reasons}",
            job=job,
            cure="More members are away than backup_count allows. Bring one of them back.",
        )
    members_max = max(len(status.members), record.members_max if record else 0)
    reachable = len(status.members) - len(away)
    if split_brain_protection and reachable < quorum(members_max):
        raise StoreUnavailableError(
            f"split-brain protection: only {reachable} members are reachable, and the job needs "
            f"{quorum(members_max)}, a majority of the {members_max} that it has seen"
            + (f": {reasons}" if reasons else "."),
            job=job,
            cure="Repair the network or bring members back. Only if the others are gone for "
            "good, add members or start without split_brain_protection.",
        )
    return members_max

"""May a job (re)start on this store, as it is now? Pure.

Split-brain protection goes by the most members that the job has ever seen, not by those that the
store has now: members that an operator took out on one side of a split still count. It only
ratchets up. Two sides that both *grow* while they cannot see each other defeat it.
"""

from __future__ import annotations

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.snapshot.record import ExecutionRecord
from dagster_jet.store import StoreStatus


def quorum(members_max: int) -> int:
    """How many of so many members must be reachable: more than half."""
    return members_max // 2 + 1


def check_admission(
    job: str, status: StoreStatus, record: ExecutionRecord | None, *, split_brain_protection: bool
) -> int:
    """Return the most members the job has ever seen, this time included.

    Args:
        job: for the error.
        status: the store's.
        record: the job's; None for a new one.
        split_brain_protection: refuse a minority.

    Raises:
        StoreUnavailableError: partitions are lost, or too few members are reachable. Restartable:
            members come back, splits heal.
    """
    away = {m.member_id: m.trouble for m in status.members if not m.reachable}
    reasons = "; ".join(f"{member}: {why}" for member, why in sorted(away.items()))
    if status.lost:
        raise StoreUnavailableError(
            f"no member that holds partitions {list(status.lost)} is reachable: {reasons}",
            job=job,
            cure="More members are gone than backup_count allows: bring one of them back.",
        )
    members_max = max(len(status.members), record.members_max if record else 0)
    reachable = len(status.members) - len(away)
    if split_brain_protection and reachable < quorum(members_max):
        raise StoreUnavailableError(
            f"split-brain protection: {reachable} members are reachable, and of the {members_max} "
            f"that the job has seen at most {quorum(members_max)} are needed"
            + (f": {reasons}" if reasons else "."),
            job=job,
            cure="Heal the network or bring members back; only if the others are gone for good, "
            "add members or start without split_brain_protection.",
        )
    return members_max

"""Copies on members that do not hold the partition any more: what a change leaves behind.

Harmless, but they cost space. A reader of an older table may still be reading them; when it finds
them gone it notices that its table is old (``replicated_map.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dagster_jet.errors import StoreUnavailableError, StoreUnwritableError
from dagster_jet.store.members.member import Member
from dagster_jet.store.progress import OnProgress, Steps, unwatched
from dagster_jet.store.routing import Routing
from dagster_jet.store.stored_key import ALL_MAPS, partition_of

_BATCH_KEYS = 1_000


def drop_leftovers(
    members: Mapping[str, Member],
    routing: Routing,
    *,
    check_table: Callable[[], None],
    on_progress: OnProgress = unwatched,
) -> int:
    """Remove, from every member given, the copies of partitions that the routing does not give it.

    Best effort: a member that does not answer keeps what it has, until the next time. Interrupted,
    the rest stays.

    Args:
        members: may name members that have left; they hold nothing.
        routing: who holds and receives what.
        check_table: raises when this routing is not the store's any more; asked before every
            batch, since the next change may have given the member the partition back.

    Returns:
        How many copies were removed.
    """
    dropped = 0
    steps = Steps("gc", len(members), on_progress)
    for member_id, member in members.items():
        try:
            doomed = [
                key
                for key in member.list_keys(ALL_MAPS)
                if member_id not in routing.replicas(partition_of(key))
            ]
            for at in range(0, len(doomed), _BATCH_KEYS):
                check_table()
                batch = doomed[at : at + _BATCH_KEYS]
                member.delete_many(batch)
                dropped += len(batch)
                steps.advance()
        except (StoreUnavailableError, StoreUnwritableError):
            continue
        finally:
            steps.advance(done=1)
    return dropped

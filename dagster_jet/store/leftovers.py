"""Copies on members that do not hold the partition any more: what a change leaves behind.

Harmless, but they cost space. A reader of an older table may still be reading them; when it finds
them gone it notices that its table is old (``replicated_map.py``).

The next change may give a member its partition back while somebody is still about to remove its
copy. So a copy is first marked as doomed (``marks.py``), then the table is looked at, then the copy
is removed if it still has this mark. If the table is looked at before the next change is decided,
the copier of that change (``migration.py``) comes later: it finds the copy doomed or gone, and
writes it anew, without the mark. If it is looked at afterwards, nothing is removed. Who dies in
between leaves a doomed copy, which is as good as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dagster_jet.errors import StoreUnavailableError, StoreUnwritableError
from dagster_jet.store.batching import Batches
from dagster_jet.store.marks import doomed
from dagster_jet.store.members.member import Member, Replacement
from dagster_jet.store.progress import OnProgress, Steps, unwatched
from dagster_jet.store.routing import Routing
from dagster_jet.store.stored_key import ALL_MAPS, partition_of


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
        check_table: raises when this routing is not the store's any more.

    Returns:
        How many copies were removed.
    """
    dropped = 0
    steps = Steps("gc", len(members), on_progress)
    batches = Batches()
    for member_id, member in members.items():
        try:
            keys = [
                key
                for key in member.list_keys(ALL_MAPS)
                if member_id not in routing.replicas(partition_of(key))
            ]
            for batch in batches.of(keys):
                found, size = _removed(member, batch, check_table)
                batches.measured(len(batch), size)
                dropped += found
                steps.advance()
        except (StoreUnavailableError, StoreUnwritableError):
            continue
        finally:
            steps.advance(done=1)
    return dropped


def _removed(
    member: Member, keys: Sequence[bytes], check_table: Callable[[], None]
) -> tuple[int, int]:
    """Remove some copies; return how many, and their size."""
    found = dict(zip(keys, member.get_many(keys), strict=True))
    copies = {key: copy for key, copy in found.items() if copy is not None}
    marked = {key: doomed(copy) for key, copy in copies.items()}
    member.replace_many({key: Replacement(copies[key], marked[key]) for key in copies})
    check_table()
    gone = member.replace_many({key: Replacement(mark, None) for key, mark in marked.items()})
    return gone, sum(map(len, copies.values()))

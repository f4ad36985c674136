"""Orphans: copies on members that no longer hold the partition, after a change.

They are harmless, but cost space. A reader of an older table may still be reading them; when they
are gone it notices that its table is old (``replicated_map.py``).

The next change may return a partition to a member while its copy is about to be removed. So a
removal intent is first put on the copy (``intents.py``), then the table is read, then the copy is
removed if it still has this intent. If the table is read before the next change is decided, the
copier of that change (``migration.py``) comes later: it finds the copy marked or gone, and rewrites
it without the intent. If it is read afterwards, nothing is removed. A crash in between leaves a
copy with an intent on it, which is a valid copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dagster_jet.errors import StoreUnavailableError, StoreUnwritableError
from dagster_jet.store.map.batching import Batches
from dagster_jet.store.map.intents import removal_intent
from dagster_jet.store.map.routing import ReplicaRouting
from dagster_jet.store.map.stored_key import ALL_MAPS, partition_of
from dagster_jet.store.members.member import Member, Replacement
from dagster_jet.store.upkeep.progress import OnProgress, Steps, unwatched


def drop_orphans(
    members: Mapping[str, Member],
    routing: ReplicaRouting,
    *,
    check_table: Callable[[], None],
    on_progress: OnProgress = unwatched,
) -> int:
    """Remove copies on the given members whose partitions they neither hold nor receive.

    Best effort: a member that does not answer keeps its orphans until the next call. An
    interrupted call leaves the rest.

    Args:
        members: may include members that have left; they hold nothing.
        routing: the holders and receivers of each partition.
        check_table: raises when this routing is not the store's any more.

    Returns:
        Number of copies removed.
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
    """Remove copies; return their number and size."""
    found = dict(zip(keys, member.get_many(keys), strict=True))
    copies = {key: copy for key, copy in found.items() if copy is not None}
    marked = {key: removal_intent(copy) for key, copy in copies.items()}
    member.replace_many({key: Replacement(copies[key], marked[key]) for key in copies})
    check_table()
    gone = member.replace_many({key: Replacement(mark, None) for key, mark in marked.items()})
    return gone, sum(map(len, copies.values()))

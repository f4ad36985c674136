"""Re-encryption of every value after the keys have changed. Runs beside jobs; may be repeated.

All replicas of a key get the same bytes, because copies are compared byte by byte. A copy is
replaced only if it is unchanged since it was read, so that a newer value always stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dagster_jet.store.map.batching import Batches
from dagster_jet.store.map.routing import ReplicaRouting
from dagster_jet.store.map.stored_key import ALL_MAPS, partition_of
from dagster_jet.store.members.fan_out import fan_out
from dagster_jet.store.members.member import Member, Replacement
from dagster_jet.store.upkeep.progress import OnProgress, Steps, unwatched
from dagster_jet.store.values.envelope import BadCopyError
from dagster_jet.store.values.sealing import Sealer

_PASSES_MAX = 10


@dataclass(slots=True)
class Reencrypted:
    """Result of a re-encryption.

    Attributes:
        copies: copies that were sealed again.
        left: copies that were not: damaged ones, or those written concurrently all the time.
        registers: members' copies of registers that were sealed again; only if ``left`` is 0.
    """

    copies: int = 0
    left: int = 0
    registers: int = 0


def reencrypt(
    members: Mapping[str, Member],
    routing: ReplicaRouting,
    sealer: Sealer,
    *,
    on_progress: OnProgress = unwatched,
) -> Reencrypted:
    """Seal every copy in the current form, on all holders, in all namespaces.

    Args:
        members: all holders; every one must answer.
        routing: the holders of each partition.
        sealer: a sealer with all keys that are still in use.
        on_progress: called after every batch.

    Raises:
        StoreUnavailableError: a member does not answer; repeat the call.
        StoreMismatchError: a value is encrypted with an unknown key.
    """
    done = Reencrypted()
    for _ in range(_PASSES_MAX):  # a pass also covers concurrent writes with old keys
        before = done.copies
        done.left = 0
        _one_pass(members, routing, sealer, done, on_progress)
        if done.copies == before:
            break
    return done


def _one_pass(
    members: Mapping[str, Member],
    routing: ReplicaRouting,
    sealer: Sealer,
    done: Reencrypted,
    on_progress: OnProgress,
) -> None:
    names: dict[int, set[bytes]] = {}
    for member_id in sorted({m for held in routing.table.replicas for m in held}):
        for key in members[member_id].list_keys(ALL_MAPS):
            if member_id in routing.holders(partition_of(key)):
                names.setdefault(partition_of(key), set()).add(key)
    steps = Steps("rewrite", routing.partition_count, on_progress)
    batches = Batches()
    for partition in range(routing.partition_count):
        holders = routing.holders(partition)
        for keys in batches.of(sorted(names.get(partition, ()))):
            size = _rewrite_batch(members, holders, keys, sealer, done)
            batches.measured(len(keys) * len(holders), size)
            steps.advance(bytes=size)
        steps.advance(done=1)


def _rewrite_batch(
    members: Mapping[str, Member],
    holders: Sequence[str],
    keys: Sequence[bytes],
    sealer: Sealer,
    done: Reencrypted,
) -> int:
    held = {m: dict(zip(keys, members[m].get_many(keys), strict=True)) for m in holders}
    anew: dict[tuple[bytes, bytes], bytes] = {}  # by key and old copy: equal copies stay equal
    batches: dict[str, dict[bytes, Replacement]] = {}
    size = 0
    for member_id, copies in held.items():
        for key, copy in copies.items():
            if copy is None:
                continue
            size += len(copy)
            try:
                if sealer.is_current(copy):
                    continue
                if (key, copy) not in anew:
                    anew[key, copy] = sealer.seal(sealer.unseal(copy, key), key)
            except BadCopyError:
                done.left += 1  # left to `verify --repair`, which uses good copies
                continue
            batches.setdefault(member_id, {})[key] = Replacement(seen=copy, value=anew[key, copy])

    def replace(member_id: str) -> Callable[[], int]:
        return lambda: members[member_id].replace_many(batches[member_id])

    written, failures = fan_out({member_id: replace(member_id) for member_id in batches})
    for failure in failures.values():
        raise failure
    done.copies += sum(written.values())
    done.left += sum(len(b) for b in batches.values()) - sum(written.values())
    return size

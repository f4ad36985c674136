"""Search for a good copy of a value: one replica after the other, many keys per batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from dagster_jet.store.map.intents import without_intents
from dagster_jet.store.members.fan_out import fan_out
from dagster_jet.store.members.member import DamagedMemberError, Member
from dagster_jet.store.values.envelope import BadCopyError


class ReplicaFailure(Enum):
    """The reason why a replica did not return a value."""

    ABSENT = "missing"
    BAD = "damaged"
    UNREACHABLE = "unreachable"


@dataclass(slots=True)
class Search:
    """The search for one key: the replicas to ask and the result so far.

    Attributes:
        stored_key: the key as stored on members.
        holders: replicas to ask, in this order, until one has a good copy.
        receivers: replicas to ask next if a holder had a damaged copy, or none answered
            (``routing.py``).
        failures: the replicas asked without success, with the reason.
        seen: the bytes on replicas that answered without a good copy: None, an intent
            (``intents.py``) or a damaged copy.
        found_on: the replica that had the good copy.
        sealed: the good copy.
        value: the unsealed value of the good copy.
    """

    stored_key: bytes
    holders: Sequence[str]
    receivers: Sequence[str] = ()
    failures: dict[str, ReplicaFailure] = field(default_factory=dict)
    seen: dict[str, bytes | None] = field(default_factory=dict)
    found_on: str | None = None
    sealed: bytes | None = None
    value: bytes | None = None

    def is_absent(self, *, every_replica: bool) -> bool:
        """Whether the key does not exist: all replicas that answered lack it, at least one holder.

        Args:
            every_replica: require an answer from all replicas that were asked.
        """
        believed = (
            {ReplicaFailure.ABSENT}
            if every_replica
            else {ReplicaFailure.ABSENT, ReplicaFailure.UNREACHABLE}
        )
        answered = any(self.failures.get(m) is ReplicaFailure.ABSENT for m in self.holders)
        return self.sealed is None and answered and set(self.failures.values()) <= believed

    def whom_to_ask(self) -> str | None:
        """Return the next member to ask; None when the search is over."""
        if self.sealed is not None:
            return None
        for member_id in self.holders:
            if member_id not in self.failures:
                return member_id
        # A receiver may still have a deleted value: it is not asked if a holder can decide.
        said = self.failures.values()
        if ReplicaFailure.BAD in said or ReplicaFailure.ABSENT not in said:
            for member_id in self.receivers:
                if member_id not in self.failures:
                    return member_id
        return None


Unseal = Callable[[bytes, bytes], bytes]
"""Returns the value of a copy found under a stored key; raises ``BadCopyError``."""


def search(
    members: Mapping[str, Member], searches: Collection[Search], unseal: Unseal
) -> Counter[str]:
    """Complete the searches, with one batch per member and rank.

    Returns:
        Number of damaged copies, by member. A member that cannot read its own files counts as one.

    Raises:
        StoreMismatchError: a copy was written by a newer version.
    """
    damaged: Counter[str] = Counter()
    while True:
        batches: dict[str, list[Search]] = {}
        for one in searches:
            member_id = one.whom_to_ask()
            if member_id is not None:
                batches.setdefault(member_id, []).append(one)
        if not batches:
            damaged.update(
                member_id
                for one in searches
                for member_id, failure in one.failures.items()
                if failure is ReplicaFailure.BAD
            )
            return damaged
        damaged.update(_ask(members, batches, unseal))


def _ask(
    members: Mapping[str, Member], batches: Mapping[str, Sequence[Search]], unseal: Unseal
) -> list[str]:
    """Ask one batch per member; returns the members that cannot read their own files."""

    def get(member_id: str) -> Callable[[], list[bytes | None]]:
        stored_keys = [one.stored_key for one in batches[member_id]]
        return lambda: members[member_id].get_many(stored_keys)

    copies, failures = fan_out({member_id: get(member_id) for member_id in batches})
    for member_id in failures:
        for one in batches[member_id]:
            one.failures[member_id] = ReplicaFailure.UNREACHABLE
    for member_id, of_member in copies.items():
        for one, stored in zip(batches[member_id], of_member, strict=True):
            copy = without_intents(stored)
            try:
                if copy is not None:
                    one.value = unseal(copy, one.stored_key)
                    one.sealed, one.found_on = copy, member_id
                    continue
                one.failures[member_id] = ReplicaFailure.ABSENT
            except BadCopyError:
                one.failures[member_id] = ReplicaFailure.BAD
            one.seen[member_id] = stored
    return [m for m, failure in failures.items() if isinstance(failure, DamagedMemberError)]

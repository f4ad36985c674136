"""Check that all configured members belong to one store, by the metadata on each of them.

A configuration may name members of two stores by mistake (an extra URL, or one copied from another
file). The store found first would be opened, so the members are checked before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dagster_jet.errors import StoreMismatchError
from dagster_jet.store.members import Member
from dagster_jet.store.members.fan_out import BRIEF_SECONDS_MAX, fan_out
from dagster_jet.store.metadata import METADATA, StoreMetadata
from dagster_jet.store.quorum.acceptor_on_member import state_of


def metadata_on(member: Member) -> StoreMetadata | None:
    """Return a member's copy of its store's metadata, possibly old; None if it has none.

    Raises:
        StoreUnavailableError: the member does not answer, or its copy is damaged.
        StoreMismatchError: the copy was written by a newer version.
    """
    value = state_of(member, METADATA).value
    return None if value is None else StoreMetadata.from_bytes(value)


def check_same_store(members: Mapping[str, Member]) -> None:
    """Refuse members of several stores. Members that are new or do not answer are skipped.

    Raises:
        StoreMismatchError: names every member that answers, and its store.
    """

    def look(member: Member) -> Callable[[], StoreMetadata | None]:
        return lambda: metadata_on(member)

    calls = {m: look(member) for m, member in members.items()}
    answers, _ = fan_out(calls, within_s=BRIEF_SECONDS_MAX)
    said = {m: metadata for m, metadata in answers.items() if metadata is not None}
    first = next(iter(said.values()), None)
    if first is None or all(_is_one(first, other) for other in said.values()):
        return
    by_store: dict[str, list[str]] = {}
    for member_id, metadata in said.items():
        by_store.setdefault(metadata.store_id, []).append(member_id)
    raise StoreMismatchError(
        "urls: the configuration names members of several stores: "
        + "; ".join(f"{', '.join(ids)} of store {store[:8]}" for store, ids in by_store.items())
        + ".",
        cure="Name the members of one store ('dagster-jet store status' with some of them lists "
        "all); empty a member before you move it to another store.",
    )


def _is_one(store: StoreMetadata, other: StoreMetadata) -> bool:
    """Whether two copies belong to one store.

    Processes that create a store concurrently each choose an id, and the copy of one that lost
    may stay on a member that was away. It lists the same identities as the store that was
    created, and an identity belongs to one store only.
    """
    return store.store_id == other.store_id or not set(store.members).isdisjoint(other.members)

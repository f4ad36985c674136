"""Puts back missing copies, but never a deleted value.

A copy may be missing because it was lost, or because the key is being deleted and the source of the
new copy is about to be deleted, too. So:

1. a restore intent is put where nothing is (``intents.py``);
2. the source is read again and must still have the value;
3. the intent, if it is still there, is replaced by the copy.

``ReplicatedMap.delete_all`` deletes on all members, then reads all of them, and starts again while
it finds anything, intents included.

Nothing comes back after a confirmed delete (of one writer at a time, the map's contract). Proof:
let L(m) be the last read of the delete at member m; it found nothing, and all deletes were before
all of these reads. Suppose a copy is put back, and take the first one after the read at its member
x. Its intent was made after L(x), else that read had found the intent or the copy. Its source y was
read after that, and had the value. If this was after L(y), the copy on y was put back before the
one on x: x was not the first. If it was before L(y), it was still after the delete on y: the value
was put back there in between, and L(y) had found it. A crash between the steps leaves an intent,
which is not a copy.

A put replaces any intent, so it is not undone either, with one exception: if a member loses a copy
while a put is under way to the others, the former value may be put back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dagster_jet.store.map.intents import restore_intent, without_intents
from dagster_jet.store.members.fan_out import fan_out
from dagster_jet.store.members.member import Member, Replacement


@dataclass(frozen=True, slots=True)
class Missing:
    """A copy to put back.

    Attributes:
        stored_key: the key as stored on members.
        member_id: the member that lacks the copy.
        seen: the bytes stored there: None, or an intent.
        copy: the copy to write.
        source: the member that has the copy.
    """

    stored_key: bytes
    member_id: str
    seen: bytes | None
    copy: bytes
    source: str


def restore(members: Mapping[str, Member], missing: Sequence[Missing]) -> int:
    """Put copies back, unless they are deleted or written concurrently; return their number.

    A member that does not answer does not fail the others.
    """
    intents = {(one.member_id, one.stored_key): restore_intent() for one in missing}
    begun: dict[str, dict[bytes, Replacement]] = {}
    asked: dict[str, list[bytes]] = {}
    for one in missing:
        intent = intents[one.member_id, one.stored_key]
        begun.setdefault(one.member_id, {})[one.stored_key] = Replacement(one.seen, intent)
        asked.setdefault(one.source, []).append(one.stored_key)
    _replaced(members, begun)

    def look(member_id: str) -> Callable[[], list[bytes | None]]:
        return lambda: members[member_id].get_many(asked[member_id])

    looked, _ = fan_out({member_id: look(member_id) for member_id in asked})
    there = {
        (member_id, key): without_intents(stored)
        for member_id, found in looked.items()
        for key, stored in zip(asked[member_id], found, strict=True)
    }
    confirmed: dict[str, dict[bytes, Replacement]] = {}
    taken_back: dict[str, dict[bytes, Replacement]] = {}
    for one in missing:
        is_there = there.get((one.source, one.stored_key)) == one.copy
        intent = intents[one.member_id, one.stored_key]
        where = confirmed if is_there else taken_back
        where.setdefault(one.member_id, {})[one.stored_key] = Replacement(
            intent, one.copy if is_there else None
        )
    _replaced(members, taken_back)
    return _replaced(members, confirmed)


def _replaced(
    members: Mapping[str, Member], batches: Mapping[str, Mapping[bytes, Replacement]]
) -> int:
    def replace(member_id: str) -> Callable[[], int]:
        return lambda: members[member_id].replace_many(batches[member_id])

    written, _ = fan_out({member_id: replace(member_id) for member_id in batches})
    return sum(written.values())

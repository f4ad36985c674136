"""Which of several whole copies of a key counts, where replicas differ. Pure.

Replicas differ after a write that reached only some of them, and after a member came back older.
Who is read first says nothing about which copy is newer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dagster_jet.errors import StoreMismatchError
from dagster_jet.store.sealing import Sealer
from dagster_jet.store.stored_key import has_version, version_of


def chosen(stored_key: bytes, copies: Sequence[bytes], sealer: Sealer) -> bytes | None:
    """Return the copy that every replica should have.

    Args:
        stored_key: the key as members know it.
        copies: one of each replica that has a whole one; at least one.
        sealer: reads them. Where it lacks the key, only equal copies can be told.

    Returns:
        The copy with the highest version; of values that have none, the one that more than half of
        the replicas have; None where neither decides.
    """
    if len(set(copies)) == 1:
        return copies[0]
    try:
        values = [sealer.unseal(copy, stored_key) for copy in copies]
    except StoreMismatchError:
        return _of_most(copies, copies)
    if len(set(values)) == 1:
        return copies[0]  # one value, sealed twice
    if not has_version(stored_key):
        return _of_most(copies, values)
    newest = max(map(version_of, values))
    of_newest = {value for value in values if version_of(value) == newest}
    return copies[values.index(of_newest.pop())] if len(of_newest) == 1 else None


def _of_most(copies: Sequence[bytes], values: Sequence[bytes]) -> bytes | None:
    value, count = Counter(values).most_common(1)[0]
    return copies[values.index(value)] if 2 * count > len(copies) else None

"""Reconciliation: selects the valid copy of a key whose replicas differ. Pure.

Replicas differ after a write that reached only some of them, or is still under way, and after a
member came back older. Neither the order of reading nor a majority shows which copy is newer: a
delayed writer may have reached one replica so far.
"""

from __future__ import annotations

from collections.abc import Sequence

from dagster_jet.errors import StoreMismatchError
from dagster_jet.store.map.stored_key import has_version, version_of
from dagster_jet.store.values.sealing import Sealer


def reconcile(stored_key: bytes, copies: Sequence[bytes], sealer: Sealer) -> bytes | None:
    """Return the copy that every replica should have.

    Args:
            stored_key: the key as stored on members.
            copies: one copy per replica that has an intact one; at least one.
            sealer: unseals them. If it lacks the key, only byte-equal copies are recognised.

        Returns:
            The copy with the highest version; None if versions do not decide.
    """
    if len(set(copies)) == 1:
        return copies[0]
    try:
        values = [sealer.unseal(copy, stored_key) for copy in copies]
    except StoreMismatchError:
        return None
    if len(set(values)) == 1:
        return copies[0]  # one value, sealed twice
    if not has_version(stored_key):
        return None
    newest = max(map(version_of, values))
    of_newest = {value for value in values if version_of(value) == newest}
    return copies[values.index(of_newest.pop())] if len(of_newest) == 1 else None

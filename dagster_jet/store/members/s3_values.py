"""Values in a bucket, in groups: each group is an object that is read and changed atomically.

An existing group is read, changed and written on the condition that its ETag is unchanged
(``If-None-Match`` and ``If-Match``); the loser of such a race starts again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from botocore.exceptions import ClientError

from dagster_jet.aws.access import code_of
from dagster_jet.errors import StoreUnavailableError
from dagster_jet.store.members import s3_group
from dagster_jet.store.members.s3_bucket import CHANGED, RACES_MAX, ChangedError, S3Bucket
from dagster_jet.store.members.s3_group import BadObjectError, Extent, Index, NewerObjectError
from dagster_jet.system.backoff import attempts

_HEAD_BYTES = 256 * 1024
"""Size of the first request: any snapshot shard's index, or all of a small object."""
_GAP_BYTES = 64 * 1024
"""Reading this many unneeded bytes is cheaper than another request."""
_RANGE_BYTES = 16 * 2**20
_SMALL_KEYS = 4
"""Most keys of a small index, which takes about 1 KB of memory; that of a shard takes 60 KB."""
_SMALL_MAX, _LARGE_MAX = 65_536, 4_096
"""Indexes in memory. A user's map has a small one for each entry."""


@dataclass(frozen=True, slots=True)
class _Group:
    """An object as it was when it was read.

    Attributes:
        etag: identifies its content.
        index: its keys.
        head: its first bytes; empty if only the index is cached.
        is_damaged: it cannot be read. All its keys have an empty value, a damaged copy, which is
            repaired like any other.
    """

    etag: str
    index: Index
    head: bytes = b""
    is_damaged: bool = False


class _Indexes:
    """The groups that were read or written last. Each step is atomic, so there is no lock."""

    def __init__(self) -> None:
        self._small: OrderedDict[str, _Group] = OrderedDict()
        self._large: OrderedDict[str, _Group] = OrderedDict()

    def get(self, name: str) -> _Group | None:
        return self._small.get(name) or self._large.get(name)

    def put(self, name: str, group: _Group) -> None:
        """Keep a group; forget the oldest one if there are too many."""
        self.forget(name)
        is_small = len(group.index.extents) <= _SMALL_KEYS
        kept, most = (self._small, _SMALL_MAX) if is_small else (self._large, _LARGE_MAX)
        kept[name] = group
        if len(kept) > most:
            with suppress(KeyError):  # another thread has emptied it
                kept.popitem(last=False)

    def forget(self, name: str) -> None:
        self._small.pop(name, None)
        self._large.pop(name, None)


class S3Values:
    """The groups of a member, by the name of their object. It caches their indexes.

    Args:
        bucket: the member's bucket.
    """

    def __init__(self, bucket: S3Bucket) -> None:
        self._bucket = bucket
        self._remembered = _Indexes()

    def keys(self, name: str, etag: str) -> tuple[Collection[bytes], bool]:
        """Return the keys of a group that was listed, and whether it is damaged."""
        group = self._remembered.get(name)
        if group is None or group.etag != etag:
            group = self._opened(name)
        return ((), False) if group is None else (group.index.extents, group.is_damaged)

    def get(self, name: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values that a group has of the keys; all are empty if it is damaged."""
        for attempt in attempts(RACES_MAX):
            group = self._remembered.get(name) if attempt == 0 else None
            if group is None or not _is_worth(group, keys):
                group = self._opened(name)
            if group is None:
                return {}
            if group.is_damaged:
                return dict.fromkeys(keys, b"")
            try:
                return self._read(name, group, keys)
            except ChangedError:
                continue
        raise self._bucket.lost_races(name)

    def change(
        self,
        name: str,
        put: Mapping[bytes, bytes | None],
        *,
        drop: Collection[bytes] = (),
        seen: Mapping[bytes, bytes | None] | None = None,
    ) -> int:
        """Change a group atomically; return how many items of ``put`` were written.

        Args:
            name: the object.
            put: the values to write; None: remove the key.
            drop: the keys to remove.
            seen: write only where the stored value still equals this one.
        """
        dropped = frozenset(drop)
        for attempt in attempts(RACES_MAX):
            group = self._remembered.get(name) if attempt == 0 and seen is None else None
            is_guess = attempt == 0 and seen is None
            if group is None and (not put or not is_guess):
                group, is_guess = self._opened(name), False
            # A group that is not cached is assumed to be new: snapshots write nothing twice.
            present = group.index.extents if group is not None else {}
            try:
                chosen = dict(put)
                if seen is not None:
                    found = self._read(name, group, [k for k in seen if k in present])
                    if group is not None and group.is_damaged:
                        found = dict.fromkeys(seen, b"")
                    chosen = {key: put[key] for key in put if found.get(key) == seen[key]}
                kept = [key for key in present if key not in dropped and key not in chosen]
                is_dropped = bool(dropped) and group is not None and group.is_damaged
                if not chosen and len(kept) == len(present) and not is_dropped:
                    if is_guess:
                        self._remembered.forget(name)
                        continue
                    return 0
                there = {key: value for key, value in chosen.items() if value is not None}
                self._write(name, group, {**self._read(name, group, kept), **there})
                return len(chosen)
            except ChangedError:
                self._remembered.forget(name)
        raise self._bucket.lost_races(name)

    def _write(self, name: str, group: _Group | None, items: Mapping[bytes, bytes]) -> None:
        """Write a group if it is unchanged; an empty group is deleted."""
        self._bucket.check_conditions()
        condition = {"IfNoneMatch": "*"} if group is None else {"IfMatch": group.etag}
        place = {"Bucket": self._bucket.name, "Key": name}
        try:
            if not items:
                self._bucket.aws.repeating.delete_object(**place, **condition)
                self._remembered.forget(name)
                return
            body = s3_group.encode(items)
            answer = self._bucket.aws.repeating.put_object(**place, **condition, Body=body)
        except ClientError as error:
            if code_of(error) in CHANGED:
                raise ChangedError from error
            raise
        self._remembered.put(name, _Group(answer["ETag"], s3_group.decode_index(body)))

    def _opened(self, name: str) -> _Group | None:
        """Read an object's index, with the values in the first bytes; None without an object."""
        for _ in attempts(RACES_MAX):
            try:
                answer = self._bucket.fetch(name, Extent(0, _HEAD_BYTES))
                if answer is None:
                    self._remembered.forget(name)
                    return None
                head, etag = answer
                end = s3_group.index_end(head)
                if end > len(head):
                    head += self._bucket.fetch_same(name, etag, Extent(len(head), end))
                group = _Group(etag, s3_group.decode_index(head), head)
            except ChangedError:
                continue
            except NewerObjectError as error:
                raise self._newer(name, error) from error
            except BadObjectError:
                self._remembered.forget(name)
                return _Group(etag, Index({}, 0), is_damaged=True)
            self._remembered.put(name, _Group(etag, group.index))
            return group
        raise self._bucket.lost_races(name)

    def _read(self, name: str, group: _Group | None, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the values of the given keys in the group, in few requests.

        Raises:
            ChangedError: the object has changed.
        """
        if group is None:
            return {}
        wanted = {key: group.index.extents[key] for key in keys if key in group.index.extents}
        pieces = [(0, group.head)]
        absent = [e for e in wanted.values() if e.begin < e.end and e.end > len(group.head)]
        for extent in _coalesced(absent):
            pieces.append((extent.begin, self._bucket.fetch_same(name, group.etag, extent)))
        return {key: _cut(pieces, extent) for key, extent in wanted.items()}

    def _newer(self, name: str, error: NewerObjectError) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the store member {self._bucket.member_id} holds an object {name!r} that "
            f"cannot be read: {error}.",
            cure="Upgrade dagster-jet.",
        )


def _is_worth(group: _Group, keys: Collection[bytes]) -> bool:
    """Whether the cached index saves a request.

    Not for a small object, which is read whole with its index. Not if nothing would be fetched,
    since no request would then check that the object is unchanged.
    """
    extents = [group.index.extents.get(key) for key in keys]
    is_small = group.index.size <= _HEAD_BYTES
    return not is_small and None not in extents and any(e and e.begin < e.end for e in extents)


def _coalesced(extents: Iterable[Extent]) -> list[Extent]:
    """Join extents that are close together into ranges, one per request."""
    ranges: list[Extent] = []
    for extent in sorted(extents, key=lambda extent: extent.begin):
        last = ranges[-1] if ranges else None
        is_near = last is not None and extent.begin - last.end <= _GAP_BYTES
        if last is not None and is_near and extent.end - last.begin <= _RANGE_BYTES:
            ranges[-1] = Extent(last.begin, max(last.end, extent.end))
        else:
            ranges.append(extent)
    return ranges


def _cut(pieces: Sequence[tuple[int, bytes]], extent: Extent) -> bytes:
    """Return the bytes of an extent from the piece that contains it; empty if truncated."""
    if extent.begin == extent.end:
        return b""
    for begin, piece in pieces:
        if begin <= extent.begin and extent.end <= begin + len(piece):
            return piece[extent.begin - begin : extent.end - begin]
    return b""

"""``s3://bucket/prefix``: a member in an S3 bucket, through conditional writes.

Objects, under the URL's prefix::

        values/<name>       a group of values (``s3_group.py``): all that a shard writes at once
        versioned/<name>    one versioned value: version(8) key length(2), the key, the value
        ping                written by ``ping``
        probe/<name>        checks at the first use that the server honours the conditions

A new group is one PUT. Changing an existing group means reading it, changing it and writing it on
the condition that its ETag is unchanged (``If-None-Match`` and ``If-Match``); the loser of such a
race starts again. The number of requests is thus per group: a snapshot costs one PUT per shard, a
restore two GETs per shard and one per 16 MiB, whatever the partition count.

S3 answers after the data is stored on several devices, and reads see the last write. Servers with
the S3 API that ignore the conditions would lose writes silently: each process tests the conditions
before its first register or write (``dagster_jet.aws.conditions``).
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from dagster_jet.aws.access import code_of
from dagster_jet.aws.conditions import REFUSED, ignored_condition
from dagster_jet.errors import StoreUnavailableError, StoreUnwritableError
from dagster_jet.store.members import s3_group
from dagster_jet.store.members.aws import SeenVersions, member_access, parsed
from dagster_jet.store.members.member import IncompleteListingError, Replacement, Versioned
from dagster_jet.store.members.network_url import NetworkUrl
from dagster_jet.store.members.s3_group import BadObjectError, Extent, Index, NewerObjectError
from dagster_jet.system.backoff import attempts

EXAMPLE = "s3://bucket/prefix?region=eu-west-1"

_HEAD_BYTES = 256 * 1024
"""Size of the first request: any snapshot shard's index, or all of a small object."""
_GAP_BYTES = 64 * 1024
"""Reading this many unneeded bytes is cheaper than another request."""
_RANGE_BYTES = 16 * 2**20
_RACES_MAX = 12
_INDEXES_MAX = 4_096
_VERSION = struct.Struct(">QH")
_GONE = frozenset(("NoSuchKey", "404"))
_CHANGED = REFUSED | _GONE
_OUTSIDE = frozenset(("InvalidRange", "416"))


class _ChangedError(Exception):
    """An object has changed since it was read."""


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


class S3Member:
    """A member in a bucket. It connects at the first call; the bucket must exist.

    Raises:
        ConfigurationError: the URL is not valid.
    """

    def __init__(self, url: str) -> None:
        found = parsed_url(url)
        self._member_id = member_id(found)
        self._bucket = found.host
        prefix = f"{found.path}/" if found.path else ""
        self._values = f"{prefix}values/"
        self._versioned = f"{prefix}versioned/"
        self._ping = f"{prefix}ping"
        self._probe = f"{prefix}probe/"
        self._server = found.options.get("endpoint_url", "")
        self._aws = member_access("s3", found, self._member_id, timeout_s=20)
        self._seen_versions = SeenVersions(self._member_id)
        self._remembered: dict[str, _Group] = {}
        self._etags: dict[str, tuple[int, str]] = {}
        """By versioned object: the version last seen here, and its ETag."""

    @property
    def member_id(self) -> str:
        """The bucket and prefix, and the endpoint if the URL names it."""
        return self._member_id

    def __repr__(self) -> str:
        return f"S3Member({self._member_id!r})"

    def create(self) -> None:
        """See ``Member.create``; does nothing, because buckets are not created from here."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``Member.get_many``; the values of one group are a consistent snapshot."""
        groups = self._by_object(keys)
        with self._aws.errors_named():
            read = self._aws.in_parallel(lambda name: self._get(name, groups[name]), groups)
        found = {key: value for values in read for key, value in values.items()}
        return [found.get(key) for key in keys]

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """See ``Member.put_many``. A crash inside leaves some groups written, each completely."""
        groups = self._by_object(items)

        def put(name: str) -> None:
            self._change(name, {key: items[key] for key in groups[name]})

        with self._aws.errors_named():
            self._aws.in_parallel(put, groups)

    def replace_many(self, items: Mapping[bytes, Replacement]) -> int:
        """See ``Member.replace_many``. Writes whose answer was lost are not counted."""
        groups = self._by_object(items)

        def replace(name: str) -> int:
            wanted = {key: items[key] for key in groups[name]}
            return self._change(
                name,
                {key: item.value for key, item in wanted.items()},
                seen={key: item.seen for key, item in wanted.items()},
            )

        with self._aws.errors_named():
            return sum(self._aws.in_parallel(replace, groups))

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """See ``Member.delete_many``. Removing a part of a large group rewrites the rest."""
        groups = self._by_object(keys)
        with self._aws.errors_named():
            self._aws.in_parallel(lambda name: self._change(name, {}, drop=groups[name]), groups)

    def list_keys(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_keys``: a LIST, and one GET for each group not cached."""

        damaged: list[str] = []

        def keys_in(listed: tuple[str, str]) -> Iterable[bytes]:
            name, etag = listed
            group = self._remembered.get(name)
            if group is None or group.etag != etag:
                group = self._opened(name)
            if group is not None and group.is_damaged:
                damaged.append(name)
            return group.index.extents if group is not None else ()

        with self._aws.errors_named():
            names = self._list(self._values, s3_group.listing_prefix(prefix))
            found = self._aws.in_parallel(keys_in, names)
        listed = sorted(key for keys in found for key in keys if key.startswith(prefix))
        if damaged:
            raise IncompleteListingError(self._member_id, listed, sorted(damaged))
        return listed

    def get_versioned(self, key: bytes) -> Versioned | None:
        """See ``Member.get_versioned``."""
        at_least = self._seen_versions.highest(key)
        with self._aws.errors_named():
            self._check_conditions()
            found = self._read_versioned(self._versioned + s3_group.name_of(key))
        versioned = None if found is None else found[1]
        self._seen_versions.check(key, versioned, at_least)
        return versioned

    def list_versioned(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_versioned``: a LIST, and one GET for each object."""

        def key_in(listed: tuple[str, str]) -> list[bytes]:
            found = self._read_versioned(listed[0])
            return [] if found is None else [found[0]]

        with self._aws.errors_named():
            names = self._list(self._versioned, s3_group.listing_prefix(prefix))
            found = self._aws.in_parallel(key_in, names)
        return sorted(key for keys in found for key in keys if key.startswith(prefix))

    def compare_and_set(self, key: bytes, expected_version: int, value: bytes) -> bool:
        """See ``Member.compare_and_set``: one conditional PUT, after a GET if needed."""
        name = self._versioned + s3_group.name_of(key)
        condition = {"IfNoneMatch": "*"}
        with self._aws.errors_named():
            self._check_conditions()
            known = self._etags.pop(name, None)  # if no answer comes, another content may be there
            if expected_version:
                if known is None or known[0] != expected_version:
                    current = self._read_versioned(name)
                    if current is None or current[1].version != expected_version:
                        return False
                    known = current[1].version, current[2]
                condition = {"IfMatch": known[1]}
            body = _VERSION.pack(expected_version + 1, len(key)) + key + value
            place = {"Bucket": self._bucket, "Key": name, **condition}
            answer = self._aws.set_once(
                lambda: self._aws.once.put_object(Body=body, **place),
                refused=("PreconditionFailed", "412", *_GONE),
            )
        if answer is not None:
            self._etags[name] = expected_version + 1, answer["ETag"]
        return answer is not None

    def ping(self) -> None:
        """See ``Member.ping``."""
        with self._aws.errors_named():
            self._check_conditions()
            for _ in attempts(_RACES_MAX):
                token = os.urandom(16)
                place = {"Bucket": self._bucket, "Key": self._ping}
                etag = self._aws.repeating.put_object(**place, Body=token)["ETag"]
                found = self._fetch(self._ping)
                if found is not None and found[0] == token:
                    return
                if found is None or found[1] == etag:
                    break  # else another process has written its own token in between
        raise StoreUnavailableError(
            f"the store member {self._member_id} did not return the value that was just written "
            "to it."
        )

    def close(self) -> None:
        """See ``Member.close``."""
        self._aws.close()

    # --- groups ---------------------------------------------------------------------------------

    def _by_object(self, keys: Iterable[bytes]) -> dict[str, list[bytes]]:
        groups: dict[str, list[bytes]] = defaultdict(list)
        for key in dict.fromkeys(keys):
            groups[self._values + s3_group.object_of(key)].append(key)
        return dict(groups)

    def _get(self, name: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        for attempt in attempts(_RACES_MAX):
            group = self._remembered.get(name) if attempt == 0 else None
            if group is None or not _is_worth(group, keys):
                group = self._opened(name)
            if group is None:
                return {}
            if group.is_damaged:
                return dict.fromkeys(keys, b"")
            try:
                return self._read(name, group, keys)
            except _ChangedError:
                continue
        raise self._lost_races(name)

    def _change(
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
        for attempt in attempts(_RACES_MAX):
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
                        self._remembered.pop(name, None)
                        continue
                    return 0
                there = {key: value for key, value in chosen.items() if value is not None}
                self._write(name, group, {**self._read(name, group, kept), **there})
                return len(chosen)
            except _ChangedError:
                self._remembered.pop(name, None)
        raise self._lost_races(name)

    def _write(self, name: str, group: _Group | None, items: Mapping[bytes, bytes]) -> None:
        """Write a group if it is unchanged; an empty group is deleted."""
        self._check_conditions()
        condition = {"IfNoneMatch": "*"} if group is None else {"IfMatch": group.etag}
        place = {"Bucket": self._bucket, "Key": name}
        try:
            if not items:
                self._aws.repeating.delete_object(**place, **condition)
                self._remembered.pop(name, None)
                return
            body = s3_group.encode(items)
            answer = self._aws.repeating.put_object(**place, **condition, Body=body)
        except ClientError as error:
            if code_of(error) in _CHANGED:
                raise _ChangedError from error
            raise
        self._remember(name, _Group(answer["ETag"], s3_group.decode_index(body)))

    def _opened(self, name: str) -> _Group | None:
        """Read an object's index, with the values in the first bytes; None without an object."""
        for _ in attempts(_RACES_MAX):
            try:
                answer = self._fetch(name, Extent(0, _HEAD_BYTES))
                if answer is None:
                    self._remembered.pop(name, None)
                    return None
                head, etag = answer
                end = s3_group.index_end(head)
                if end > len(head):
                    head += self._fetch_same(name, etag, Extent(len(head), end))
                group = _Group(etag, s3_group.decode_index(head), head)
            except _ChangedError:
                continue
            except NewerObjectError as error:
                raise self._newer(name, error) from error
            except BadObjectError:
                self._remembered.pop(name, None)
                return _Group(etag, Index({}, 0), is_damaged=True)
            self._remember(name, _Group(etag, group.index))
            return group
        raise self._lost_races(name)

    def _remember(self, name: str, group: _Group) -> None:
        if len(self._remembered) >= _INDEXES_MAX:
            self._remembered = {}
        self._remembered[name] = group

    def _read(self, name: str, group: _Group | None, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the values of the given keys in the group, in few requests.

        Raises:
            _ChangedError: the object has changed.
        """
        if group is None:
            return {}
        wanted = {key: group.index.extents[key] for key in keys if key in group.index.extents}
        pieces = [(0, group.head)]
        absent = [e for e in wanted.values() if e.begin < e.end and e.end > len(group.head)]
        for extent in _coalesced(absent):
            pieces.append((extent.begin, self._fetch_same(name, group.etag, extent)))
        return {key: _cut(pieces, extent) for key, extent in wanted.items()}

    def _check_conditions(self) -> None:
        ignored = ignored_condition(self._aws, self._server, self._bucket, self._probe)
        if ignored is not None:
            raise StoreUnwritableError(
                f"the store member {self._member_id} is on a server that ignores "
                f"{ignored.value}: of two concurrent writes one would be lost.",
                cure="Use AWS S3, or a server (perhaps a newer version of this one) that "
                "supports the conditions If-None-Match and If-Match of PUT, GET and DELETE.",
            )

    # --- requests -------------------------------------------------------------------------------

    def _fetch_same(self, name: str, etag: str, extent: Extent) -> bytes:
        answer = self._fetch(name, extent, IfMatch=etag)
        if answer is None:
            raise _ChangedError
        return answer[0]

    def _fetch(
        self, name: str, extent: Extent | None = None, **condition: str
    ) -> tuple[bytes, str] | None:
        """Return bytes of an object and its ETag; None where there is none.

        Raises:
            _ChangedError: the condition is not met.
        """
        asked: dict[str, Any] = {"Bucket": self._bucket, "Key": name, **condition}
        if extent is not None:
            asked["Range"] = f"bytes={extent.begin}-{extent.end - 1}"
        failure: BotoCoreError | None = None
        for _ in attempts(3):
            try:
                answer = self._aws.repeating.get_object(**asked)
            except ClientError as error:
                if code_of(error) in _GONE:
                    return None
                if code_of(error) in _CHANGED:
                    raise _ChangedError from error
                if code_of(error) in _OUTSIDE and extent is not None:
                    # The range begins behind the end: an empty object, or a truncated one.
                    whole = self._fetch(name, None, **condition)
                    return None if whole is None else (whole[0][extent.begin :], whole[1])
                raise
            try:
                with answer["Body"] as body:
                    return body.read(), answer["ETag"]
            except BotoCoreError as error:
                # The client repeats requests, but not the reading of a response body.
                failure = error
        assert failure is not None
        raise failure

    def _list(self, space: str, prefix: str) -> list[tuple[str, str]]:
        pages = self._aws.repeating.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=space + prefix
        )
        return [
            (found["Key"], found["ETag"]) for page in pages for found in page.get("Contents", ())
        ]

    def _read_versioned(self, name: str) -> tuple[bytes, Versioned, str] | None:
        """Return key, versioned value and ETag."""
        answer = self._fetch(name)
        if answer is None:
            return None
        body, etag = answer
        if len(body) < _VERSION.size:
            raise StoreUnavailableError(
                f"the store member {self._member_id} holds a versioned value of only {len(body)} "
                f"bytes in {name!r}."
            )
        version, key_bytes = _VERSION.unpack_from(body)
        end = _VERSION.size + key_bytes
        self._etags[name] = version, etag
        return body[_VERSION.size : end], Versioned(version, body[end:]), etag

    def _newer(self, name: str, error: NewerObjectError) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the store member {self._member_id} holds an object {name!r} that cannot be read: "
            f"{error}.",
            cure="Upgrade dagster-jet.",
        )

    def _lost_races(self, name: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the store member {self._member_id} lost {_RACES_MAX} races for the object {name!r}."
        )


def parsed_url(url: str) -> NetworkUrl:
    """Parse and check the URL."""
    return parsed(url, (), EXAMPLE)


def member_id(url: NetworkUrl) -> str:
    """Return the id: bucket, prefix, and the endpoint if the URL names one."""
    return url.member_id(f"{url.host}/{url.path}".rstrip("/"), ("endpoint_url",))


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

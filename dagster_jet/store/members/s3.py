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
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.store.members import s3_group
from dagster_jet.store.members.aws import SeenVersions, member_access, parsed
from dagster_jet.store.members.bulkhead import progressed
from dagster_jet.store.members.member import IncompleteListingError, Replacement, Versioned
from dagster_jet.store.members.network_url import NetworkUrl
from dagster_jet.store.members.s3_bucket import GONE, RACES_MAX, S3Bucket
from dagster_jet.store.members.s3_values import S3Values
from dagster_jet.system.backoff import attempts

EXAMPLE = "s3://bucket/prefix?region=eu-west-1"

T = TypeVar("T")

_AT_ONCE = 250
_VERSION = struct.Struct(">QH")
_WRITTEN_LAST_S = 1.0
"""Seconds after a set in which the next one needs no read."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A set of this object: the content, its ETag, and the time by the monotonic clock."""

    stored: Versioned
    etag: str
    at: float


class S3Member:
    """A member in a bucket. It connects at the first call; the bucket must exist.

    Raises:
        ConfigurationError: the URL is not valid.
    """

    def __init__(self, url: str) -> None:
        found = parsed_url(url)
        self._member_id = member_id(found)
        prefix = f"{found.path}/" if found.path else ""
        self._values = f"{prefix}values/"
        self._versioned = f"{prefix}versioned/"
        self._ping = f"{prefix}ping"
        self._aws = member_access("s3", found, self._member_id, timeout_s=20)
        self._bucket = S3Bucket(
            self._aws,
            found.host,
            self._member_id,
            server=found.options.get("endpoint_url", ""),
            probe_prefix=f"{prefix}probe/",
        )
        self._groups = S3Values(self._bucket)
        self._seen_versions = SeenVersions(self._member_id)
        self._etags: dict[str, tuple[int, str]] = {}
        """By versioned object: the version last seen here, and its ETag."""
        self._written: dict[bytes, _Written] = {}
        """By key: what the last ``compare_and_set`` here has written."""

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
            read = self._aws.in_parallel(lambda name: self._groups.get(name, groups[name]), groups)
        found = {key: value for values in read for key, value in values.items()}
        return [found.get(key) for key in keys]

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """See ``Member.put_many``. A crash inside leaves some groups written, each completely."""
        groups = self._by_object(items)

        def put(name: str) -> None:
            self._groups.change(name, {key: items[key] for key in groups[name]})

        with self._aws.errors_named():
            self._aws.in_parallel(put, groups)

    def replace_many(self, items: Mapping[bytes, Replacement]) -> int:
        """See ``Member.replace_many``. Writes whose answer was lost are not counted."""
        groups = self._by_object(items)

        def replace(name: str) -> int:
            wanted = {key: items[key] for key in groups[name]}
            return self._groups.change(
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
            self._aws.in_parallel(
                lambda name: self._groups.change(name, {}, drop=groups[name]), groups
            )

    def list_keys(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_keys``: a LIST, and one GET for each group not cached."""
        with self._aws.errors_named():
            objects = self._bucket.listed(self._values + s3_group.listing_prefix(prefix))
            found = self._for_each(objects, lambda one: self._groups.keys(*one))
        listed = sorted(key for keys, _ in found for key in keys if key.startswith(prefix))
        damaged = sorted(name for (name, _), (_, bad) in zip(objects, found, strict=True) if bad)
        if damaged:
            raise IncompleteListingError(self._member_id, listed, damaged)
        return listed

    def get_versioned(self, key: bytes) -> Versioned | None:
        """See ``Member.get_versioned``."""
        at_least = self._seen_versions.highest(key)
        with self._aws.errors_named():
            self._bucket.check_conditions()
            found = self._read_versioned(self._versioned + s3_group.name_of(key))
        versioned = None if found is None else found[1]
        self._seen_versions.check(key, versioned, at_least)
        return versioned

    def written_last(self, key: bytes) -> Versioned | None:
        """See ``Member.written_last``: the condition is the ETag of that very PUT."""
        written = self._written.get(key)
        if written is None or time.monotonic() > written.at + _WRITTEN_LAST_S:
            return None
        return written.stored

    def list_versioned(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_versioned``: a LIST, and one GET for each object."""

        def key_in(listed: tuple[str, str]) -> list[bytes]:
            found = self._read_versioned(listed[0])
            return [] if found is None else [found[0]]

        with self._aws.errors_named():
            names = self._bucket.listed(self._versioned + s3_group.listing_prefix(prefix))
            found = self._for_each(names, key_in)
        return sorted(key for keys in found for key in keys if key.startswith(prefix))

    def compare_and_set(self, key: bytes, expected_version: int, value: bytes) -> bool:
        """See ``Member.compare_and_set``: one conditional PUT, after a GET if needed."""
        name = self._versioned + s3_group.name_of(key)
        with self._aws.errors_named():
            self._bucket.check_conditions()
            # If no answer comes, another content may be there.
            read, written = self._etags.pop(name, None), self._written.get(key)
            if not expected_version:
                condition = {"IfNoneMatch": "*"}
            elif written is not None and written.stored.version == expected_version:
                condition = {"IfMatch": written.etag}
            else:
                if read is None or read[0] != expected_version:
                    current = self._read_versioned(name)
                    if current is None or current[1].version != expected_version:
                        return False
                    read = current[1].version, current[2]
                condition = {"IfMatch": read[1]}
            body = _VERSION.pack(expected_version + 1, len(key)) + key + value
            place = {"Bucket": self._bucket.name, "Key": name, **condition}
            answer = self._aws.set_once(
                lambda: self._aws.once.put_object(Body=body, **place),
                refused=("PreconditionFailed", "412", *GONE),
            )
        if answer is None:
            self._written.pop(key, None)
            return False
        stored, now = Versioned(expected_version + 1, value), time.monotonic()
        self._seen_versions.check(key, stored, 0)
        if any(now > one.at + _WRITTEN_LAST_S for one in list(self._written.values())):
            self._written = {}  # of many registers, few are written all the time
        self._written[key] = _Written(stored, answer["ETag"], now)
        return True

    def ping(self) -> None:
        """See ``Member.ping``."""
        with self._aws.errors_named():
            self._bucket.check_conditions()
            for _ in attempts(RACES_MAX):
                token = os.urandom(16)
                place = {"Bucket": self._bucket.name, "Key": self._ping}
                etag = self._aws.repeating.put_object(**place, Body=token)["ETag"]
                found = self._bucket.fetch(self._ping)
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

    def _for_each(
        self, listed: Sequence[tuple[str, str]], work: Callable[[tuple[str, str]], T]
    ) -> list[T]:
        """Do the work for each listed object; ``_AT_ONCE`` of them have the time of a call."""
        done: list[T] = []
        for start in range(0, len(listed), _AT_ONCE):
            done += self._aws.in_parallel(work, listed[start : start + _AT_ONCE])
            progressed()
        return done

    def _by_object(self, keys: Iterable[bytes]) -> dict[str, list[bytes]]:
        groups: dict[str, list[bytes]] = defaultdict(list)
        for key in dict.fromkeys(keys):
            groups[self._values + s3_group.object_of(key)].append(key)
        return dict(groups)

    def _read_versioned(self, name: str) -> tuple[bytes, Versioned, str] | None:
        """Return key, versioned value and ETag."""
        answer = self._bucket.fetch(name)
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


def parsed_url(url: str) -> NetworkUrl:
    """Parse and check the URL."""
    return parsed(url, (), EXAMPLE)


def member_id(url: NetworkUrl) -> str:
    """Return the id: bucket, prefix, and the endpoint if the URL names one."""
    return url.member_id(f"{url.host}/{url.path}".rstrip("/"), ("endpoint_url",))

"""``dynamodb://table``: a member in one DynamoDB table.

The table has two keys, both strings: ``pk`` (partition) and ``sk`` (sort)::

    pk                                 sk                      attributes
    <prefix>/values/<bucket>           hex of the key          val | gen and cnt
    <prefix>/versioned/<bucket>        hex of the key          ver, and val | gen and cnt
    <prefix>/parts/<space>/<sha-256>   <generation>/<number>   val, of (the key)

A key belongs to one of 16 buckets, so that writes spread over DynamoDB's partitions and a listing
takes 16 queries, not a scan. Hex keeps the order and the prefixes of bytes.

An item holds at most 400 KB. A larger value is written as parts under a new, unique generation;
then its head item, which names the generation, is switched; then the old parts are removed. A
reader finds the old value or the new one, never a mixture. A crash in between leaves parts that no
head names: the next large put of the key removes them, or ``remove_orphans``. A head write that the
network delays until its value was replaced or removed names parts that are gone: a damaged copy.
"""

from __future__ import annotations

import hashlib
import secrets
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.store.members.aws import SeenVersions, member_access, parsed
from dagster_jet.store.members.dynamodb_table import DynamoDbTable
from dagster_jet.store.members.member import Replacement, Versioned
from dagster_jet.store.members.network_url import NetworkUrl
from dagster_jet.system.backoff import attempts

EXAMPLE = "dynamodb://table?region=eu-west-1"
_OWN_OPTIONS = ("prefix", "create")
_PREFIX = "dagster_jet"

_VALUES, _VERSIONED = "values", "versioned"
_BUCKETS = 16
_PART_BYTES = 380_000
"""An item holds at most 400 KiB, including its keys and attribute names."""
_READ_ITEMS, _WRITE_ITEMS = 100, 25  # DynamoDB's limits for one batch
_ORPHAN_SECONDS = 3_600
"""Parts that no head names belong to a write under way; older ones are from a crash."""
_FAILED = ("ConditionalCheckFailedException",)

_Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Place:
    """A key in one of the two key spaces."""

    space: str
    key: bytes


@dataclass(frozen=True, slots=True)
class _Written:
    """A value as items: the attributes of the head, and its parts."""

    head: _Item
    parts: tuple[_Item, ...] = ()

    @property
    def generation(self) -> str | None:
        """Generation of its parts; None for a value that fits into its head."""
        return _generation(self.head)


class DynamoDbMember:
    """A member in one table. It connects at the first call, which creates the table.

    Raises:
        ConfigurationError: the URL is not valid.
    """

    def __init__(self, url: str) -> None:
        found = parsed_url(url)
        self._member_id = member_id(found)
        self._table = found.host
        self._prefix = found.options.get("prefix", _PREFIX)
        self._aws = member_access("dynamodb", found, self._member_id, timeout_s=5)
        self._made = DynamoDbTable(
            self._aws,
            self._table,
            self._member_id,
            may_create=found.choice("create", ("0", "1"), "1") == "1",
        )
        self._seen_versions = SeenVersions(self._member_id)

    @property
    def member_id(self) -> str:
        """The table, with region, endpoint and prefix if the URL names them."""
        return self._member_id

    def __repr__(self) -> str:
        return f"DynamoDbMember({self._member_id!r})"

    def create(self) -> None:
        """See ``Member.create``; does nothing, because the first call creates the table."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``Member.get_many``: strongly consistent reads."""
        with self._aws.errors_named():
            found = self._values_of([_Place(_VALUES, key) for key in dict.fromkeys(keys)])
        values = {place.key: value for place, (_, value) in found.items()}
        return [values.get(key) for key in keys]

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """See ``Member.put_many``. A crash inside leaves any subset of complete values written."""
        places = {_Place(_VALUES, key): value for key, value in items.items()}
        with self._aws.errors_named():
            before = self._generations(places)
            written = {place: self._as_items(place, value) for place, value in places.items()}
            self._write([part for one in written.values() for part in one.parts])
            # Crash window: parts that no head names.
            self._write([one.head for one in written.values()])
            for place, one in written.items():
                if place in before or one.parts:
                    self._sweep(place, keep=one.generation, replaced=before.get(place))

    def replace_many(self, items: Mapping[bytes, Replacement]) -> int:
        """See ``Member.replace_many``: each write is conditional on an unchanged head."""

        def replace(key: bytes) -> int:
            place, item = _Place(_VALUES, key), items[key]
            head, value = found.get(place, (None, None))
            if value != item.seen:
                return 0
            if item.value is None:
                return int(head is None or self._remove(place, _unchanged(head)))
            return int(self._set(place, self._as_items(place, item.value), _unchanged(head)))

        with self._aws.errors_named():
            found = self._values_of([_Place(_VALUES, key) for key in items])
            return sum(self._aws.in_parallel(replace, items))

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """See ``Member.delete_many``. A crash inside leaves any subset of the keys removed."""
        places = [_Place(_VALUES, key) for key in dict.fromkeys(keys)]
        with self._aws.errors_named():
            before = self._generations(places)
            self._delete([self._key_of(place) for place in places])
            for place, generation in before.items():
                self._sweep(place, keep=None, replaced=generation)

    def list_keys(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_keys``. Reads whole items: it costs as much as reading the values."""
        return self._listed(_VALUES, prefix)

    def get_versioned(self, key: bytes) -> Versioned | None:
        """See ``Member.get_versioned``."""
        place = _Place(_VERSIONED, key)
        at_least = self._seen_versions.highest(key)
        with self._aws.errors_named():
            found = self._values_of([place])
        versioned = None
        if place in found:
            head, value = found[place]
            versioned = Versioned(int(head["ver"]["N"]), value)
        self._seen_versions.check(key, versioned, at_least)
        return versioned

    def written_last(self, key: bytes) -> Versioned | None:
        """See ``Member.written_last``: versions are compared here, not bytes."""
        return None

    def list_versioned(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_versioned``."""
        return self._listed(_VERSIONED, prefix)

    def compare_and_set(self, key: bytes, expected_version: int, value: bytes) -> bool:
        """See ``Member.compare_and_set``: one conditional put, never repeated."""
        place = _Place(_VERSIONED, key)
        condition: _Item = {"ConditionExpression": "attribute_not_exists(pk)"}
        if expected_version:
            condition = {
                "ConditionExpression": "ver = :expected",
                "ExpressionAttributeValues": {":expected": {"N": str(expected_version)}},
            }
        with self._aws.errors_named():
            self._made.make_ready()
            written = self._as_items(place, value)
            written.head["ver"] = {"N": str(expected_version + 1)}
            return self._set(place, written, condition)

    def ping(self) -> None:
        """See ``Member.ping``."""
        with self._aws.errors_named():
            self._made.make_ready()
            # A unique key: another process may ping concurrently.
            key = {"pk": {"S": f"{self._prefix}/ping"}, "sk": {"S": secrets.token_hex(8)}}
            self._aws.repeating.put_item(TableName=self._table, Item=key)
            found = self._aws.repeating.get_item(
                TableName=self._table, Key=key, ConsistentRead=True
            )
            self._aws.repeating.delete_item(TableName=self._table, Key=key)
        if "Item" not in found:
            raise StoreUnavailableError(
                f"the store member {self._member_id} did not return the value that was just "
                "written to it."
            )

    def close(self) -> None:
        """See ``Member.close``."""
        self._aws.close()

    def remove_orphans(self) -> int:
        """Remove parts of crashed writes; scans the table. For upkeep.

        Parts younger than an hour are kept: their write may be under way.

        Returns:
            Number of parts removed.
        """
        with self._aws.errors_named():
            self._made.make_ready()
            owners: set[_Place] = set()
            pages = self._aws.repeating.get_paginator("scan").paginate(
                TableName=self._table,
                FilterExpression="begins_with(pk, :parts)",
                ExpressionAttributeValues={":parts": {"S": f"{self._prefix}/parts/"}},
                ProjectionExpression="pk, #of",
                ExpressionAttributeNames={"#of": "of"},
            )
            for page in pages:
                for item in page["Items"]:
                    owners.add(_Place(item["pk"]["S"].split("/")[-2], bytes(item["of"]["B"])))
            current = self._generations(owners)
            return sum(self._sweep(place, keep=current.get(place)) for place in owners)

    # --- reading --------------------------------------------------------------------------------

    def _values_of(self, places: Sequence[_Place]) -> dict[_Place, tuple[_Item, bytes]]:
        """Return head and value of each place that has one; a damaged copy has an empty value."""
        found: dict[_Place, tuple[_Item, bytes]] = {}
        unread: Collection[_Place] = places
        without_parts: dict[_Place, str] = {}
        for _ in attempts(5):
            heads = self._heads(unread)
            split = {place: head for place, head in heads.items() if "gen" in head}
            for place, head in heads.items():
                if "val" in head:
                    found[place] = (head, bytes(head["val"]["B"]))
            for place, value in self._joined(split).items():
                if value is not None:
                    found[place] = (split[place], value)
            # Missing parts were replaced after their head was read: read it again.
            unread = [place for place in split if place not in found]
            for place in unread:
                if place.space == _VALUES and without_parts.get(place) == split[place]["gen"]["S"]:
                    found[place] = (split[place], b"")
            unread = [place for place in unread if place not in found]
            without_parts = {place: split[place]["gen"]["S"] for place in unread}
            if not unread:
                return found
        raise StoreUnavailableError(
            f"the store member {self._member_id} lacks parts of {len(unread)} values."
        )

    def _joined(self, heads: Mapping[_Place, _Item]) -> dict[_Place, bytes | None]:
        """Return the values whose heads name parts; None if a part is missing."""
        keys = {
            place: [
                self._part_key(place, head["gen"]["S"], number)
                for number in range(int(head["cnt"]["N"]))
            ]
            for place, head in heads.items()
        }
        read = self._read([key for of_place in keys.values() for key in of_place])
        parts = {item["sk"]["S"]: bytes(item["val"]["B"]) for item in read}
        return {
            place: b"".join(parts[key["sk"]["S"]] for key in of_place)
            if all(key["sk"]["S"] in parts for key in of_place)
            else None
            for place, of_place in keys.items()
        }

    def _heads(self, places: Collection[_Place], projection: str | None = None) -> Any:
        self._made.make_ready()
        by_key = {(k["pk"]["S"], k["sk"]["S"]): p for p in places for k in (self._key_of(p),)}
        found = self._read([self._key_of(place) for place in places], projection)
        return {by_key[item["pk"]["S"], item["sk"]["S"]]: item for item in found}

    def _generations(self, places: Collection[_Place]) -> dict[_Place, str]:
        """Return the generation of each place that has parts."""
        heads = self._heads(places, "pk, sk, gen")
        return {place: head["gen"]["S"] for place, head in heads.items() if "gen" in head}

    def _read(self, keys: Sequence[_Item], projection: str | None = None) -> list[_Item]:
        def read(batch: Sequence[_Item]) -> list[_Item]:
            request: _Item = {"Keys": batch, "ConsistentRead": True}
            if projection is not None:
                request["ProjectionExpression"] = projection
            items: list[_Item] = []
            for _ in attempts(8 + len(batch), base_s=0.05):
                # An answer ends at 16 MB; the rest is requested again.
                answer = self._aws.repeating.batch_get_item(RequestItems={self._table: request})
                items += answer["Responses"].get(self._table, [])
                if not answer["UnprocessedKeys"]:
                    return items
                request = answer["UnprocessedKeys"][self._table]
            raise self._too_slow()

        batches = _cut(keys, _READ_ITEMS)
        return [item for items in self._aws.in_parallel(read, batches) for item in items]

    def _listed(self, space: str, prefix: bytes) -> list[bytes]:
        def query(bucket: int) -> list[bytes]:
            condition, values = "pk = :pk", {":pk": {"S": self._bucket(space, bucket)}}
            if prefix:
                condition += " AND begins_with(sk, :prefix)"
                values[":prefix"] = {"S": prefix.hex()}
            return [bytes.fromhex(item["sk"]["S"]) for item in self._query(condition, values)]

        with self._aws.errors_named():
            self._made.make_ready()
            found = self._aws.in_parallel(query, range(_BUCKETS))
        return sorted(key for keys in found for key in keys)

    def _query(self, condition: str, values: _Item) -> Iterator[_Item]:
        pages = self._aws.repeating.get_paginator("query").paginate(
            TableName=self._table,
            KeyConditionExpression=condition,
            ExpressionAttributeValues=values,
            ProjectionExpression="pk, sk",
            ConsistentRead=True,
        )
        for page in pages:
            yield from page["Items"]

    # --- writing --------------------------------------------------------------------------------

    def _as_items(self, place: _Place, value: bytes) -> _Written:
        head = self._key_of(place)
        if len(value) <= _PART_BYTES:
            return _Written({**head, "val": {"B": value}})
        generation = f"{int(time.time()):012x}-{secrets.token_hex(8)}"
        parts = tuple(
            {
                **self._part_key(place, generation, number),
                "val": {"B": value[start : start + _PART_BYTES]},
                "of": {"B": place.key},
            }
            for number, start in enumerate(range(0, len(value), _PART_BYTES))
        )
        return _Written({**head, "gen": {"S": generation}, "cnt": {"N": str(len(parts))}}, parts)

    def _set(self, place: _Place, written: _Written, condition: _Item) -> bool:
        """Write the parts, then the head if the condition holds; remove parts without a head."""
        self._write(written.parts)
        answer = self._aws.set_once(
            lambda: self._aws.once.put_item(
                TableName=self._table, Item=written.head, ReturnValues="ALL_OLD", **condition
            ),
            refused=_FAILED,
        )
        if answer is None:
            self._delete([_key_in(part) for part in written.parts])
            return False
        replaced = _generation(answer.get("Attributes", {}))
        if replaced or written.parts:
            self._sweep(place, keep=written.generation, replaced=replaced)
        return True

    def _remove(self, place: _Place, condition: _Item) -> bool:
        """Remove a head if the condition holds, then its parts."""
        answer = self._aws.set_once(
            lambda: self._aws.once.delete_item(
                TableName=self._table,
                Key=self._key_of(place),
                ReturnValues="ALL_OLD",
                **condition,
            ),
            refused=_FAILED,
        )
        if answer is None:
            return False
        replaced = _generation(answer.get("Attributes", {}))
        if replaced:
            self._sweep(place, keep=None, replaced=replaced)
        return True

    def _sweep(self, place: _Place, *, keep: str | None, replaced: str | None = None) -> int:
        """Remove the parts of a place that no head names any more.

        The head is read after the parts were listed: this process may have been suspended since
        its own write, and another one's value may be there by now.
        """
        condition, values = "pk = :pk", {":pk": {"S": self._part_key(place, "", 0)["pk"]["S"]}}
        found = []
        for item in self._query(condition, values):
            generation = item["sk"]["S"].partition("/")[0]
            age_s = time.time() - int(generation.partition("-")[0], 16)
            if generation != keep and (generation == replaced or age_s > _ORPHAN_SECONDS):
                found.append((generation, _key_in(item)))
        current = self._generations([place] if found else []).get(place)
        doomed = [key for generation, key in found if generation != current]
        self._delete(doomed)
        return len(doomed)

    def _write(self, items: Iterable[_Item]) -> None:
        self._batch([{"PutRequest": {"Item": item}} for item in items])

    def _delete(self, keys: Iterable[_Item]) -> None:
        self._batch([{"DeleteRequest": {"Key": key}} for key in keys])

    def _batch(self, requests: Sequence[_Item]) -> None:
        def write(batch: Sequence[_Item]) -> None:
            rest = batch
            for _ in attempts(8 + len(batch), base_s=0.05):
                answer = self._aws.repeating.batch_write_item(RequestItems={self._table: rest})
                rest = answer["UnprocessedItems"].get(self._table, [])
                if not rest:
                    return
            raise self._too_slow()

        self._aws.in_parallel(write, _cut(requests, _WRITE_ITEMS))

    def _too_slow(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the store member {self._member_id} did not finish a batch in time because DynamoDB "
            "throttles the table.",
            cure="Raise the table's capacity.",
        )

    def _key_of(self, place: _Place) -> _Item:
        bucket = zlib.crc32(place.key) % _BUCKETS
        return {"pk": {"S": self._bucket(place.space, bucket)}, "sk": {"S": place.key.hex()}}

    def _bucket(self, space: str, bucket: int) -> str:
        return f"{self._prefix}/{space}/{bucket:02d}"

    def _part_key(self, place: _Place, generation: str, number: int) -> _Item:
        digest = hashlib.sha256(place.key).hexdigest()
        return {
            "pk": {"S": f"{self._prefix}/parts/{place.space}/{digest}"},
            "sk": {"S": f"{generation}/{number:06d}"},
        }


def parsed_url(url: str) -> NetworkUrl:
    """Parse and check the URL."""
    return parsed(url, _OWN_OPTIONS, EXAMPLE)


def member_id(url: NetworkUrl) -> str:
    """Return the id: the table, and the options that identify it."""
    return url.member_id(url.host, ("region", "endpoint_url", "prefix"))


def _generation(head: _Item) -> str | None:
    return str(head["gen"]["S"]) if "gen" in head else None


def _key_in(item: _Item) -> _Item:
    return {"pk": item["pk"], "sk": item["sk"]}


def _unchanged(head: _Item | None) -> _Item:
    """Return the condition that a head is unchanged since it was read."""
    if head is None:
        return {"ConditionExpression": "attribute_not_exists(pk)"}
    name = "gen" if "gen" in head else "val"
    return {
        "ConditionExpression": f"{name} = :seen",
        "ExpressionAttributeValues": {":seen": head[name]},
    }


def _cut(items: Sequence[_Item], size: int) -> list[Sequence[_Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]

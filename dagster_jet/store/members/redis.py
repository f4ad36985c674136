"""``redis://host:6379/0`` and ``rediss://``: a member in one Redis or Valkey server.

Each server is one member: several independent servers, not replicas of each other, not a cluster.
Durability depends on the server's persistence: with ``appendonly yes`` and ``appendfsync always`` a
call that returned is on disk. A server without persistence that dies is lost as a whole, and the
other replicas carry on (``redis_client.py`` distinguishes the two).

All keys have one prefix, so that a server may be shared::

    <prefix>place          hash: token, run         identity of the server
    <prefix>ping           string                   written by ``ping``
    <prefix>v:<key>        string                   a value
    <prefix>values         sorted set of <key>      the values' keys, in byte order
    <prefix>r:<key>        hash: version, value     a versioned value
    <prefix>versioned      sorted set of <key>      the versioned values' keys

Each request is one Lua script or, with large values, one transaction. So a value and its entry in
the listing change atomically, and listing does not scan the keys of other applications.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.store.members.member import Replacement, Versioned
from dagster_jet.store.members.redis_client import RedisClient, Script

_BATCH_BYTES = 4 * 2**20
"""Size of a request: blocks others briefly, far below a time-out. Larger values are sent alone."""
_BATCH_KEYS = 200
_PLAIN_BYTES = 64 * 2**10
"""From this size on, a script's copies cost more than one more round trip."""
_PAGE_KEYS = 5_000

# KEYS: 2 the sorted set, 3... the keys. ARGV: 2 offset of the key behind the prefix, 3... values.
_PUT = Script("""
for i = 3, #KEYS do
  redis.call('SET', KEYS[i], ARGV[i])
  redis.call('ZADD', KEYS[2], 0, string.sub(KEYS[i], ARGV[2]))
end
""")
_DELETE = Script("""
for i = 3, #KEYS do
  redis.call('DEL', KEYS[i])
  redis.call('ZREM', KEYS[2], string.sub(KEYS[i], ARGV[2]))
end
""")
# ARGV, three per key from 3: two flags ('1' or '0': a value was seen; a value is to be written),
# the seen value, the new value.
_REPLACE = Script("""
local written = 0
for i = 3, #KEYS do
  local at = 3 * i - 6
  local found = redis.call('GET', KEYS[i])
  local seen = string.sub(ARGV[at], 1, 1) == '1'
  if (found and seen and found == ARGV[at + 1]) or (not found and not seen) then
    if string.sub(ARGV[at], 2, 2) == '1' then
      redis.call('SET', KEYS[i], ARGV[at + 2])
      redis.call('ZADD', KEYS[2], 0, string.sub(KEYS[i], ARGV[2]))
    else
      redis.call('DEL', KEYS[i])
      redis.call('ZREM', KEYS[2], string.sub(KEYS[i], ARGV[2]))
    end
    written = written + 1
  end
end
return written
""")
# ARGV: from, to, limit.
_LIST = Script("return redis.call('ZRANGEBYLEX', KEYS[2], ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[4])")
_GET_VERSIONED = Script("return redis.call('HMGET', KEYS[2], 'version', 'value')")
# KEYS: 2 the sorted set, 3 the key. ARGV: 2 offset of the key behind the prefix, the expected
# version, the next, the value. Versions are compared as text: Lua's numbers lose bits.
_COMPARE_AND_SET = Script("""
if (redis.call('HGET', KEYS[3], 'version') or '0') ~= ARGV[3] then
  return 0
end
redis.call('HSET', KEYS[3], 'version', ARGV[4], 'value', ARGV[5])
redis.call('ZADD', KEYS[2], 0, string.sub(KEYS[3], ARGV[2]))
return 1
""")
# Not in the place's hash, because transactions with large values watch it.
_PING = Script("redis.call('SET', KEYS[2], ARGV[2]) return redis.call('GET', KEYS[2])")


class RedisMember:
    """A member in one Redis server. It connects at the first call.

    Raises:
        ConfigurationError: the URL is not valid, or the package ``redis`` is not installed.
    """

    def __init__(self, url: str) -> None:
        self._server = RedisClient(url)
        self._values = self._server.prefix + b"v:"
        self._value_keys = self._server.prefix + b"values"
        self._versioned = self._server.prefix + b"r:"
        self._versioned_keys = self._server.prefix + b"versioned"
        self._skip = b"%d" % (len(self._values) + 1)  # both prefixes have the same length

    @property
    def member_id(self) -> str:
        """Scheme, host, port, database, and the prefix unless it is the default."""
        return self._server.member_id

    def __repr__(self) -> str:
        return f"RedisMember({self.member_id!r})"

    def create(self) -> None:
        """See ``Member.create``; does nothing, because servers are not started from here."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``Member.get_many``."""
        found: list[bytes | None] = []
        for batch in _batches(keys, len):
            found += self._server.read(b"MGET", *self._as_values(batch))
        return found

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """See ``Member.put_many``. A crash inside may leave the items of some requests written."""
        for keys in _batches(items, lambda key: len(items[key])):
            self._put({key: items[key] for key in keys})

    def replace_many(self, items: Mapping[bytes, Replacement]) -> int:
        """See ``Member.replace_many``. Writes whose answer was lost are not counted."""
        written = 0
        for batch in _batches(
            items, lambda key: len(items[key].seen or b"") + len(items[key].value or b"")
        ):
            keys = [self._value_keys, *self._as_values(batch)]
            values = [self._skip]
            for key in batch:
                seen, value = items[key].seen, items[key].value
                what = b"%d%d" % (seen is not None, value is not None)
                values += (what, seen or b"", value or b"")
            written += self._server.run(_REPLACE, keys, values, repeatable=True)
        return written

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """See ``Member.delete_many``. A crash inside leaves some requests' keys removed."""
        for batch in _batches(keys, len):
            values_of = [self._value_keys, *self._as_values(batch)]
            self._server.run(_DELETE, values_of, [self._skip], repeatable=True)

    def list_keys(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_keys``; in pages, so that the server is not blocked."""
        return self._listed(self._value_keys, prefix)

    def get_versioned(self, key: bytes) -> Versioned | None:
        """See ``Member.get_versioned``."""
        keys = [self._versioned + key]
        version, value = self._server.run(_GET_VERSIONED, keys, (), repeatable=True)
        return None if version is None else Versioned(int(version), value)

    def written_last(self, key: bytes) -> Versioned | None:
        """See ``Member.written_last``: versions are compared here, not bytes."""
        return None

    def list_versioned(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_versioned``."""
        return self._listed(self._versioned_keys, prefix)

    def compare_and_set(self, key: bytes, expected_version: int, value: bytes) -> bool:
        """See ``Member.compare_and_set``: test and set are one script.

        It is not repeated after a lost answer: a second run could not distinguish its own first
        write from another client's.
        """
        keys = [self._versioned_keys, self._versioned + key]
        versions = (b"%d" % expected_version, b"%d" % (expected_version + 1))
        values = (self._skip, *versions, value)
        return bool(self._server.run(_COMPARE_AND_SET, keys, values, repeatable=False))

    def ping(self) -> None:
        """See ``Member.ping``: writes, because a full server still answers reads."""
        token = secrets.token_bytes(16)
        keys = (self._server.prefix + b"ping",)
        if self._server.run(_PING, keys, (token,), repeatable=True) != token:
            raise StoreUnavailableError(
                f"the store member {self.member_id} did not return the value that was just "
                "written to it."
            )

    def close(self) -> None:
        """See ``Member.close``."""
        self._server.close()

    def _put(self, batch: Mapping[bytes, bytes]) -> None:
        if sum(map(len, batch.values())) < _PLAIN_BYTES:
            keys = [self._value_keys, *self._as_values(batch)]
            self._server.run(_PUT, keys, [self._skip, *batch.values()], repeatable=True)
            return
        listed = [part for key in batch for part in (b"0", key)]
        sets = [(b"SET", self._values + key, value) for key, value in batch.items()]
        self._server.write([*sets, (b"ZADD", self._value_keys, *listed)])

    def _as_values(self, keys: Iterable[bytes]) -> list[bytes]:
        return [self._values + key for key in keys]

    def _listed(self, sorted_set: bytes, prefix: bytes) -> list[bytes]:
        found: list[bytes] = []
        begin, end = b"[" + prefix, _after_all_with(prefix)
        while True:
            values = (begin, end, b"%d" % _PAGE_KEYS)
            page = self._server.run(_LIST, (sorted_set,), values, repeatable=True)
            found += page
            if len(page) < _PAGE_KEYS:
                return found
            begin = b"(" + page[-1]


def _after_all_with(prefix: bytes) -> bytes:
    """Return the end of a ZRANGEBYLEX range over all keys with a prefix."""
    kept = prefix.rstrip(b"\xff")
    return b"(" + kept[:-1] + bytes([kept[-1] + 1]) if kept else b"+"


def _batches(keys: Iterable[bytes], size: Callable[[bytes], int]) -> Iterator[list[bytes]]:
    """Split keys into requests of limited count and size; a larger single key is sent alone."""
    batch: list[bytes] = []
    batch_bytes = 0
    for key in keys:
        if batch and (len(batch) == _BATCH_KEYS or batch_bytes + size(key) > _BATCH_BYTES):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(key)
        batch_bytes += size(key)
    if batch:
        yield batch

"""`JetMap`: a map for users with typed keys and values, accessible from any process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from dagster_jet.errors import ConfigurationError
from dagster_jet.maps.changes import DELETE, PUT, MapChange, Record, size_of
from dagster_jet.maps.event_journal import Journal
from dagster_jet.maps.key_encoding import Key, decode_key, encode_key, entry_key, partition_of
from dagster_jet.maps.log import MapLog, log_of
from dagster_jet.maps.log_state import LogState, Producer
from dagster_jet.maps.parts import AnyStore, MapParts, retry_after_membership_change
from dagster_jet.maps.settings import JournalConfig, MapSettings
from dagster_jet.maps.value_formats import decode_value, encode_value
from dagster_jet.store import MapKey, Store

BATCH_CHANGES_MAX = 10_000
BATCH_BYTES_MAX = 4 << 20
READ_AT_ONCE = 1_000


class JetMap:
    """A partitioned, replicated map, created by ``Jet.map``. Thread-safe.

    Writes of all processes are totally ordered (see ``log.py``). When a write returns it is on all
    replicas, and every reader sees it. ``put_all`` is decided in batches of up to 10,000 items (or
    4 MB), each atomically; readers may see part of a batch while it is applied.

    In Spark tasks a map is read-only.

    Args:
        store: an open store, or a handle for reading only.
        name: name of the map.
        settings: settings in the store; None: the map does not exist yet.
        reads_pickles: allow reading pickled values, because the caller has requested that format.

    Example:
        >>> prices = jet.map("prices")
        >>> prices.put_all({"AAPL": 1.5, ("AAPL", "NYSE"): 1.6})
        >>> prices.get("AAPL"), prices.get("gone", 0), prices.size()
        (1.5, 0, 2)
        >>> prices.delete("AAPL")
        >>> list(prices.items())
        [(('AAPL', 'NYSE'), 1.6)]
    """

    def __init__(
        self,
        store: AnyStore,
        name: str,
        settings: MapSettings | None,
        reads_pickles: bool = False,
    ) -> None:
        if not name:
            raise ConfigurationError("a map needs a name.")
        self.name = name
        self._store = store
        self._settings = settings
        self._reads_pickles = reads_pickles
        self._parts = MapParts(store, name)
        self._log: MapLog | None = log_of(store, name) if isinstance(store, Store) else None

    @staticmethod
    def open(
        store: Store, name: str, *, format: str | None = None, journal: JournalConfig | None = None
    ) -> JetMap:
        """Return a map with the settings in the store; create it if options are given.

        Without options a missing map is empty; its first write creates it, with JSON and no
        journal.

        Raises:
            ConfigurationError: the map exists with another format or journal.
        """
        opened = JetMap(store, name, None)
        opened.require(format=format, journal=journal)
        return opened

    def require(self, *, format: str | None = None, journal: JournalConfig | None = None) -> None:
        """Raise an error if the map has another format or journal; see ``open``."""
        if self._settings is None:
            state = self.log.read_applied()
            if state is None and (format is not None or journal is not None):
                state = self.log.create(MapSettings.of(format, journal))
            self._settings = state.settings if state is not None else None
        if self._settings is not None:
            self._settings.check(self.name, format, journal)
        self._reads_pickles = self._reads_pickles or format == "pickle"

    # --- properties -----------------------------------------------------------------------------

    @property
    def settings(self) -> MapSettings:
        """Format and journal; the defaults if the map does not exist yet."""
        if self._settings is None and self._log is not None:
            state = self._log.read()
            self._settings = state.settings if state is not None else None
        return self._settings or MapSettings()

    @property
    def journal(self) -> Journal | None:
        """The event journal; None if the map has none."""
        settings = self.settings
        if settings.journal_capacity is None:
            return None
        return Journal(self._store, self.name, settings.journal_capacity, settings.journal_ttl_ms)

    @property
    def log(self) -> MapLog:
        """The log of all writes; for connectors.

        Raises:
            ConfigurationError: in a Spark task.
        """
        if self._log is None:
            raise ConfigurationError(
                f"a Spark task can only read the map {self.name!r}.",
                cure="Write to it with sinks.map_entries(), or from the driver.",
            )
        return self._log

    @property
    def store(self) -> AnyStore:
        """The store that holds the map, or a handle of it."""
        return self._store

    @property
    def partition_count(self) -> int:
        """Number of partitions that keys are distributed over."""
        return self._store.partition_count

    def create(self) -> LogState:
        """Create the map with its settings if it does not exist; return the state of its log."""
        state = self.log.create(self.settings)
        self._settings = state.settings
        return state

    # --- reading --------------------------------------------------------------------------------

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the value of a key, or ``default`` if there is none.

        Raises:
            ConfigurationError: the key's type is not supported, or values are pickled and the map
                was opened without ``format="pickle"``.
            StoreUnavailableError: too few members answer.
        """
        return self.get_all([key]).get(key, default)

    def get_all(self, keys: Iterable[Key]) -> dict[Key, Any]:
        """Return the values of the keys that have one, with one round trip per member.

        Raises the errors of ``get``, and:
            ConfigurationError: two keys of the map are equal in Python, as 1 and True are.
        """
        wanted: dict[Key, str] = {}
        for key in keys:
            text = encode_key(key)
            if wanted.setdefault(key, text) != text:
                raise ConfigurationError(
                    f"{wanted[key]} and {text} are two keys of the map {self.name!r}, and one key "
                    "of a Python dict.",
                    cure="Get them one at a time.",
                )
        stored = self._read([self._entry(key) for key in wanted])
        found = {}
        for key, data in zip(wanted, stored, strict=True):
            record = Record.from_bytes(data) if data is not None else None
            if record is not None and record.kind == PUT:
                found[key] = decode_value(self._readable_format(), record.value)
        return found

    def _readable_format(self) -> str:
        """Returns the format; refuses unrequested pickles, because reading one runs code."""
        format = self.settings.format
        if format == "pickle" and not self._reads_pickles:
            raise ConfigurationError(
                f"the values of the map {self.name!r} are pickled, and unpickling runs code from "
                "the value.",
                cure='Open it with format="pickle" if you trust everybody who may write to it and '
                "to the store's members.",
            )
        return format

    def __contains__(self, key: Key) -> bool:
        return key in self.get_all([key])

    def items(self, partitions: Iterable[int] | None = None) -> Iterator[tuple[Key, Any]]:
        """Yield all keys and values, one partition at a time, with at most 1,000 values in memory.

        The keys are listed first: those of one partition at a time, but all keys of the map if all
        partitions are wanted, or if several are and the store has a member on S3.

        The result is not a consistent cut: concurrent writes may or may not be included.

        Args:
            partitions: partitions to read; by default all.

        Raises:
            ConfigurationError, StoreUnavailableError: as for ``get``.
        """
        format = self._readable_format()
        for record in self.records(partitions):
            yield decode_key(record.key), decode_value(format, record.value)

    def keys(self, partitions: Iterable[int] | None = None) -> Iterator[Key]:
        """Yield all keys, like ``items``."""
        for record in self.records(partitions):
            yield decode_key(record.key)

    def size(self) -> int:
        """Return the number of keys. Reads all entries, in order to skip deleted keys."""
        return sum(1 for _ in self.records())

    def records(self, partitions: Iterable[int] | None = None) -> Iterator[Record]:
        """Yield the entries as they are stored, like ``items``; for connectors."""
        keys = self._keys_in(range(self.partition_count) if partitions is None else [*partitions])
        while some := list(islice(keys, READ_AT_ONCE)):
            for data in self._read(some):
                record = Record.from_bytes(data) if data is not None else None
                if record is not None and record.kind == PUT:
                    yield record

    def _read(self, keys: Sequence[MapKey]) -> list[bytes | None]:
        return retry_after_membership_change(
            self._store, lambda: self._parts.entries().get_all(keys)
        )

    def _keys_in(self, partitions: Collection[int]) -> Iterator[MapKey]:
        """Yields the keys of partitions, one partition at a time."""
        is_whole = len(partitions) == self.partition_count
        if is_whole or (len(partitions) > 1 and self._parts.entries().lists_whole_maps):
            wanted = frozenset(partitions)
            yield from (key for key in self._listed() if key.partition in wanted)
            return
        for partition in partitions:
            yield from self._listed(partition)

    def _listed(self, partition: int | None = None) -> list[MapKey]:
        def keys() -> list[MapKey]:
            entries = self._parts.entries()
            return entries.keys() if partition is None else entries.keys_in(partition)

        return retry_after_membership_change(self._store, keys)

    # --- writing --------------------------------------------------------------------------------

    def put(self, key: Key, value: Any) -> None:
        """Set the value of a key. Raises the errors of ``put_all``."""
        self.put_all([(key, value)])

    def put_all(self, items: Mapping[Key, Any] | Iterable[tuple[Key, Any]]) -> None:
        """Set many values in a few round trips, in the given order.

        Raises:
            ConfigurationError: the map cannot hold a key or value; nothing was written.
            StoreUnavailableError: members do not answer. Each batch was decided as a whole or not
                at all; it is then visible after the next write at the latest. Repeat the call.
        """
        pairs = items.items() if isinstance(items, Mapping) else items
        format = self.settings.format  # once: until the map exists, each look is a read
        self._write([self._put(key, value, format) for key, value in pairs])

    def delete(self, key: Key) -> None:
        """Remove a key; an unknown key is not an error. Raises the errors of ``put_all``."""
        self.delete_all([key])

    def delete_all(self, keys: Iterable[Key]) -> None:
        """Remove many keys. Batches and errors are those of ``put_all``."""
        self._write([self.change(DELETE, key) for key in keys])

    def change(self, kind: str, key: Key, value: Any = None) -> MapChange:
        """Return the encoded change; for connectors. Raises the errors of ``put_all``."""
        if kind == PUT:
            return self._put(key, value, self.settings.format)
        return MapChange(kind, partition_of(key, self.partition_count), encode_key(key), b"")

    def _put(self, key: Key, value: Any, format: str) -> MapChange:
        text = encode_key(key)  # first, because it reports invalid keys
        partition = partition_of(key, self.partition_count)
        return MapChange(PUT, partition, text, encode_value(format, value))

    def apply(self, changes: list[MapChange], producer: Producer | None = None) -> None:
        """Write one batch unchanged; for connectors. Raises the errors of ``put_all``."""
        self.log.append(changes, self.settings, producer)

    def _write(self, changes: list[MapChange]) -> None:
        for batch in batches_of(changes):
            self.apply(batch)

    def _entry(self, key: Key) -> MapKey:
        partition = partition_of(key, self.partition_count)
        return entry_key(encode_key(key), partition, self._parts.name_bytes_max)

    # --- representation -------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        handle = self._store.handle() if isinstance(self._store, Store) else self._store
        return JetMap, (handle, self.name, self.settings, self._reads_pickles)

    def __repr__(self) -> str:
        return f"JetMap({self.name!r}, {self._settings!r})"


def batches_of(changes: Iterable[MapChange]) -> Iterator[list[MapChange]]:
    """Split the changes into batches that are small enough to be decided atomically."""
    batch: list[MapChange] = []
    size = 0
    for change in changes:
        if batch and (len(batch) == BATCH_CHANGES_MAX or size + size_of(change) > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(change)
        size += size_of(change)
    if batch:
        yield batch

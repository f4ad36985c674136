"""`JetMap`: a map for users, from any process, with typed keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """A partitioned, replicated map, made by ``Jet.map``. Threads may share it.

    The writes of all processes happen one after the other (see ``log.py``). When a write returns,
    it is on all replicas, and every reader sees it. ``put_all`` is decided in batches of up to
    10,000 items (or 4 MB), each as a whole; readers may see part of a batch while it is applied.

    A function that runs in Spark tasks may use a map, to read only.

    Args:
        store: an open store, or a handle for reading only.
        name: the map's name.
        settings: as the store has them; None: the map does not exist yet.
        reads_pickles: pickled values may be read, because the caller has asked for them.

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
        """Return a map as the store knows it; create it if options are given.

        Without options a map that does not exist is empty, and is created by its first write,
        with JSON values and no journal.

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

    # --- what it is -----------------------------------------------------------------------------

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
        """The log that all writes go through; for connectors.

        Raises:
            ConfigurationError: in a Spark task.
        """
        if self._log is None:
            raise ConfigurationError(
                f"the map {self.name!r} can only be read here, in a Spark task.",
                cure="Write to it with sinks.map(), or from the driver.",
            )
        return self._log

    @property
    def store(self) -> AnyStore:
        """The store it is kept in, or a handle of it."""
        return self._store

    @property
    def partition_count(self) -> int:
        """How many partitions keys are spread over."""
        return self._store.partition_count

    def create(self) -> LogState:
        """Create the map with its settings if it does not exist, and return its log's state."""
        state = self.log.create(self.settings)
        self._settings = state.settings
        return state

    # --- reading --------------------------------------------------------------------------------

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the value of a key, or ``default`` if there is none.

        Raises:
            ConfigurationError: the key is of a type that no key has, or values are pickled and the
                map was opened without ``format="pickle"``.
            StoreUnavailableError: too few members answer.
        """
        return self.get_all([key]).get(key, default)

    def get_all(self, keys: Iterable[Key]) -> dict[Key, Any]:
        """Return the values of those keys that have one, in one round trip per member.

        Raises as ``get``.
        """
        wanted = list(dict.fromkeys(_distinct(key) for key in keys))
        stored = self._read([self._entry(key) for _, key in wanted])
        found = {}
        for (_, key), data in zip(wanted, stored, strict=True):
            record = Record.from_bytes(data) if data is not None else None
            if record is not None and record.kind == PUT:
                found[key] = decode_value(self._readable_format(), record.value)
        return found

    def _readable_format(self) -> str:
        """The format, unless reading values would run what the store's members say unasked."""
        format = self.settings.format
        if format == "pickle" and not self._reads_pickles:
            raise ConfigurationError(
                f"the values of the map {self.name!r} are pickled, and reading a pickle runs what "
                "it says.",
                cure='Open it with format="pickle" if you trust everybody who may write to it and '
                "to the store's members.",
            )
        return format

    def __contains__(self, key: Key) -> bool:
        return key in self.get_all([key])

    def items(self, partitions: Iterable[int] | None = None) -> Iterator[tuple[Key, Any]]:
        """Yield all keys and values, a partition at a time, 1,000 entries in memory at once.

        They are not a cut at one moment: what is written meanwhile may be seen or not.

        Args:
            partitions: only these; by default all.

        Raises:
            ConfigurationError, StoreUnavailableError: as ``get``.
        """
        format = self._readable_format()
        for record in self.records(partitions):
            yield decode_key(record.key), decode_value(format, record.value)

    def keys(self, partitions: Iterable[int] | None = None) -> Iterator[Key]:
        """Yield all keys, in the way of ``items``."""
        for record in self.records(partitions):
            yield decode_key(record.key)

    def size(self) -> int:
        """Return the number of keys. It reads all entries, to leave out deleted keys."""
        return sum(1 for _ in self.records())

    def records(self, partitions: Iterable[int] | None = None) -> Iterator[Record]:
        """Yield the entries as they are stored, in the way of ``items``; for connectors."""
        for partition in range(self.partition_count) if partitions is None else partitions:
            keys = iter(self._keys_in(partition))
            while some := list(islice(keys, READ_AT_ONCE)):
                for data in self._read(some):
                    record = Record.from_bytes(data) if data is not None else None
                    if record is not None and record.kind == PUT:
                        yield record

    def _read(self, keys: Sequence[MapKey]) -> list[bytes | None]:
        return retry_after_membership_change(
            self._store, lambda: self._parts.entries().get_all(keys)
        )

    def _keys_in(self, partition: int) -> list[MapKey]:
        return retry_after_membership_change(
            self._store, lambda: self._parts.entries().keys_in(partition)
        )

    # --- writing --------------------------------------------------------------------------------

    def put(self, key: Key, value: Any) -> None:
        """Set the value of a key. Raises as ``put_all``."""
        self.put_all([(key, value)])

    def put_all(self, items: Mapping[Key, Any] | Iterable[tuple[Key, Any]]) -> None:
        """Set many values in a few round trips, in the order given.

        Raises:
            ConfigurationError: a key or value that the map cannot keep; nothing was written.
            StoreUnavailableError: members do not answer. Each batch was decided as a whole or not
                at all; one that was decided is seen after the next write at the latest. Put again.
        """
        pairs = items.items() if isinstance(items, Mapping) else items
        self._write([self.change(PUT, key, value) for key, value in pairs])

    def delete(self, key: Key) -> None:
        """Remove a key; an unknown one is no error. Raises as ``put_all``."""
        self.delete_all([key])

    def delete_all(self, keys: Iterable[Key]) -> None:
        """Remove many keys, in batches. Batches and errors are those of ``put_all``."""
        self._write([self.change(DELETE, key) for key in keys])

    def change(self, kind: str, key: Key, value: Any = None) -> MapChange:
        """Return a change as it is written; for connectors. Raises as ``put_all``."""
        text = encode_key(key)  # first: it says what is wrong with a key
        data = b"" if kind == DELETE else encode_value(self.settings.format, value)
        return MapChange(kind, partition_of(key, self.partition_count), text, data)

    def apply(self, changes: list[MapChange], producer: Producer | None = None) -> None:
        """Write one batch as it is; for connectors. Raises as ``put_all``."""
        self.log.append(changes, self.settings, producer)

    def _write(self, changes: list[MapChange]) -> None:
        for batch in batches_of(changes):
            self.apply(batch)

    def _entry(self, key: Key) -> MapKey:
        partition = partition_of(key, self.partition_count)
        return entry_key(encode_key(key), partition, self._parts.name_bytes_max)

    # --- life -----------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        handle = self._store.handle() if isinstance(self._store, Store) else self._store
        return JetMap, (handle, self.name, self.settings, self._reads_pickles)

    def __repr__(self) -> str:
        return f"JetMap({self.name!r}, {self._settings!r})"


def batches_of(changes: Iterable[MapChange]) -> Iterator[list[MapChange]]:
    """Yield the changes in batches that are small enough to be decided as a whole."""
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


def _distinct(key: Key) -> tuple[str, Key]:
    """For Python 1 and True are one key; for the map they are two."""
    return encode_key(key), key

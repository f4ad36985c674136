"""A store on real Redis servers: some are killed and come back empty, and others die after them."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dagster_jet.errors import StoreError
from dagster_jet.store import MapKey, Store, StoreConfig
from tests.long import long
from tests.servers.members import RedisServer

Items = dict[MapKey, bytes]


@pytest.fixture
def servers() -> Iterator[list[RedisServer]]:
    """Five servers that keep nothing beyond their processes."""
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer(password=f"secret-{n}")) for n in range(5)]


class Writer:
    """Goes on writing, and refreshes its store when it is told to; as a job's driver does."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.written: Items = {}
        self.failures: list[BaseException] = []
        self.refused = 0

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self.failures == []

    def _write(self) -> None:
        try:
            with Store.open(self._config) as store:
                turn = 0
                while not self._stop.is_set():
                    key, value = store.map("m").key(f"k{turn % 100}"), b"%d" % turn
                    try:
                        store.map("m").put_all({key: value})
                    except StoreError:
                        self.refused += 1
                        self._refresh(store)
                        continue  # the same again
                    self.written[key] = value
                    turn += 1
        except BaseException as error:
            self.failures.append(error)

    def _refresh(self, store: Store) -> None:
        try:
            store.refresh()
        except StoreError:
            self._stop.wait(0.05)


@pytest.mark.parametrize(("members", "backup_count"), [(3, 1), pytest.param(5, 2, marks=long)])
def test_servers_come_back_empty_and_then_others_die(
    servers: list[RedisServer], members: int, backup_count: int
) -> None:
    """As many servers as there are backups die at once, twice; no confirmed value is lost."""
    urls = tuple(server.url for server in servers[:members])
    config = StoreConfig(urls, backup_count=backup_count, partition_count=31)
    with Store.open(config) as store:
        before = {MapKey(p, "before"): b"%d" % p * 500 for p in range(31)}
        store.map("m").put_all(before)
        store.register("record").claim(1, "me").write(b"decided")
        with Writer(config) as writer:
            for server in servers[:backup_count]:
                server.kill()
            assert len(store.status().lost) == 0
            for server in servers[:backup_count]:
                server.restart(empty=True)
            assert not store.is_safe()
            changes = store.repair()
            assert len(changes.readmitted) == backup_count
            assert store.is_safe()
            for server in servers[backup_count : 2 * backup_count]:
                server.kill()
            record = store.register("record").read()
            assert record is not None
            assert record.value == b"decided"
            assert store.map("m").get_all(list(before)) == list(before.values())
            if members - backup_count > backup_count:  # enough stay to give the others up
                assert len(store.repair().left) == backup_count
                assert store.is_safe()
        items = {**before, **writer.written}
        assert len(items) > len(before)
        assert store.map("m").get_all(list(items)) == list(items.values())
        assert store.verify().is_whole

"""Stores that are configured wrongly, or whose members fail: one sentence that says which member,
what is wrong and what helps; and afterwards everything is as it was.

What jobs make of a full disk and of a clock that jumps: test_surroundings.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dagster_jet.errors import StoreError, StoreMismatchError, StoreUnavailableError
from dagster_jet.errors import StoreUnwritableError as Unwritable
from dagster_jet.store import Store, StoreConfig
from dagster_jet.store.members import member_id_of
from tests.servers.members import AwsServer, RedisServer, free_port

VALUE = b"written before"
PASSWORD, WRONG = "the-right-one", "the-wrong-one"


def fill(config: StoreConfig) -> None:
    with Store.open(config) as store:
        values = store.map("values")
        values.put_all({values.key(f"{n}"): VALUE for n in range(50)})


def put_others(store: Store) -> None:
    values = store.map("others")
    values.put_all({values.key(f"{n}"): b"" for n in range(50)})


def assert_undamaged(config: StoreConfig) -> None:
    """The store opens and every value is there; what was refused can be written now, and then all
    copies are there and equal."""
    with Store.open(config) as store:
        put_others(store)
        values = store.map("values")
        assert set(values.get_all([values.key(f"{n}") for n in range(50)])) == {VALUE}
        assert store.is_safe()
        assert store.verify().is_whole


def refused(work: Callable[[], object], kind: type[StoreError], *parts: str) -> None:
    with pytest.raises(kind) as told:
        work()
    for part in parts:
        assert part in str(told.value), f"{part!r} is not in: {told.value}"
    assert PASSWORD not in str(told.value) and WRONG not in str(told.value)


@pytest.fixture(scope="module")
def redis_urls() -> Iterator[list[str]]:
    servers = [RedisServer(password=PASSWORD) for _ in range(3)]
    with servers[0], servers[1], servers[2]:
        yield [f"{server.url}?connect_timeout=0.5&timeout=1" for server in servers]


def test_a_wrong_password_of_one_member(redis_urls: list[str]) -> None:
    """The store opens, because a majority answers; what needs the member says what is wrong."""
    fill(StoreConfig(tuple(redis_urls)))
    wrong = [redis_urls[0].replace(PASSWORD, WRONG), *redis_urls[1:]]
    assert wrong[0] != redis_urls[0]
    with Store.open(StoreConfig(tuple(wrong))) as store:
        parts = (member_id_of(wrong[0]), "refuses this user or password", "Set the password")
        refused(lambda: put_others(store), Unwritable, *parts)
        [error] = [m.error for m in store.status().members if not m.reachable]
        assert error is not None and "refuses this user or password" in error
    assert_undamaged(StoreConfig(tuple(redis_urls)))


def test_a_wrong_password_of_all_members(redis_urls: list[str]) -> None:
    fill(StoreConfig(tuple(redis_urls)))
    wrong = StoreConfig(tuple(url.replace(PASSWORD, WRONG) for url in redis_urls))
    parts = (*wrong.member_ids, "refuses this user or password", "Set the password")
    refused(lambda: Store.open(wrong), Unwritable, *parts)
    assert_undamaged(StoreConfig(tuple(redis_urls)))


def test_another_partition_count(redis_urls: list[str]) -> None:
    fill(StoreConfig(tuple(redis_urls)))
    other = StoreConfig(tuple(redis_urls), partition_count=31)
    parts = ("partition_count", "created with 271", "says 31", "Use the store's setting")
    refused(lambda: Store.open(other), StoreMismatchError, *parts)
    assert_undamaged(StoreConfig(tuple(redis_urls)))


def test_a_new_store_with_an_unreachable_member(redis_urls: list[str]) -> None:
    """Nothing is created: the member might hold an older store."""
    nobody = f"redis://127.0.0.1:{free_port()}/1?connect_timeout=0.5&timeout=0.5"
    empty = [url.replace("/0?", "/1?") for url in redis_urls]
    config = StoreConfig((nobody, *empty))
    parts = (member_id_of(nobody), "needs all of its members", "Connection refused", "Bring them")
    refused(lambda: Store.open(config), StoreUnavailableError, *parts)
    fill(StoreConfig(tuple(empty)))
    assert_undamaged(StoreConfig(tuple(empty)))


def test_an_unreachable_member_of_an_existing_store() -> None:
    servers = [RedisServer(appendonly=True) for _ in range(3)]
    with servers[0], servers[1], servers[2]:
        urls = [f"{server.url}?connect_timeout=0.5&timeout=0.5" for server in servers]
        fill(StoreConfig(tuple(urls)))
        servers[1].kill()
        with Store.open(StoreConfig(tuple(urls))) as store:
            parts = (member_id_of(urls[1]), "Connection refused", "Check the server")
            refused(lambda: put_others(store), StoreUnavailableError, *parts)
        servers[1].restart(empty=False)
        assert_undamaged(StoreConfig(tuple(urls)))


def test_a_wrong_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    with AwsServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.create_bucket("ours")
        right, wrong = (
            StoreConfig(
                (f"s3://{bucket}/a?endpoint_url={server.endpoint_url}",),
                backup_count=0,
                partition_count=7,
            )
            for bucket in ("ours", "typo")
        )
        fill(right)
        parts = ("s3://typo", "NoSuchBucket", "Check the name")
        refused(lambda: Store.open(wrong), Unwritable, *parts)
        assert_undamaged(right)


def test_a_full_disk(tmp_path: Path) -> None:
    """Fills the disk of one member: a small disk in a mount namespace of its own."""
    folder = tmp_path / "small"
    folder.mkdir()
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--map-root-user", "--mount"]
    command = ["unshare", *namespaces, sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path)]
    root = Path(__file__).parents[2]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=root
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"file://{folder}" in run.stdout and "with free space" in run.stdout


ON_A_SMALL_DISK = """
import subprocess, sys
from dagster_jet.errors import StoreUnwritableError
from dagster_jet.store import Store, StoreConfig
root = sys.argv[1]
small = f"{root}/small"
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={4 * 2**20}", "tmpfs", small], check=True)
config = StoreConfig((f"file://{small}", f"file://{root}/b"), partition_count=7)
with Store.open(config) as store:
    values = store.map("values")
    keys = [values.key(str(n)) for n in range(20)]
    values.put_all(dict.fromkeys(keys, b"written before"))
    large = values.key("large")
    try:
        values.put_all({large: bytes(8 * 2**20)})
    except StoreUnwritableError as error:
        print(error)
    else:
        raise SystemExit("8 MB fit on a disk of 4 MB")
    values.delete_all([large])
with Store.open(config) as store:
    assert set(store.map("values").get_all(keys)) == {b"written before"}
    assert store.is_safe() and store.verify().is_whole
"""

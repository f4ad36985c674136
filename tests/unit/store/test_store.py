"""Opening a store: created once, recognised later, refused when it is not the same."""

import multiprocessing
import pickle
import shutil
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dagster_jet import Jet
from dagster_jet.errors import (
    ConfigurationError,
    FencedError,
    StoreMismatchError,
    StoreUnavailableError,
    StoreUnwritableError,
)
from dagster_jet.store import (
    MapKey,
    MemoryMember,
    Secret,
    Store,
    StoreConfig,
    StoreHandle,
    open_member,
)


def config(folder: Path, members: str = "abc", **settings: object) -> StoreConfig:
    return StoreConfig(tuple(f"file://{folder}/{m}" for m in members), **settings)


# --- configuration ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"urls": ()}, "urls"),
        ({"urls": "file:///a"}, "urls"),
        ({"urls": ("file:///a", "file:///b/../a")}, "urls: file:///a is named more than once"),
        ({"backup_count": 7}, "backup_count"),
        ({"backup_count": -1}, "backup_count"),
        ({"partition_count": 0}, "partition_count"),
        ({"namespace": ""}, "namespace"),
        ({"namespace": ".."}, "namespace"),
        ({"namespace": "a/../b"}, "namespace"),
        ({"namespace": "a\nb"}, "namespace"),
        ({"lease_ttl": "10 ms"}, "lease_ttl: is shorter than 1 second"),
        ({"lease_ttl": "off"}, "lease_ttl: 'off' is not a duration"),
        ({"member_timeout": "0 s"}, "member_timeout: is shorter than 1 second"),
        ({"member_timeout": "never"}, "member_timeout: 'never' is not a duration"),
        ({"scale_up_delay": timedelta(seconds=-1)}, "scale_up_delay"),
        ({"split_brain_protection": "yes"}, "split_brain_protection"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict, field: str) -> None:
    with pytest.raises(ConfigurationError, match=field):
        StoreConfig(**{"urls": ("file:///a", "file:///b"), **settings})


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host/x", "'ftp' is not a known scheme.*file://, redis://"),
        ("redis://:secret@host:port/0", "redis:// store URL cannot be read"),
        (":secret@host:6379/0", "has no known scheme"),
        ("jet/a", "has no known scheme.*A folder is file:///var/jet/a"),
        ("file://relative/folder", "three slashes"),
        ("memory://", "memory://name"),
    ],
)
def test_a_url_that_cannot_be_opened_says_why(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        open_member(url, allow_memory=True)
    assert "secret" not in str(refused.value)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    """Failed before: a member "was closed", and the cure was to bring the members back."""
    with Jet(store=[f"file://{tmp_path}/a"], backup_count=0) as jet:
        job = jet.job("orders")
    for ask in (lambda: job.status, jet.jobs, lambda: jet.map("m")):
        with pytest.raises(StoreUnavailableError, match=r"^this store is closed\. Ask inside"):
            ask()


def test_a_job_that_drains_longer_keeps_the_store(tmp_path: Path) -> None:
    """Failed before: its thread found the store closed, and the job FAILED."""
    with Jet(store=[f"file://{tmp_path}/a"], backup_count=0) as jet:
        for job, ends in (("orders", False), ("other", True)):
            jet._jobs[job] = Mock(done=Mock(**{"wait.return_value": ends}))
    assert jet.store.map("m").get(jet.store.map("m").key("k")) is None
    jet.store.close()


def test_memory_is_refused_with_a_cure_that_a_user_has() -> None:
    with pytest.raises(ConfigurationError, match="in a test a temporary folder") as refused:
        open_member("memory://x")
    assert "allow_memory" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="Use one of: file://, redis://") as refused:
        open_member("flie:///a")
    assert "memory" not in str(refused.value)


def test_more_backups_than_members_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="backup_count=3 needs 4 members, urls names 3"):
        Store.open(config(tmp_path, backup_count=3))


# --- opening ----------------------------------------------------------------------------------


def test_a_store_keeps_maps_registers_and_its_table(tmp_path: Path) -> None:
    with Store.open(config(tmp_path)) as store:
        table = store.table
        assert store.partition_count == 271
        store.map("m").put_all({MapKey.of("k"): b"v"})
        store.register("job").claim(1, "me").write(b"record")
        assert store.status().is_safe
    with Store.open(config(tmp_path)) as store:
        assert store.table == table
        assert store.map("m").get(MapKey.of("k")) == b"v"
        record = store.register("job").read()
        assert record is not None
        assert record.value == b"record"


def test_maps_registers_and_namespaces_do_not_mix(tmp_path: Path) -> None:
    with Store.open(config(tmp_path)) as store:
        for name in ("a", "a/0000", "ä", "%"):
            store.map(name).put_all({MapKey(0, "k"): name.encode()})
        for name in ("a", "a/0000", "ä", "%"):
            assert store.map(name).get(MapKey(0, "k")) == name.encode()
            assert store.map(name).keys() == [MapKey(0, "k")]
        store.register("store").claim(1, "me").write(b"not the store's own")
    with Store.open(config(tmp_path, namespace="other")) as store:
        assert store.map("a").keys() == []
        assert store.register("store").read() is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"partition_count": 31}, "partition_count: the store was created with 271"),
        ({"backup_count": 2}, "backup_count: the store was created with 1"),
        ({"members": "ab"}, "the configuration does not name file://.*/c. Add the URL"),
    ],
)
def test_another_configuration_is_refused(tmp_path: Path, settings: dict, said: str) -> None:
    Store.open(config(tmp_path)).close()
    with pytest.raises(StoreMismatchError, match=said):
        Store.open(config(tmp_path, **settings))


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    from dagster_jet.store import Configuration, RegisterClient

    settings = config(tmp_path)
    members = {m: settings.open_member(m) for m in settings.member_ids}
    for member in members.values():
        member.create()
    register = RegisterClient(Configuration(0, members), "store")
    register.claim(1, "the future").write(b'{"format": 3}')
    with pytest.raises(StoreMismatchError, match="format 3"):
        Store.open(config(tmp_path))
    for member in members.values():
        member.close()


def test_a_new_store_in_an_unwritable_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("a file where a folder should be")
    with pytest.raises(StoreUnwritableError, match=f"{tmp_path}/b.*Point the URL"):
        Store.open(config(tmp_path))


def _open_in_process(settings: StoreConfig, start: object, tables: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    with Store.open(settings) as store:
        tables.put((store.table, store.handle().identities))  # type: ignore[attr-defined]


def test_processes_that_open_a_new_store_at_once_get_one_store(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    start, tables = spawn.Barrier(3), spawn.Queue()
    processes = [
        spawn.Process(target=_open_in_process, args=(config(tmp_path), start, tables))
        for _ in range(3)
    ]
    for process in processes:
        process.start()
    opened = [tables.get(timeout=30) for _ in processes]
    for process in processes:
        process.join()
    assert opened[0] == opened[1] == opened[2]


# --- members that are away --------------------------------------------------------------------


def test_a_deleted_member_is_read_around_and_not_taken_for_the_old_one(tmp_path: Path) -> None:
    with Store.open(config(tmp_path)) as store:
        items = {MapKey(p, "k"): b"%d" % p for p in range(271)}
        store.map("m").put_all(items)
        shutil.rmtree(tmp_path / "b")
        assert store.map("m").get_all(list(items)) == list(items.values())
        assert not store.status().is_safe
        with pytest.raises(StoreUnavailableError, match=f"{tmp_path}/b"):
            store.map("m").put_all(items)
    with Store.open(config(tmp_path)) as store:
        error = {member.member_id[-1]: member.error for member in store.status().members}["b"]
        assert "does not exist. Perhaps its disk is not mounted" in (error or "")
        assert not (tmp_path / "b").exists(), "what is mounted there later must not be hidden"
    # Somebody makes an empty folder of that name. It has forgotten what was promised.
    (tmp_path / "b").mkdir()
    with Store.open(config(tmp_path)) as store:
        status = {member.member_id[-1]: member for member in store.status().members}
        assert not status["b"].reachable
        assert "deleted or replaced" in (status["b"].error or "")
        assert status["a"].reachable
        assert (status["a"].primaries, status["a"].backups) in {(90, 90), (91, 90), (90, 91)}
        assert store.map("m").get_all(list(items)) == list(items.values())
        with pytest.raises(StoreUnavailableError, match=f"{tmp_path}/b"):
            store.map("m").put_all(items)
        store.register("job").claim(1, "me").write(b"still a majority")


def test_two_deleted_members_of_three_are_too_many_and_are_named(tmp_path: Path) -> None:
    Store.open(config(tmp_path)).close()
    for member in "ab":
        shutil.rmtree(tmp_path / member)
    with pytest.raises(StoreUnavailableError, match=f"{tmp_path}/a.*{tmp_path}/b"):
        Store.open(config(tmp_path))


def test_an_existing_store_opens_with_one_member_unwritable(tmp_path: Path) -> None:
    Store.open(config(tmp_path)).close()
    shutil.rmtree(tmp_path / "c")
    (tmp_path / "c").write_text("a file where the folder was")
    with Store.open(config(tmp_path)) as store:
        assert [member.reachable for member in store.status().members] == [True, True, False]


def test_a_member_that_cannot_be_written_is_only_given_up_by_name(tmp_path: Path) -> None:
    with Store.open(config(tmp_path)) as store:
        items = {MapKey(p, "k"): b"%d" % p for p in range(271)}
        store.map("m").put_all(items)
    shutil.rmtree(tmp_path / "c")
    (tmp_path / "c").write_text("a file where the folder was")
    with Store.open(config(tmp_path)) as store:
        with pytest.raises(
            StoreUnwritableError, match=r"does not remove .*/c from the store.*store remove.*/c"
        ):
            store.repair()
        assert store.configuration_number == 0
        store.remove_member(f"file://{tmp_path}/c")
        assert store.is_safe()
        assert store.map("m").get_all(list(items)) == list(items.values())


def test_a_member_that_is_away_keeps_a_new_store_from_being_created(tmp_path: Path) -> None:
    Store.open(config(tmp_path)).close()
    # Two members lose everything, the third, which remembers, does not answer.
    for member in "ab":
        shutil.rmtree(tmp_path / member)
    (tmp_path / "c").rename(tmp_path / "away")
    (tmp_path / "c").write_text("not mounted")
    with pytest.raises(StoreUnwritableError, match="a new store needs all of its members"):
        Store.open(config(tmp_path))


# --- handles ----------------------------------------------------------------------------------


def _read_in_process(handle: StoreHandle, found: object) -> None:
    found.put(handle.map("m").get(MapKey.of("k")))  # type: ignore[attr-defined]
    handle.map("m").put_all({MapKey.of("from the worker"): b"w"})


def test_members_of_two_stores_are_refused_whichever_is_named_first(places: Any) -> None:
    with Store.open(places.config("abc")) as first, Store.open(places.config("de")) as second:
        ids = (first.store_id[:8], second.store_id[:8])
    for names in ("abcd", "adbe", "dabc", "deb"):
        with pytest.raises(StoreMismatchError, match="of several stores") as refused:
            Store.open(places.config(names))
        for told in (*ids, *places.urls(names)):
            assert told in str(refused.value)


def test_an_outage_of_all_members_is_an_outage_and_not_another_store(places: Any) -> None:
    with Store.open(places.config("abc")) as store:
        for name in "abc":
            places.take_away(name)
        with pytest.raises(StoreUnavailableError, match="none of the store's members"):
            store.refresh()
        for name in "abc":
            places.bring_back(name)
        assert not store.refresh()


def test_a_handle_works_in_another_process(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    found = spawn.Queue()
    with Store.open(config(tmp_path)) as store:
        store.map("m").put_all({MapKey.of("k"): b"v"})
        worker = spawn.Process(target=_read_in_process, args=(store.handle(), found))
        worker.start()
        assert found.get(timeout=30) == b"v"
        worker.join()
        assert worker.exitcode == 0
        assert store.map("m").get(MapKey.of("from the worker")) == b"w"


def test_a_handle_outlives_its_store_and_equals_its_copy(tmp_path: Path) -> None:
    with Store.open(config(tmp_path)) as store:
        handle = pickle.loads(pickle.dumps(store.handle()))
        assert handle == store.handle()
        handle.map("m").put_all({handle.key("k"): b"v"})
    assert handle.map("m").get(handle.key("k")) == b"v"


def test_a_handle_does_not_use_a_member_that_was_replaced(tmp_path: Path) -> None:
    with Store.open(config(tmp_path)) as store:
        store.map("m").put_all({MapKey(p, "k"): b"v" for p in range(271)})
        handle = store.handle()
    shutil.rmtree(tmp_path / "a")
    assert handle.map("m").get_all([MapKey(p, "k") for p in range(271)]) == [b"v"] * 271
    with pytest.raises(StoreUnavailableError, match=f"{tmp_path}/a"):
        handle.map("m").put_all({MapKey(p, "k"): b"v2" for p in range(271)})


def test_memory_members_make_a_store_for_unit_tests() -> None:
    urls = tuple(f"memory://{uuid.uuid4().hex}" for _ in range(3))
    with Store.open(StoreConfig(urls, allow_memory=True, partition_count=12)) as store:
        store.map("m").put_all({MapKey(0, "k"): b"v"})
        MemoryMember(urls[0].removeprefix("memory://")).forget()
        assert [member.reachable for member in store.status().members].count(False) == 1
        first = store.register("r").claim(1, "a")
        store.register("r").claim(2, "b")
        with pytest.raises(FencedError):
            first.write(b"v")


def test_configuration_and_handle_do_not_show_urls(tmp_path: Path) -> None:
    shown = repr(config(tmp_path))
    assert f"file://{tmp_path}/a" in shown
    assert "urls" not in shown


# --- passwords ------------------------------------------------------------------------------------


def test_a_password_is_sent_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: it was in every closure that Spark sent to tasks, and spilled to disks."""
    written = StoreConfig(("redis://:hunter2@host:6379/0", "file:///a"))
    with pytest.raises(ConfigurationError, match=r"redis://host:6379/0.*Secret\(env=") as refused:
        pickle.dumps(written)
    assert "hunter2" not in str(refused.value)
    monkeypatch.setenv("MEMBER", "redis://:hunter2@host:6379/0")
    for url in (Secret(env="MEMBER"), "env:MEMBER"):
        config = StoreConfig((url, "file:///a"))
        assert config.member_ids == written.member_ids
        sent = pickle.dumps(config)
        assert b"hunter2" not in sent and "hunter2" not in repr(config)
        assert pickle.loads(sent) == config
        assert config.open_member("redis://host:6379/0").member_id == "redis://host:6379/0"
    monkeypatch.delenv("MEMBER")
    with pytest.raises(ConfigurationError, match="environment variable MEMBER is not set"):
        StoreConfig((Secret(env="MEMBER"),)).member_ids  # noqa: B018 - a property

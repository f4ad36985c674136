"""Members that take a call and do not answer: who waits for them, how long, and what it costs."""

import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dagster_jet.errors import StoreMismatchError, StoreUnavailableError
from dagster_jet.store import (
    Configuration,
    MapKey,
    Member,
    MemoryMember,
    RegisterClient,
    ReplicatedMap,
    Store,
    StoreConfig,
    create_table,
    move_register,
    open_member,
)
from dagster_jet.store.members import bulkhead, fan_out
from dagster_jet.store.members.member import Versioned
from tests.long import long
from tests.servers.members import RedisServer


class HangingMember(MemoryMember):
    """Member on a disk that hangs: no time-out ends a call."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.works = threading.Event()
        self.works.set()

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        self.works.wait()
        super().put_many(items)

    def compare_and_set(self, key: bytes, expected_version: int, value: bytes) -> bool:
        self.works.wait()
        return super().compare_and_set(key, expected_version, value)


@pytest.fixture
def mute_port() -> Iterator[int]:
    """An endpoint that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield listener.getsockname()[1]


def threads_of(member_id: str) -> int:
    return sum(thread.name == f"jet-store {member_id}" for thread in threading.enumerate())


def test_a_stopped_server_holds_up_no_register(tmp_path: Path) -> None:
    with RedisServer() as server:
        urls = (f"file://{tmp_path}/a", server.url, f"file://{tmp_path}/b")
        with Store.open(StoreConfig(urls, partition_count=3)) as store:
            owned = store.register("job").claim(1, "me")
            server.stop_answering()
            begun = time.monotonic()
            for number in range(20):
                owned.write(b"%d" % number)
                found = store.register("job").read()
                assert found is not None
                assert found.value == b"%d" % number
            assert store.register("job").claim(2, "other").value == b"19"
            assert not store.refresh()
            assert time.monotonic() - begun < 5, "as long as a single call to it takes"
            assert threads_of(open_member(server.url).member_id) <= bulkhead.THREADS_MAX
            server.go_on()


@pytest.mark.parametrize("scheme", ["redis", "s3"])
def test_a_write_to_an_endpoint_that_never_answers_names_it_in_time(
    mute_port: int, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    short = "connect_timeout=0.3&timeout=0.3"
    hung = {
        "redis": f"redis://127.0.0.1:{mute_port}/0?{short}",
        "s3": f"s3://bucket/x?region=eu-west-1&{short}&endpoint_url=http://127.0.0.1:{mute_port}",
    }[scheme]
    members = {m.member_id: m for m in (open_member(hung), MemoryMember(uuid.uuid4().hex))}
    table = create_table(list(members), 3, 1)
    begun = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=f"on all their replicas: {scheme}://"):
        ReplicatedMap(members, table, "map/n/m").put_all({MapKey.of("k", 3): b"v"})
    assert time.monotonic() - begun < 10


def test_a_call_that_never_comes_back_becomes_an_error_and_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fan_out, "BATCH_SECONDS_MAX", 0.2)
    hung = HangingMember(uuid.uuid4().hex)
    members: dict[str, Member] = {m.member_id: m for m in (hung, MemoryMember(uuid.uuid4().hex))}
    written = ReplicatedMap(members, create_table(list(members), 3, 1), "map/n/m")
    hung.works.clear()
    for said in ("did not answer in time", *["an earlier call to it has not returned"] * 50):
        with pytest.raises(StoreUnavailableError, match=f"{hung.member_id}.*{said}"):
            written.put_all({MapKey.of("k", 3): b"v"})
    assert threads_of(hung.member_id) == 1
    hung.works.set()
    while fan_out.Answers[None]().has_overdue_calls(hung.member_id):
        time.sleep(0.001)
    written.put_all({MapKey.of("k", 3): b"v2"})
    assert written.get(MapKey.of("k", 3)) == b"v2"


def test_a_call_that_makes_progress_has_its_time_again() -> None:
    """Failed before: a listing of many pages had the time of a short call."""
    never = threading.Event()

    def listed() -> str:
        for _ in range(6):
            assert not never.wait(0.1)
            bulkhead.progressed()
        return "listed"

    def hangs_after_progress() -> str:
        bulkhead.progressed()
        assert never.wait(60)
        return ""

    name = f"memory://{uuid.uuid4().hex}"
    calls = {f"{name}-pages": listed, f"{name}-hangs": hangs_after_progress}
    found, failures = fan_out.fan_out(calls, within_s=0.3)
    never.set()
    assert found == {f"{name}-pages": "listed"}
    assert list(failures) == [f"{name}-hangs"]


def test_what_a_hanging_member_is_asked_is_bounded_and_counts_when_it_works_again() -> None:
    hung = HangingMember(uuid.uuid4().hex)
    members = [MemoryMember(uuid.uuid4().hex), hung, MemoryMember(uuid.uuid4().hex)]
    register = RegisterClient(Configuration(0, {m.member_id: m for m in members}), "job")
    owned = register.claim(1, "me")
    hung.works.clear()
    for number in range(200):
        owned.write(b"%d" % number)
    assert threads_of(hung.member_id) <= bulkhead.THREADS_MAX
    hung.works.set()
    owned.write(b"newest")
    while fan_out.Answers[None]().has_overdue_calls(hung.member_id):
        time.sleep(0.001)
    members[0].reachable = False
    found = register.read()
    assert found is not None
    assert found.value == b"newest", "delayed writes change nothing that is newer"


def test_a_process_that_can_start_no_thread_calls_again_when_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member_id, start = uuid.uuid4().hex, threading.Thread.start

    def refuses(thread: threading.Thread) -> None:
        if member_id in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuses)
    calls = {member_id: lambda: 1}
    for _ in range(bulkhead.THREADS_MAX + 1):
        results, failures = fan_out.fan_out(calls, within_s=0.5)
        assert not results and "can't start new thread" in str(failures[member_id])
    monkeypatch.setattr(threading.Thread, "start", start)
    assert fan_out.fan_out(calls, within_s=10) == ({member_id: 1}, {})


def test_a_call_without_a_thread_of_its_own_waits_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member_id, goes_on = uuid.uuid4().hex, threading.Event()
    answers, other = fan_out.Answers[int](), fan_out.Answers[int]()
    other.ask(member_id, lambda: int(goes_on.wait(30)), 30)

    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        answers.ask(member_id, lambda: 2, 30)
    goes_on.set()
    answer = answers.next()
    assert answer is not None and answer.value == 2
    assert threads_of(member_id) == 1


class SlowMember(MemoryMember):
    """Answers, after longer than those that came too late for a decision are waited for."""

    def get_versioned(self, key: bytes) -> Versioned | None:
        time.sleep(3 * fan_out.GRACE_SECONDS)
        return super().get_versioned(key)


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=long)])
def test_a_register_moves_to_slow_members_that_are_needed(count: int) -> None:
    """The others answer at once that they do not hold it yet, which decides nothing."""
    quick = [MemoryMember(uuid.uuid4().hex) for _ in range(count)]
    slow = [SlowMember(uuid.uuid4().hex) for _ in range(count)]
    leaving = MemoryMember(uuid.uuid4().hex)
    before = Configuration[Member](0, {m.member_id: m for m in (*quick, leaving, *slow)})
    RegisterClient(before, "job").claim(1, "me").write(b"v")
    members: dict[str, Member] = {m.member_id: m for m in (*quick, *slow)}
    changed = Configuration(1, members, before)
    move_register(changed, "job")
    found = RegisterClient(changed, "job").read()
    assert found is not None
    assert found.value == b"v"


def test_no_store_is_created_on_a_member_that_is_slow_to_say_that_it_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Someone writes the members of tomorrow into the configuration before they have joined."""
    place = uuid.uuid4().hex

    def config_of(letters: str) -> StoreConfig:
        urls = tuple(f"memory://{place}-{letter}" for letter in letters)
        return StoreConfig(urls, partition_count=3, allow_memory=True)

    with Store.open(config_of("abc")) as store:
        store.register("job").claim(1, "me").write(b"v")
    at_once = MemoryMember.get_versioned

    def slowly(member: MemoryMember, key: bytes) -> Versioned | None:
        if member.member_id.endswith("-c"):
            time.sleep(3 * fan_out.GRACE_SECONDS)
        return at_once(member, key)

    monkeypatch.setattr(MemoryMember, "get_versioned", slowly)
    with pytest.raises(StoreMismatchError, match=r"the configuration does not name memory://.*-a"):
        Store.open(config_of("cde"))


def test_a_process_ends_while_a_member_hangs() -> None:
    program = """
import threading
from dagster_jet.store.members.fan_out import fan_out
calls = {"a": threading.Event().wait, "b": lambda: True, "c": lambda: True}
assert len(fan_out(calls, enough=2)[0]) == 2
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

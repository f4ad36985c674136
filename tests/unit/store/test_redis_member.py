"""A Redis server as a member: what it refuses, how long it waits, what it tells."""

import contextlib
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from dagster_jet.errors import ConfigurationError, StoreUnavailableError, StoreUnwritableError
from dagster_jet.store import Replacement, Store, StoreConfig, Versioned, open_member
from dagster_jet.store.members import member_id_of
from tests.servers.members import RedisServer, free_port

SECRET = "s3cr3t/+@"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


# --- URLs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "member_id"),
    [
        ("redis://Host", "redis://host:6379/0"),
        ("redis://:secret@host:6380/2?timeout=1", "redis://host:6380/2"),
        ("rediss://user:secret@[::1]/?password_env=X", "rediss://[::1]:6379/0"),
        ("redis://host/0?prefix=a:&restart=accept", "redis://host:6379/0?prefix=a:"),
    ],
)
def test_an_id_names_the_place_and_nothing_else(url: str, member_id: str) -> None:
    assert member_id_of(url) == member_id
    assert open_member(url).member_id == member_id
    assert "secret" not in repr(open_member(url))
    assert "secret" not in repr(StoreConfig((url,)))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://", "cannot be read.*Write it as redis://"),
        ("redis://:se/cret@host:6379/0", "percent-encode"),
        ("redis://:secret@host:65536/0", "percent-encode"),
        ("redis://:secret@host/cret", "number of a database"),
        ("redis://host?timeuot=1", "timeuot.*Use: ca, cert, connect_timeout"),
        ("redis://host?timeout=1&timeout=2", "one of them twice"),
        ("redis://host?timeout=soon", "timeout.*expected a number of seconds"),
        ("redis://host?timeout=0", "timeout.*expected a number of seconds"),
        ("redis://host?restart=maybe", "restart.*accept or refuse"),
        ("redis://host?ca=/x", "need rediss://"),
        ("rediss://host?ca=/not/there", "the file /not/there does not exist"),
    ],
)
def test_a_wrong_url_is_refused_without_repeating_it(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        open_member(url)
    assert "cret" not in str(refused.value)


def test_a_missing_package_is_one_sentence_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "redis", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'dagster-jet\[redis\]'"):
        open_member("redis://host")


# --- passwords and TLS --------------------------------------------------------------------------


def test_a_password_comes_from_the_url_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer(password=SECRET) as server:
        plain = f"redis://127.0.0.1:{server.port}/0"
        open_member(server.url).ping()
        for url, variable in ((plain, "JET_REDIS_PASSWORD"), (f"{plain}?password_env=PW", "PW")):
            monkeypatch.setenv(variable, SECRET)
            open_member(url).ping()
            monkeypatch.delenv(variable)
        refusals = {
            plain: "refuses this user or password.*Authentication required.*password_env",
            f"redis://:{SECRET[0]}wrong@127.0.0.1:{server.port}/0": "refuses this user or password",
            f"{plain}?password_env=PW": "environment variable PW, which is not set",
        }
        for url, said in refusals.items():
            with pytest.raises(StoreUnwritableError, match=said) as refused:
                open_member(url).ping()
            assert f"redis://127.0.0.1:{server.port}/0" in str(refused.value)
            assert "wrong" not in str(refused.value)


def test_no_secret_is_shown(server: RedisServer) -> None:
    with RedisServer(password=SECRET) as closed:
        member = open_member(closed.url)
        member.ping()
        closed.kill()
        with pytest.raises(StoreUnavailableError) as failed:
            member.ping()
    error: BaseException | None = failed.value
    while error is not None:
        assert SECRET not in str(error) + repr(error) + repr(error.args)
        error = error.__cause__
    assert SECRET not in repr(member) + member.member_id


def test_tls_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer(tls=True, password=SECRET) as server:
        member = open_member(server.url)
        member.put_many({b"k": bytes(300_000)})
        assert member.get_many([b"k"]) == [bytes(300_000)]
        member.close()
        trusting_nobody = server.url.partition("?")[0]
        with pytest.raises(StoreUnavailableError, match="certificate"):
            open_member(trusting_nobody).ping()
        # A server that speaks no TLS at all.
        monkeypatch.setenv("JET_REDIS_PASSWORD", SECRET)
        with pytest.raises(StoreUnavailableError, match=r"rediss://127\.0\.0\.1"):
            open_member(
                f"rediss://127.0.0.1:{server.port}/0?timeout=0.3&ca={server.ca_file}"
            ).ping()


# --- servers that do not answer -----------------------------------------------------------------


def test_nobody_there_is_told_soon() -> None:
    port = free_port()
    begun = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=f"redis://127.0.0.1:{port}/0.*refused"):
        open_member(f"redis://127.0.0.1:{port}/0").get_many([b"k"])
    assert time.monotonic() - begun < 2


def test_a_stopped_server_is_given_up_within_the_time_out(server: RedisServer) -> None:
    member = open_member(f"{server.url}?timeout=0.3&connect_timeout=0.3")
    member.put_many({b"k": b"v"})
    server.stop_answering()
    try:
        calls = (
            lambda: member.get_many([b"k"]),
            lambda: member.put_many({b"k": b"w"}),
            lambda: member.compare_and_set(b"c", 0, b""),
            lambda: open_member(f"{server.url}?timeout=0.3").ping(),
        )
        for call in calls:
            begun = time.monotonic()
            with pytest.raises(StoreUnavailableError, match=f":{server.port}/0 does not answer"):
                call()
            assert time.monotonic() - begun < 1.5
    finally:
        server.go_on()
    assert member.get_many([b"k"]) in ([b"v"], [b"w"])


def test_a_lost_answer_leaves_a_set_in_doubt_and_says_so(server: RedisServer) -> None:
    member = open_member(f"{server.url}?timeout=0.3")
    assert member.compare_and_set(b"before", 0, b"")  # the server knows the script from now on
    server.stop_answering()
    with pytest.raises(StoreUnavailableError, match="Whether the value was set is unknown"):
        member.compare_and_set(b"c", 0, b"once")
    server.go_on()
    # It was, as soon as the server went on; asking twice would have said False.
    deadline = time.monotonic() + 5
    while member.get_versioned(b"c") is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert member.get_versioned(b"c") == Versioned(1, b"once")


class LosingFront:
    """Hands requests on to a server, and hangs up instead of handing back some of its answers."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.to_lose = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        acting = threading.Event()

        def ask(server: socket.socket) -> None:
            """Large requests come in pieces, and are not answered before the last one."""
            before = b""
            with contextlib.suppress(OSError):
                while request := client.recv(65_536):
                    if any(word in before + request for word in (b"EVALSHA", b"EXEC")):
                        acting.set()
                    before = request[-8:]
                    server.sendall(request)
                server.shutdown(socket.SHUT_WR)

        with client, socket.create_connection(("127.0.0.1", self._to)) as server:
            threading.Thread(target=ask, args=(server,), daemon=True).start()
            with contextlib.suppress(OSError):
                while answer := server.recv(65_536):
                    if self.to_lose and acting.is_set():
                        self.to_lose -= 1
                        client.shutdown(socket.SHUT_RDWR)
                        return
                    client.sendall(answer)


def test_only_what_may_be_done_twice_is_done_again(server: RedisServer) -> None:
    front = LosingFront(server.port)
    member = open_member(f"redis://127.0.0.1:{front.port}/0")
    member.put_many({b"k": b"v"})
    assert member.compare_and_set(b"before", 0, b"")
    front.to_lose = 1
    member.put_many({b"k": b"w"})
    assert member.get_many([b"k"]) == [b"w"]
    front.to_lose = 1
    with pytest.raises(StoreUnavailableError, match="Whether the value was set is unknown"):
        member.compare_and_set(b"c", 0, b"once")
    assert front.to_lose == 0
    assert member.get_versioned(b"c") == Versioned(1, b"once"), "it was; asking twice says False"
    front.close()


LARGE = os.urandom(300_000)


def test_a_large_write_whose_answer_was_lost_is_done_again(server: RedisServer) -> None:
    front = LosingFront(server.port)
    member = open_member(f"redis://127.0.0.1:{front.port}/0")
    member.put_many({b"k": b"v"})
    front.to_lose = 1
    member.put_many({b"k": LARGE, b"l": LARGE})
    assert front.to_lose == 0
    assert member.get_many([b"k", b"l"]) == [LARGE] * 2
    assert member.list_keys(b"") == [b"k", b"l"]
    front.close()


def test_large_values_go_through_no_script(server: RedisServer) -> None:
    import redis

    member = open_member(server.url)
    member.ping()
    with redis.Redis(port=server.port) as operator:

        def calls(command: str) -> int:
            found = operator.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})
            return int(found["calls"])

        scripts, transactions = calls("evalsha"), calls("exec")
        items = {b"%02d" % number: LARGE for number in range(40)}
        member.put_many(items)
        assert member.get_many(list(items)) == [LARGE] * 40
        assert calls("evalsha") == scripts
        assert calls("exec") - transactions == 4, "requests of at most 4 MiB"
        member.put_many({b"small": b""})
        assert calls("exec") - transactions == 4, "one more answer to wait for"


def test_a_large_write_does_not_reach_a_server_emptied_at_that_moment(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is emptied between the check of its token and the write."""
    import redis

    member = open_member(server.url)
    member.put_many({b"k": b"v"})
    way = member._server  # type: ignore[attr-defined]
    check = way._check
    with redis.Redis(port=server.port) as operator:

        def checked_too_early(token: bytes | None) -> None:
            check(token)
            operator.flushall()

        monkeypatch.setattr(way, "_check", checked_too_early)
        with pytest.raises(StoreUnavailableError, match="emptied or replaced"):
            member.put_many({b"k": LARGE})
        assert operator.keys() == []


def test_a_ping_does_not_stop_a_large_write(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, other = open_member(server.url), open_member(server.url)
    member.ping()
    way = member._server  # type: ignore[attr-defined]
    check = way._check
    looks: list[bytes | None] = []

    def checked(token: bytes | None) -> None:
        check(token)
        other.ping()
        looks.append(token)

    monkeypatch.setattr(way, "_check", checked)
    member.put_many({b"k": LARGE})
    assert len(looks) == 1, "written at the first attempt"


def test_a_loading_server_is_waited_for() -> None:
    with RedisServer(appendonly=True, settings=("key-load-delay 300",)) as server:
        member = open_member(server.url)
        member.put_many({b"%d" % number: bytes(100) for number in range(2_000)})
        server.kill()
        restarting = threading.Thread(target=lambda: server.restart(empty=False))
        restarting.start()
        answered = None
        while answered is None:
            try:
                answered = member.get_many([b"0", b"1999"])
            except StoreUnavailableError as error:
                assert "does not answer as it should" in str(error)
        restarting.join()
        assert answered == [bytes(100)] * 2


# --- servers that come back ---------------------------------------------------------------------


def test_a_server_that_keeps_everything_may_be_killed() -> None:
    with RedisServer(appendonly=True) as server:
        member = open_member(server.url)
        member.put_many({b"k": b"v"})
        assert member.compare_and_set(b"c", 0, b"promise")
        server.kill()
        with pytest.raises(StoreUnavailableError):
            member.get_many([b"k"])
        server.restart(empty=False)
        assert member.get_many([b"k"]) == [b"v"]
        assert member.get_versioned(b"c") == Versioned(1, b"promise")
        assert open_member(server.url).list_keys(b"") == [b"k"]


def test_a_server_that_comes_back_empty_is_another_one(server: RedisServer) -> None:
    member = open_member(server.url)
    member.put_many({b"k": b"v"})
    server.restart(empty=True)
    calls = (
        lambda: member.get_many([b"k"]),
        lambda: member.put_many({b"k": b"w"}),
        lambda: member.compare_and_set(b"c", 0, b""),
    )
    for call in calls:
        with pytest.raises(StoreUnavailableError, match="emptied or replaced"):
            call()
    fresh = open_member(server.url)
    assert fresh.get_many([b"k"]) == [None]
    assert fresh.list_versioned(b"") == []


def test_a_server_that_is_emptied_while_connected_is_noticed(server: RedisServer) -> None:
    import redis

    member = open_member(server.url)
    member.put_many({b"k": b"v"})
    with redis.Redis(port=server.port) as operator:
        operator.flushall()
    with pytest.raises(StoreUnavailableError, match="emptied or replaced"):
        member.compare_and_set(b"c", 0, b"")
    assert open_member(server.url).get_versioned(b"c") is None


def test_a_server_that_may_have_come_back_older_is_refused_until_accepted() -> None:
    import redis

    with RedisServer(settings=("save 3600 1", "appendfsync everysec")) as server:
        member = open_member(server.url)
        member.compare_and_set(b"c", 0, b"saved")
        with redis.Redis(port=server.port) as operator:
            operator.save()
        member.compare_and_set(b"c", 1, b"confirmed, not saved")
        server.kill()
        server.restart(empty=False)
        for one in (member, open_member(server.url)):
            with pytest.raises(
                StoreUnavailableError, match=r"may have lost writes.*restart=accept"
            ):
                one.get_versioned(b"c")
        with redis.Redis(port=server.port) as operator:
            # Settings that are put right afterwards say nothing about what is missing.
            operator.config_set("appendonly", "yes")
            operator.config_set("appendfsync", "always")
        with pytest.raises(StoreUnavailableError, match="may have lost writes"):
            open_member(server.url).get_versioned(b"c")
        accepted = open_member(f"{server.url}?restart=accept")
        assert accepted.get_versioned(b"c") == Versioned(1, b"saved")
        assert member.get_versioned(b"c") == Versioned(1, b"saved"), "one acceptance is enough"


def _is_writing_its_log(info: dict[str, object]) -> bool:
    return bool(info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"])


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_replica_that_takes_a_servers_place_is_refused(is_restarted: bool) -> None:
    import redis

    with RedisServer(appendonly=True) as server, RedisServer(appendonly=True) as replica:
        member = open_member(server.url)
        member.put_many({b"k": b"v"})
        with redis.Redis(port=replica.port) as operator:
            operator.replicaof("127.0.0.1", server.port)
            while operator.info("replication")["master_link_status"] != "up":
                pass
            open_member(server.url).ping()  # whoever connects now sees that there is a replica
            with redis.Redis(port=server.port) as first:
                first.set("behind it", "all")
                assert first.wait(1, 10_000) == 1
            operator.replicaof("no", "one")
            while _is_writing_its_log(operator.info("persistence")):
                pass
        member.put_many({b"k": b"confirmed, and not on the replica"})
        server.kill()
        if is_restarted:
            replica.kill()
            replica.restart(empty=False)
        with pytest.raises(StoreUnavailableError, match="a replica took its place"):
            open_member(replica.url).get_many([b"k"])


# --- servers that cannot take it ----------------------------------------------------------------


def test_a_full_server_is_unwritable_and_still_reads() -> None:
    import redis

    with RedisServer(maxmemory=4 * 2**20) as server:
        member = open_member(server.url)
        member.put_many({b"k": b"v"})
        with pytest.raises(StoreUnwritableError, match=f":{server.port}/0 takes no writes.*memory"):
            for number in range(16):
                member.put_many({b"%d" % number: os.urandom(2**19)})
        with redis.Redis(port=server.port) as operator:
            operator.config_set("maxmemory", 1)
            with pytest.raises(StoreUnwritableError, match="takes no writes"):
                member.ping()
            assert member.get_many([b"k"]) == [b"v"]
            member.delete_many([b"%d" % number for number in range(16)])
            assert member.list_keys(b"") == [b"k"]
            operator.config_set("maxmemory", 4 * 2**20)
        member.ping()


def test_a_server_that_may_not_write_is_unwritable() -> None:
    with (
        RedisServer(settings=("min-replicas-to-write 1",)) as server,
        pytest.raises(StoreUnwritableError, match=r"takes no writes.*NOREPLICAS"),
    ):
        open_member(server.url).ping()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("maxmemory-policy allkeys-lru",), r"drops keys.*noeviction"),
        (("cluster-enabled yes",), r"part of a Redis cluster.*standalone"),
    ],
)
def test_a_cache_and_a_cluster_are_no_members(settings: tuple[str, ...], said: str) -> None:
    with (
        RedisServer(maxmemory=2**24, settings=settings) as server,
        pytest.raises(StoreUnwritableError, match=said),
    ):
        open_member(server.url).ping()


# --- sharing ------------------------------------------------------------------------------------


def test_prefixes_and_others_share_a_server(server: RedisServer) -> None:
    import redis

    one, two = open_member(server.url), open_member(f"{server.url}?prefix=other:")
    one.put_many({b"k": b"1"})
    assert two.get_many([b"k"]) == [None]
    assert two.list_keys(b"") == []
    with redis.Redis(port=server.port) as other:
        assert all(key.startswith(b"dagster_jet:") for key in other.keys() if b"other" not in key)


def test_many_keys_are_listed_in_pages(server: RedisServer) -> None:
    member = open_member(server.url)
    keys = sorted(b"k/%05d" % number for number in range(12_000))
    member.put_many(dict.fromkeys([*keys, b"k", b"l", b"\xff\xff"], b""))
    assert member.list_keys(b"k/") == keys
    assert member.list_keys(b"\xff") == [b"\xff\xff"]
    assert len(member.list_keys(b"")) == 12_003


def test_threads_share_the_connections(server: RedisServer) -> None:
    member = open_member(server.url)
    wrong: list[object] = []

    def work(name: bytes) -> None:
        for number in range(50):
            member.put_many({name: b"%d" % number})
            if member.get_many([name]) != [b"%d" % number]:
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(b"%d" % number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_replacement_is_judged_by_bytes(server: RedisServer) -> None:
    member = open_member(server.url)
    member.put_many({b"empty": b"", b"zeros": b"\x00\r\n"})
    replacements = {
        b"empty": Replacement(b"", b"1"),
        b"zeros": Replacement(b"\x00\r\n", b"2"),
        b"absent": Replacement(b"", b"3"),
    }
    assert member.replace_many(replacements) == 2


def test_three_servers_make_a_store_that_outlives_one_of_them() -> None:
    with RedisServer() as one, RedisServer() as two, RedisServer() as three:
        config = StoreConfig((one.url, two.url, three.url), partition_count=12)
        assert pickle.loads(pickle.dumps(config)) == config
        with Store.open(config) as store:
            keys = [store.map("m").key(str(number)) for number in range(50)]
            store.map("m").put_all(dict.fromkeys(keys, b"v"))
            store.register("job").claim(1, "me").write(b"record")
            two.restart(empty=True)
            assert store.map("m").get_all(keys) == [b"v"] * 50
            assert [member.reachable for member in store.status().members].count(False) == 1
        with Store.open(config) as store:
            assert store.map("m").get_all(keys) == [b"v"] * 50
            value = store.register("job").read()
            assert value is not None
            assert value.value == b"record"

"""Access to one Redis server: connections, retries, and the identity of the server.

Requirements of a quorum that a client library does not cover:

- **Identity of the data.** A server that comes back empty answers like a new one. A random token is
  kept beside the values; every script checks it first, and clients that knew the token refuse a
  server without it.
- **Restarts.** A server that was killed may come back *older* than its confirmed state: from a
  snapshot file (RDB), from a log that is synced once a second, or because a replica was promoted.
  A register that forgets a promise breaks its quorum. So the server's ``run_id`` is kept beside the
  token. A changed one is accepted only if nothing confirmed can be lost (``appendonly yes`` with
  ``appendfsync always``) or if the operator accepts it (``restart=accept``). Not only the settings
  of the server that came back count, but also those of the server that *confirmed* (``kept``). It
  must not have had replicas either: a promoted replica lacks the writes that had not reached it,
  whatever its settings.
- **Eviction.** A server that evicts keys when its memory is full is a cache, and is refused.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from dagster_jet.core.library import library
from dagster_jet.errors import (
    ConfigurationError,
    StoreError,
    StoreUnavailableError,
    StoreUnwritableError,
)
from dagster_jet.store.members.network_url import NetworkUrl
from dagster_jet.system.backoff import attempts

Connection: TypeAlias = Any
"""``redis.Connection``: the package is optional, and its methods have no types."""

T = TypeVar("T")

PASSWORD_VARIABLE = "JET_REDIS_PASSWORD"
EXAMPLE = "redis://[user:password@]host:6379/0"
OPTIONS = (
    *("prefix", "password_env", "connect_timeout", "timeout", "restart"),
    *("ca", "cert", "key"),
)
_TLS_OPTIONS = ("ca", "cert", "key")
_PREFIX = "dagster_jet:"
_ATTEMPTS_MAX = 4

_FULL = re.compile(r"\b(OOM|MISCONF|READONLY|NOREPLICAS)\b|OutOfMemory|ReadOnly")
_REFUSED = re.compile(r"\b(NOAUTH|WRONGPASS|NOPERM)\b|Authentic|Authoriz|NoPermission")
_BUSY = re.compile(r"\b(LOADING|BUSY|TRYAGAIN|MASTERDOWN|CLUSTERDOWN)\b|BusyLoading|MasterDown")
_REPLACED = "JETPLACE"

_OPEN = """
local token = redis.call('HGET', KEYS[1], 'token')
if not token and ARGV[1] == '' then
  redis.call('HSET', KEYS[1], 'token', ARGV[2], 'run', ARGV[3], 'kept', ARGV[4])
end
return redis.call('HMGET', KEYS[1], 'token', 'run', 'kept')
"""
_ADOPT = "return redis.call('HSET', KEYS[1], 'run', ARGV[1], 'kept', ARGV[2])"
_GUARD = f"""
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
  return redis.error_reply('{_REPLACED} replaced')
end
"""


class Script:
    """A Lua script that runs atomically, and only on the data that was opened.

    ``KEYS[1]`` and ``ARGV[1]`` are reserved: the script's own begin at 2.
    """

    def __init__(self, body: str, *, guarded: bool = True) -> None:
        self.source = (_GUARD if guarded else "") + body
        self.digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


_OPEN_SCRIPT = Script(_OPEN, guarded=False)
_ADOPT_SCRIPT = Script(_ADOPT, guarded=False)


@dataclass(slots=True)
class _Idle:
    """Idle connections of the process that opened them."""

    pid: int = field(default_factory=os.getpid)
    connections: list[Connection] = field(default_factory=list)


class RedisClient:
    """One server, given by a URL. Usable from threads and after a fork.

    Raises:
        ConfigurationError: the URL is not valid, or the package ``redis`` is not installed.
    """

    def __init__(self, url: str) -> None:
        self._redis = _imported()
        self._url = parsed(url)
        self.member_id = member_id(self._url)
        self.prefix = self._url.options.get("prefix", _PREFIX).encode()
        self._place_key = self.prefix + b"place"
        self._token_command = (b"HGET", self._place_key, b"token")
        self._connect_timeout_s = self._url.seconds("connect_timeout", 2)
        self._timeout_s = self._url.seconds("timeout", 5)
        self._idle = _Idle()
        self._token = b""

    def run(
        self, script: Script, keys: Iterable[bytes], values: Iterable[bytes], *, repeatable: bool
    ) -> Any:
        """Run a script and return its answer.

        Ends within about twice ``timeout`` and ``connect_timeout``.

        Args:
            script: the script.
            keys: its ``KEYS`` from 2.
            values: its ``ARGV`` from 2.
            repeatable: running it twice has the same effect as once; it is then repeated after a
                lost answer.

        Raises:
            StoreUnavailableError, StoreUnwritableError: see ``Member``.
        """
        all_keys, own_values = (self._place_key, *keys), tuple(values)

        def work(connection: Connection) -> Any:
            all_values = (self._token, *own_values)
            return _evaluated(self._redis, connection, script, all_keys, all_values)

        return self._attempted(work, repeatable=repeatable)

    def read(self, *command: bytes) -> Any:
        """Run one read-only command and return its answer.

        The token is checked after it: a server that lost the token never gets it back, so it was
        there before, too.

        Raises:
            StoreUnavailableError, StoreUnwritableError: see ``Member``.
        """

        def work(connection: Connection) -> Any:
            answer, token = _asked_all(self._redis, connection, [command, self._token_command])
            self._check(token)
            return answer

        return self._attempted(work, repeatable=True)

    def write(self, commands: Sequence[tuple[bytes, ...]]) -> None:
        """Run commands atomically; they are repeated after a lost answer.

        For large values: the server stores them as they arrive, where a script copies each of them
        twice more. It takes one more round trip, because a transaction cannot read before it
        writes: the connection watches the token, reads it, then writes, and the server refuses the
        write if the token has changed in between.

        Raises:
            StoreUnavailableError, StoreUnwritableError: see ``Member``.
        """

        def work(connection: Connection) -> None:
            watch = (b"WATCH", self._place_key)
            _, token = _asked_all(self._redis, connection, [watch, self._token_command])
            self._check(token)
            *_, results = _asked_all(self._redis, connection, [(b"MULTI",), *commands, (b"EXEC",)])
            if results is None:
                raise self._redis.exceptions.WatchError("the place changed meanwhile")
            _raise_first(results)

        self._attempted(work, repeatable=True)

    def close(self) -> None:
        """Close the idle connections; the next call opens new ones."""
        idle, self._idle = self._idle, _Idle()
        if idle.pid == os.getpid():
            for connection in idle.connections:
                connection.disconnect()

    def _attempted(self, work: Callable[[Connection], T], *, repeatable: bool) -> T:
        failure: Exception | None = None
        for _ in attempts(_ATTEMPTS_MAX, budget_s=self._timeout_s):
            is_sent = False
            try:
                connection = self._take()
                is_sent = True
                return self._worked_on(connection, work)
            except (self._redis.exceptions.RedisError, OSError) as error:
                failure = error
                if not self._may_repeat(error, repeatable or not is_sent):
                    break
        assert failure is not None
        raise self._named(failure, is_doubtful=is_sent and not repeatable) from failure

    def _check(self, token: bytes | None) -> None:
        if token != self._token:
            raise self._redis.exceptions.ResponseError(f"{_REPLACED} replaced")

    def _take(self) -> Connection:
        if self._idle.pid != os.getpid():
            # After a fork the sockets belong to the parent. Dropping them closes them here only.
            self._idle = _Idle()
        while self._idle.connections:
            try:
                connection = self._idle.connections.pop()
            except IndexError:  # another thread was faster
                break
            if self._is_fresh(connection):
                return connection
            connection.disconnect()
        connection = self._made()
        try:
            connection.connect()
            self._recognise(connection)
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def _worked_on(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        try:
            answer = work(connection)
        except self._redis.exceptions.ResponseError:
            self._idle.connections.append(connection)  # the answer was read completely
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._idle.connections.append(connection)
        return answer

    def _is_fresh(self, connection: Connection) -> bool:
        """Whether no unexpected data has arrived, such as the other side's hang-up."""
        try:
            return not connection.can_read()
        except (self._redis.exceptions.RedisError, OSError):
            return False

    def _made(self) -> Connection:
        kind = self._redis.Connection
        settings: dict[str, Any] = {}
        if self._url.scheme == "rediss":
            kind = self._redis.SSLConnection
            settings = {
                "ssl_ca_certs": self._url.options.get("ca"),
                "ssl_certfile": self._url.options.get("cert"),
                "ssl_keyfile": self._url.options.get("key"),
            }
        made: Connection = kind(
            host=self._url.host,
            port=self._url.port or 6379,
            db=int(self._url.path or 0),
            username=self._url.username,
            password=self._password(),
            socket_connect_timeout=self._connect_timeout_s,
            socket_timeout=self._timeout_s,
            # Retries are counted only here, where it is known what may be repeated.
            retry=self._redis.retry.Retry(self._redis.backoff.NoBackoff(), 0),
            protocol=2,
            **settings,
        )
        return made

    def _password(self) -> str | None:
        variable = self._url.options.get("password_env")
        if variable is not None and variable not in os.environ:
            raise StoreUnwritableError(
                f"the store member {self.member_id} takes its password from the environment "
                f"variable {variable}, which is not set in this process.",
                cure="Set it for the driver and for the executors.",
            )
        if variable is not None:
            return os.environ[variable]
        return self._url.password or os.environ.get(PASSWORD_VARIABLE)

    def _recognise(self, connection: Connection) -> None:
        """Accept a server only if it is the known one, with all that it had confirmed."""
        info = _info(_asked(connection, b"INFO"))
        policy = info.get("maxmemory_policy", "noeviction")
        if policy.startswith("allkeys") and info.get("maxmemory", "0") != "0":
            raise StoreUnwritableError(
                f"the store member {self.member_id} drops keys when its memory is full "
                f"(maxmemory-policy {policy}).",
                cure="Set maxmemory-policy noeviction.",
            )
        if info.get("cluster_enabled") == "1":
            raise StoreUnwritableError(
                f"the store member {self.member_id} is part of a Redis cluster.",
                cure="Use standalone Redis servers, each as one member.",
            )
        run_id = info.get("run_id", "").encode()
        offered = secrets.token_hex(16).encode()
        keeps = self._keeps_what_it_confirms(connection, info)
        token, run, kept = _evaluated(
            self._redis,
            connection,
            _OPEN_SCRIPT,
            (self._place_key,),
            (self._token, offered, run_id, _flag(keeps)),
        )
        if self._token and token != self._token:
            raise self._replaced()
        # Before ``kept`` existed, servers were judged by their current settings.
        has_kept = keeps and kept in (None, _flag(True))
        if run != run_id:
            if not has_kept and self._url.options.get("restart") != "accept":
                raise StoreUnavailableError(
                    f"the store member {self.member_id} was restarted, or a replica took its "
                    "place. With the server's settings it may have lost writes that it had "
                    "confirmed.",
                    cure="If the server was shut down cleanly, set restart=accept in its URL for "
                    "one start. Otherwise empty it and repair the store. A server that has "
                    "appendonly yes and appendfsync always from the beginning, and no "
                    "replicas, may be restarted without this step.",
                )
            adopted = (run_id, _flag(keeps))
            _evaluated(self._redis, connection, _ADOPT_SCRIPT, (self._place_key,), adopted)
        elif kept != _flag(has_kept):
            seen = (run_id, _flag(has_kept))
            _evaluated(self._redis, connection, _ADOPT_SCRIPT, (self._place_key,), seen)
        self._token = token

    def _keeps_what_it_confirms(self, connection: Connection, info: Mapping[str, str]) -> bool:
        """Whether this server, killed at any time, comes back with all its confirmed writes, and no
        other server replaces it."""
        replication = (info.get("connected_slaves"), info.get("second_repl_offset", "-1"))
        if info.get("role") != "master" or replication != ("0", "-1"):
            return False
        try:
            appends = _asked(connection, b"CONFIG", b"GET", b"append*")
        except self._redis.exceptions.ResponseError:
            return False  # a server that does not report its settings is not trusted
        settings = dict(zip(appends[::2], appends[1::2], strict=True))
        return settings.get(b"appendonly") == b"yes" and settings.get(b"appendfsync") == b"always"

    def _replaced(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the store member {self.member_id} was emptied or replaced while in use.",
            cure="Its data is read from other replicas. Restart the job, then run 'dagster-jet "
            "store repair'.",
        )

    def _may_repeat(self, error: Exception, safely: bool) -> bool:
        said = _said(error)
        if _REPLACED in said or _FULL.search(said) or _REFUSED.search(said):
            return False
        if _BUSY.search(said):
            return True  # the server did nothing
        return safely and not isinstance(error, self._redis.exceptions.ResponseError)

    def _named(self, error: Exception, *, is_doubtful: bool) -> StoreError:
        said = _said(error)
        text = str(error).strip().rstrip(".")
        if _REPLACED in said:
            return self._replaced()
        if _REFUSED.search(said):
            return StoreUnwritableError(
                f"the store member {self.member_id} refuses this user or password: {text}.",
                cure=f"Set the password in the URL, by password_env=NAME or {PASSWORD_VARIABLE}.",
            )
        if _FULL.search(said):
            return StoreUnwritableError(
                f"the store member {self.member_id} takes no writes: {text}.",
                cure="Give it more memory (maxmemory) or disk, or make it writable.",
            )
        is_answer = isinstance(error, self._redis.exceptions.ResponseError) or _BUSY.search(said)
        doubt = " Whether the value was set is unknown." if is_doubtful and not is_answer else ""
        return StoreUnavailableError(
            f"the store member {self.member_id} does not answer as it should: {text}.{doubt}",
            cure="Other replicas are used meanwhile. Check the server and the network to it.",
        )


def parsed(url: str) -> NetworkUrl:
    """Parse a Redis URL; check everything that needs no server."""
    found = NetworkUrl.parse(url, OPTIONS, EXAMPLE)
    if found.path and not found.path.isdecimal():
        raise ConfigurationError(
            f"a {found.scheme}:// store URL ends in the number of a database.",
            cure=f"Write it as {EXAMPLE}; percent-encode special characters in a password.",
        )
    if found.scheme == "redis" and found.options.keys() & set(_TLS_OPTIONS):
        raise ConfigurationError(
            f"the options {', '.join(_TLS_OPTIONS)} need rediss:// in place of redis://."
        )
    if ("cert" in found.options) != ("key" in found.options):
        raise ConfigurationError(
            "the options cert and key of a rediss:// store URL need each other."
        )
    for option in _TLS_OPTIONS:
        path = found.options.get(option)
        if path is not None and not os.path.isfile(path):
            raise ConfigurationError(
                f"the option {option} of a rediss:// store URL: the file {path} does not exist."
            )
    found.choice("restart", ("accept", "refuse"), "refuse")
    return found


def member_id(url: NetworkUrl) -> str:
    """Return the id: scheme, host, port, database, and the prefix unless it is the default."""
    host = f"[{url.host}]" if ":" in url.host else url.host
    return url.member_id(f"{host.lower()}:{url.port or 6379}/{int(url.path or 0)}", ("prefix",))


def _imported() -> ModuleType:
    module: ModuleType = library(
        "redis", "dagster-jet[redis]", "a redis:// store member needs the package redis"
    )
    return module


def _evaluated(
    redis: ModuleType,
    connection: Connection,
    script: Script,
    keys: tuple[bytes, ...],
    values: tuple[bytes, ...],
) -> Any:
    arguments = (b"%d" % len(keys), *keys, *values)
    try:
        return _asked(connection, b"EVALSHA", script.digest.encode(), *arguments)
    except redis.exceptions.NoScriptError:
        return _asked(connection, b"EVAL", script.source.encode(), *arguments)


def _asked(connection: Connection, *command: bytes) -> Any:
    connection.send_command(*command)
    return connection.read_response()


def _answered(redis: ModuleType, connection: Connection) -> Any:
    """Return the next answer; an error answer is returned, not raised."""
    try:
        return connection.read_response()
    except redis.exceptions.ResponseError as error:
        return error


def _raise_first(answers: Iterable[Any]) -> None:
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer


def _asked_all(
    redis: ModuleType, connection: Connection, commands: Sequence[tuple[bytes, ...]]
) -> list[Any]:
    """Send all commands, then read all answers. Raises the first error after the last answer."""
    connection.send_packed_command(connection.pack_commands(commands))
    answers = [_answered(redis, connection) for _ in commands]
    _raise_first(answers)
    return answers


def _flag(value: bool) -> bytes:
    return b"1" if value else b"0"


def _info(answer: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in answer.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def _said(error: Exception) -> str:
    """Return type and text: the library removes the code from the start of some messages."""
    return f"{type(error).__name__} {error}"

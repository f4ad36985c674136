"""Probes whether a database supports exactly-once, by its settings and a small table.

If it crashes, a table `jet_probe_...` remains, and perhaps a prepared transaction of that name;
`find` removes both.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.sql.failures import (
    ErrorKind,
    error_kind,
    sentence,
    translated_errors,
)
from dagster_jet.connectors.sql.markers import EPOCHS, Markers
from dagster_jet.connectors.sql.place import SqlPlace, is_mysql, is_postgres, sqlalchemy
from dagster_jet.connectors.sql.prepared import NO_PREPARED, Prepared, prepared_transactions
from dagster_jet.connectors.sql.rights import lacking_rights
from dagster_jet.core.answers import Answer, answered, in_words
from dagster_jet.core.secret import Url, shown
from dagster_jet.errors import ConfigurationError, JetError, SourceUnavailableError

if TYPE_CHECKING:
    from sqlalchemy import Connection

_NAME = re.compile(r"jet_probe_[0-9a-f]{12}")
_DISCONNECT = "Does it keep a prepared transaction when its connection ends?"
RESTART = "Does it keep a prepared transaction when it is restarted?"
_RIGHTS = "May the user create the table that says what is committed, and write to it?"
_HELD = 'Only sinks.sql(transactions="held") needs that; the default does not.'


def probe(url: Url, interval: timedelta) -> list[Answer]:
    """Returns all answers about the database.

    Raises:
        JetError: the database cannot be reached, or refuses the login.
    """
    place = SqlPlace(url, f"jet_probe_{secrets.token_hex(6)}")
    _check_file(place)
    with _errors_in_words(place), place.connected(autocommit=True) as connection:
        kind = prepared_transactions(connection)
        answers = _settings_of(connection)(connection, interval)
        rights = _may_write(connection, place)
        answers.append(rights)
        if kind is None:
            answers.append(
                answered(
                    _DISCONNECT,
                    False,
                    no=f"{connection.dialect.name} has no prepared transactions. {_HELD}",
                )
            )
            _drop(connection, place)
            return answers
        with _cleared_up(place):
            answers.append(_keeps_when_disconnected(connection, place, kind))
    answers.append(
        answered(
            RESTART,
            None,
            unknown=f"It was not restarted. {_HELD}",
            cure="Run this with --leave, restart the server, then run it with --find.",
        )
    )
    return answers


def leave(url: Url) -> str:
    """Leaves a prepared transaction behind, and returns its name for `find`.

    Raises:
        JetError: the database cannot be reached, or prepares no transactions for this user.
    """
    place = SqlPlace(url, f"jet_probe_{secrets.token_hex(6)}")
    with _errors_in_words(place), place.connected(autocommit=True) as connection:
        kind = prepared_transactions(connection)
        problem = NO_PREPARED if kind is None else kind.problem(connection, 1)
        if kind is None or problem is not None:
            problem = problem or NO_PREPARED
            raise JetError(
                f"{shown(url)} cannot prepare a transaction: {problem.why}.", cure=problem.cure
            )
        connection.exec_driver_sql(f"create table {place.name} (v integer)")
        try:
            _prepare(place, kind)
        except BaseException:
            _drop(connection, place)
            raise
    return place.name


def find(url: Url, name: str) -> list[Answer]:
    """Checks whether the transaction of `leave` still exists; removes it.

    Raises:
        ConfigurationError: nothing of this name was left here.
        JetError: the database cannot be reached.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"--find: {name!r} is no name that --leave gives out.", cure="It begins: jet_probe_."
        )
    place = SqlPlace(url, name)
    with _errors_in_words(place), place.connected(autocommit=True) as connection:
        kind = prepared_transactions(connection)
        has_table = sqlalchemy().inspect(connection).has_table(name)
        is_there = kind is not None and name in kind.listed(connection, name)
        if not is_there and not has_table:
            raise ConfigurationError(
                f"nothing of the name {name} was left at {shown(url)}, or it was found before."
            )
        if is_there and kind is not None:
            kind.roll_back(connection, name)
        _drop(connection, place)
    return [
        answered(
            RESTART,
            is_there,
            yes="It was found, and is rolled back now.",
            no='It is gone: with transactions="held" that would be an epoch\'s rows.',
            cure='Use transactions="roll-forward", the default, which prepares nothing.',
            needed=True,
        )
    ]


def _keeps_when_disconnected(connection: Connection, place: SqlPlace, kind: Prepared) -> Answer:
    held = 'sinks.sql(transactions="held") can be used.'
    if (problem := kind.problem(connection, 1)) is not None:
        why = f"{_sentence(problem.why)} {_HELD}"
        return answered(_DISCONNECT, False, no=why, cure=problem.cure)
    try:
        _prepare(place, kind)
        is_there = place.name in kind.listed(connection, place.name)
    except sqlalchemy().exc.DBAPIError as error:
        return answered(_DISCONNECT, None, unknown=f"{sentence(error, place)}. {_HELD}")
    return answered(_DISCONNECT, is_there, yes=f"It was found again. {held}", no=f"Gone. {_HELD}")


def _prepare(place: SqlPlace, kind: Prepared) -> None:
    """On a connection of its own, which then ends."""
    with place.connected(autocommit=True) as own:
        kind.begin(own, place.name)
        own.exec_driver_sql(f"insert into {place.name} values (1)")
        kind.prepare(own, place.name)


@contextmanager
def _cleared_up(place: SqlPlace) -> Iterator[None]:
    """Removes the table and transaction of a probe at the end."""
    try:
        yield
    finally:
        with suppress(sqlalchemy().exc.DBAPIError), place.connected(autocommit=True) as connection:
            kind = prepared_transactions(connection)
            if kind is not None:
                kind.roll_back(connection, place.name)
            _drop(connection, place)


def _drop(connection: Connection, place: SqlPlace) -> None:
    connection.exec_driver_sql(f"drop table if exists {place.name}")


def _may_write(connection: Connection, place: SqlPlace) -> Answer:
    """Tries to create and write a table. If creation is denied, checks the permissions on the
    marker table, which somebody else may have created."""
    try:
        connection.exec_driver_sql(f"create table {place.name} (v integer)")
        connection.exec_driver_sql(f"insert into {place.name} values (0)")
    except sqlalchemy().exc.DBAPIError as error:
        if error_kind(error) is ErrorKind.PASSING:
            raise
        marker = SqlPlace(place.url, EPOCHS)
        lacking: str | None = sentence(error, place)
        if not Markers(marker).missing(connection, EPOCHS):
            lacking = lacking_rights(connection, marker, "upsert")
        return answered(
            _RIGHTS,
            lacking is None,
            yes=f"It may not create tables, but {EPOCHS} is there.",
            no=f"No epoch could be committed: {lacking}.",
            cure=f"Grant CREATE, or have {EPOCHS} created by somebody who may; a sink that starts "
            "says how.",
            needed=True,
        )
    return answered(_RIGHTS, True, yes="Tried with a table of its own.", needed=True)


# --- settings, by kind ----------------------------------------------------------------------------


def _settings_of(connection: Connection) -> Callable[[Any, timedelta], list[Answer]]:
    if is_postgres(connection):
        return _postgres_settings
    return _mysql_settings if is_mysql(connection) else _other_settings


def _postgres_settings(connection: Connection, interval: timedelta) -> list[Answer]:
    asked = "select name, setting from pg_settings"
    settings = {row[0]: row[1] for row in connection.exec_driver_sql(asked)}
    off = [
        f"{name} = {settings[name]}"
        for name in ("fsync", "full_page_writes", "synchronous_commit")
        if settings[name] == "off"
    ]
    timeouts = {
        f"{name} = {settings[name]} ms": timedelta(milliseconds=int(settings[name]))
        for name in ("statement_timeout", "transaction_timeout", "idle_session_timeout")
        if name in settings
    }
    may_replicate = connection.exec_driver_sql(
        "select rolsuper or rolreplication from pg_roles where rolname = current_user"
    ).scalar()
    is_logical = settings["wal_level"] == "logical"
    lacking = [
        *([] if is_logical else [f"wal_level is {settings['wal_level']}, not logical"]),
        *([] if may_replicate else ["the user has not the right REPLICATION"]),
    ]
    return [
        _is_durable(off, "Set them to on, in postgresql.conf or for the user."),
        _is_writable(settings["transaction_read_only"] == "off"),
        _timeouts(timeouts, interval),
        answered(
            "Can its changes be read (sources.postgres_changes)?",
            not lacking,
            yes="wal_level is logical, and the user may read it.",
            no=f"{_sentence('; '.join(lacking))} Nothing else needs that.",
            cure="Set wal_level = logical and restart; alter role ... replication.",
        ),
    ]


def _mysql_settings(connection: Connection, interval: timedelta) -> list[Answer]:
    settings = {row[0]: row[1] for row in connection.exec_driver_sql("show variables")}
    off = [
        f"{name} = {settings[name]}"
        for name in ("innodb_flush_log_at_trx_commit", "sync_binlog")
        if settings.get(name, "1") != "1"
        and (name != "sync_binlog" or settings.get("log_bin") == "ON")
    ]
    timeouts = {
        f"{name} = {settings[name]} s": timedelta(seconds=float(settings[name]))
        for name in ("max_statement_time", "wait_timeout")
        if name in settings
    }
    engine = settings.get("default_storage_engine", "InnoDB")
    return [
        _is_durable(off, "Set them to 1 in the server's configuration."),
        _is_writable(settings.get("read_only", "OFF") in ("OFF", "0")),
        _timeouts(timeouts, interval),
        answered(
            "Are its tables transactional unless said otherwise?",
            engine.lower() == "innodb",
            yes=f"default_storage_engine is {engine}.",
            no=f"default_storage_engine is {engine}: rows and markers would not be committed "
            "together.",
            cure="Create the sink's table with ENGINE=InnoDB, or set default_storage_engine.",
            needed=True,
        ),
    ]


def _other_settings(connection: Connection, interval: timedelta) -> list[Answer]:
    if connection.dialect.name != "sqlite":
        return []
    synchronous = connection.exec_driver_sql("pragma synchronous").scalar()
    return [_is_durable([] if synchronous in (2, 3) else [f"synchronous = {synchronous}"], "")]


def _is_durable(off: list[str], cure: str) -> Answer:
    return answered(
        "Is what it has committed on its disk?",
        not off,
        yes="A crash of the server loses no commit.",
        no=f"{', '.join(off)}: a crash of the machine loses commits that a job takes for done.",
        cure=cure,
        needed=True,
    )


def _is_writable(is_writable: bool) -> Answer:
    return answered(
        "Does it take writes?",
        is_writable,
        yes="It is no standby, and not read-only.",
        no="It is read-only, or a standby.",
        cure="Name the primary server in the URL.",
        needed=True,
    )


def _timeouts(timeouts: dict[str, timedelta], interval: timedelta) -> Answer:
    """0 means no time-out."""
    short = [name for name, length in timeouts.items() if timedelta(0) < length <= interval]
    return answered(
        "Are its time-outs longer than the snapshot interval?",
        not short,
        yes=", ".join(timeouts) or "It has none.",
        no=f"{', '.join(short)}: a commit of the rows of {in_words(interval)} may be broken off, "
        "again and again.",
        cure="Raise it for the user, or take snapshots more often.",
        needed=True,
    )


# --- errors ---------------------------------------------------------------------------------------


def _errors_in_words(place: SqlPlace) -> AbstractContextManager[None]:
    def translate(kind: ErrorKind, said: str) -> JetError:
        text = f"{shown(place.url)} does not do what it is asked: {said}."
        if kind is ErrorKind.PASSING:
            return SourceUnavailableError(text)
        return JetError(
            text, cure="Correct the user, the password, the name of the database or the rights."
        )

    return translated_errors(place, translate)


def _check_file(place: SqlPlace) -> None:
    """Raises `ConfigurationError` for a missing file, which connecting would create."""
    parsed = place.parsed()
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        raise ConfigurationError(f"{shown(place.url)}: there is no such file.")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."

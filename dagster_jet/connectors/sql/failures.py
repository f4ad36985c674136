"""Classifies database errors: temporary, permanent, or caused by some of the rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum

from dagster_jet.connectors.sql.place import SqlPlace, sqlalchemy
from dagster_jet.contract import DECIDED_CURE
from dagster_jet.errors import (
    JetError,
    Reaction,
    ReferenceMissingError,
    RowsRefusedError,
    SinkError,
    SinkMismatchError,
    SinkUnavailableError,
    SourceError,
    SourceUnavailableError,
)

_PASSING_STATES = ("08", "40", "53", "55P03", "55006", "57", "25006", "58")
_DENIED_STATES = ("28", "42501", "3D000", "0P")
_PASSING_MYSQL = {1040, 1053, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1226, 1290, 1317, 1836,
                  1927, 2002, 2003, 2006, 2013, 2055, 4031,
                  1020,  # another transaction has changed the row
                  1021, 1114,  # no room
                  1037, 1038, 1041, 1206,  # no memory
                  1047,  # a node of a Galera cluster that is not ready
                  1969,  # the server's limit of a statement's time
                  }  # fmt: skip
_STORAGE_MYSQL, _PASSING_STORAGE = {1026, 1030}, re.compile(r"\b(5|12|28)\b")
"""Errors of files pass if the system says: input/output error, no memory, or no room."""
_DENIED_MYSQL = {1044, 1045, 1049, 1142, 1143, 1227, 1698}
_VALUE_STATES = ("21000", "22", "23", "44", "54", "P0001")
_VALUE_MYSQL = {1048, 1062, 1118, 1153, 1264, 1265, 1292, 1366, 1406, 1411, 1526, 1644, 1690, 3140,
                3141, 4025}  # fmt: skip
_REFERENCE_STATE, _REFERENCE_MYSQL = "23503", (1216, 1217, 1451, 1452)
# libpq gives no SQLSTATE for a refused connection, only a text.
# The names alone do not tell: "too many connections for role" passes.
_DENIED_WORDS = ("password authentication failed", "no password supplied", "no pg_hba.conf entry",
                 "does not exist", "is not permitted to log in", "permission denied")  # fmt: skip


class ErrorKind(Enum):
    """Kinds of database errors."""

    PASSING = "passing"
    """The server is unavailable or busy, or another transaction holds a lock."""
    DENIED = "denied"
    """Credentials, permissions, or the database's name."""
    MISMATCH = "mismatch"
    """Table and rows do not fit: a column, a type, or the statement."""
    VALUE = "value"
    """The table refuses some rows: a null, a value, or a constraint."""
    REFERENCE = "reference"
    """Like VALUE, but for a foreign key: the referenced row may be committed later."""


def error_kind(error: Exception) -> ErrorKind | None:
    """Returns the kind of an error; None if it does not come from the database."""
    alchemy = sqlalchemy()
    if not isinstance(error, alchemy.exc.DBAPIError):
        # An error of a driver used without SQLAlchemy.
        if type(error).__module__.partition(".")[0] not in ("psycopg", "pymysql", "sqlite3"):
            is_alchemys = isinstance(error, alchemy.exc.SQLAlchemyError)
            return ErrorKind.MISMATCH if is_alchemys else None
        original: BaseException | None = error
    else:
        if error.connection_invalidated:
            return ErrorKind.PASSING
        original = error.orig
    number = original.args[0] if original is not None and original.args else None
    if isinstance(number, int):
        if number in _PASSING_MYSQL or number == 0:
            return ErrorKind.PASSING
        if number in _STORAGE_MYSQL and _PASSING_STORAGE.search(str(original)):
            return ErrorKind.PASSING
        if number in _REFERENCE_MYSQL:
            return ErrorKind.REFERENCE
        if number in _VALUE_MYSQL:
            return ErrorKind.VALUE
        return ErrorKind.DENIED if number in _DENIED_MYSQL else ErrorKind.MISMATCH
    state = getattr(original, "sqlstate", None)
    if state:
        if state.startswith(_PASSING_STATES):
            return ErrorKind.PASSING
        if state == _REFERENCE_STATE:
            return ErrorKind.REFERENCE
        if state.startswith(_VALUE_STATES):
            return ErrorKind.VALUE
        return ErrorKind.DENIED if state.startswith(_DENIED_STATES) else ErrorKind.MISMATCH
    text, kind = str(original), type(original).__name__
    if kind == "OperationalError":
        if any(word in text and "FATAL" in text for word in _DENIED_WORDS):
            return ErrorKind.DENIED
        if "no such" in text or "has no column" in text or "readonly" in text:
            return ErrorKind.MISMATCH
        return ErrorKind.PASSING
    if kind in ("IntegrityError", "DataError"):  # SQLite's
        return ErrorKind.VALUE
    return ErrorKind.PASSING if kind == "InterfaceError" else ErrorKind.MISMATCH


def sentence(error: Exception, place: SqlPlace) -> str:
    """The database's message on one line, without secrets."""
    original = getattr(error, "orig", None) or error
    said = original.args[1] if len(original.args) > 1 else original
    text = place.cleansed(str(said)).partition("\nLINE ")[0]  # our own statement follows
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[:2]).rstrip(".")


@contextmanager
def translated_errors(
    place: SqlPlace, translate: Callable[[ErrorKind, str], JetError]
) -> Iterator[None]:
    """Raises what `translate` makes of the kind of a database error, and its text.

    The cause is dropped, because its text may contain secrets.
    """
    try:
        yield
    except JetError:
        raise
    except Exception as error:
        kind = error_kind(error)
        if kind is None:
            raise
        raise translate(kind, sentence(error, place)) from None


def as_sink_errors(
    place: SqlPlace, job: str, sink: str, *, may_leave_out: bool = True
) -> AbstractContextManager[None]:
    """Translates database errors into a sink's errors, without secrets.

    Args:
        may_leave_out: whether refused rows may go to a dead-letter sink.
    """

    def translate(kind: ErrorKind, said: str) -> JetError:
        return sink_error(kind, said, place, job, sink, may_leave_out=may_leave_out)

    return translated_errors(place, translate)


def as_source_errors(place: SqlPlace, job: str, stage: str) -> AbstractContextManager[None]:
    """Translates database errors into a source's errors, without secrets."""

    def translate(kind: ErrorKind, said: str) -> JetError:
        text = f"the database cannot be read: {said}."
        if kind is ErrorKind.PASSING:
            return SourceUnavailableError(text, job=job, stage=stage)
        cure = (
            "Correct the value in the table, and start again."
            if kind is ErrorKind.VALUE
            else "Correct the user, the password, the name of the database, the rights or the "
            "settings, and start again."
        )
        return SourceError(text, job=job, stage=stage, cure=cure)

    return translated_errors(place, translate)


def sink_error(
    kind: ErrorKind, said: str, place: SqlPlace, job: str, sink: str, *, may_leave_out: bool = True
) -> SinkError:
    """The sink's error of this kind; `said` is the database's message."""
    if kind is ErrorKind.PASSING:
        return SinkUnavailableError(
            f"the table {place.table!r} cannot be written now: {said}.", job=job, stage=sink
        )
    if kind is ErrorKind.DENIED:
        denied = SinkError(
            f"the database refuses access to the table {place.table!r}: {said}.",
            job=job,
            stage=sink,
            cure="Correct the user, the password, the name of the database or the rights, and "
            "start again: the decided rows are kept, and that start commits them.",
        )
        denied.reaction = Reaction.FAIL
        return denied
    says = (
        f"the rows do not fit the table {place.table!r}: {said}. Nothing of the epoch is written."
    )
    cure = "Change the table so that it accepts the rows, and start again"
    kept = f"{cure}: the decided rows are kept, and that start commits them."
    if kind is ErrorKind.MISMATCH:
        return SinkMismatchError(says, job=job, stage=sink, cure=kept)
    refused = ReferenceMissingError if kind is ErrorKind.REFERENCE else RowsRefusedError
    return refused(
        says,
        job=job,
        stage=sink,
        cure=f"{cure}; {DECIDED_CURE}" if may_leave_out else kept,
    )


def set_back(place: SqlPlace, lost: str, job: str, sink: str) -> SinkError:
    """The error of a database that came back without output that this execution knows to be there.
    The restart finds the same, and refuses to go on."""
    return SinkError(
        f"the table {place.table!r} had {lost}, and its marker is gone: the database was restored "
        "from an older copy, or is a replica that is behind. Nothing of the epoch is written.",
        job=job,
        stage=sink,
        cure="The job restarts, and the start compares the database with the job's record.",
    )

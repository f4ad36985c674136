"""Refuses declared column types that no file, message or queue holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from dagster_jet.core.ddl import split_ddl, split_type
from dagster_jet.errors import ConfigurationError

_QUOTED = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`""")
_NOT_NULL = re.compile(r"\bnot\s+null\b", re.IGNORECASE)


def check_json_columns(schema: str) -> None:
    """
    Raises:
        ConfigurationError: no JSON is read into a column of the DDL; names it.
    """
    check_texts(schema)
    _refuse(
        schema,
        lambda name, inside: name == "map" and split_type(inside.get("key", ""))[0] != "string",
        "keys of maps in JSON are texts",
        cure="Declare the keys as string, and convert them with select(), such as "
        "transform_keys(m, (k, v) -> cast(k AS int)).",
    )


def check_texts(schema: str) -> None:
    """
    Raises:
        ConfigurationError: a column of the DDL has texts with a length, which Spark reads from no
            source; names it.
    """
    _refuse(
        schema,
        lambda name, inside: name in ("char", "character", "varchar"),
        "Spark reads texts as string only",
        cure="Declare it as string. Filter or cut texts that are too long: "
        "where(length(s) <= 9), or select() with substring(s, 1, 9).",
    )


def check_nullable(schema: str) -> None:
    """
    Raises:
        ConfigurationError: a column of the DDL, or a field in it, is NOT NULL; names the column.
    """
    for name, ddl in split_ddl(schema):
        if _NOT_NULL.search(_QUOTED.sub("", ddl)):
            raise ConfigurationError(
                f"schema: {name!r} is {ddl}, and any file may have a null there.",
                cure='Leave NOT NULL out. To drop rows with a null, use filter("v is not null").',
            )


def _refuse(
    schema: str, refuses: Callable[[str, Mapping[str, str]], bool], why: str, *, cure: str
) -> None:
    """Raises the error of a column whose type `refuses`, or a type inside of it."""

    def is_refused(ddl: str) -> bool:
        name, inside = split_type(ddl)
        return refuses(name, inside) or any(map(is_refused, inside.values()))

    for name, ddl in split_ddl(schema):
        if is_refused(ddl):
            raise ConfigurationError(f"schema: {name!r} is {ddl}, and {why}.", cure=cure)

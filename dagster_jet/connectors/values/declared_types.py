"""Refuses declared column types that no file, message or queue holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dagster_jet.core.ddl import split_ddl, split_type
from dagster_jet.errors import ConfigurationError


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

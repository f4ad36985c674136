"""Parser of column definitions in a Spark DDL string, and quoting of names; works without Spark.

An invalid definition results in a column with an odd type: Spark refuses it when the job starts.
"""

from __future__ import annotations

import re

from dagster_jet.core.function_name import class_name
from dagster_jet.errors import ConfigurationError

_NAME = re.compile(r"\s*(`(?:[^`]|``)+`|[^\s:]+)\s*:?\s*(.*)", re.DOTALL)

_TYPE = re.compile(r"\s*(\w*)\s*(?:<(.*)>)?", re.DOTALL)

_PART = r"(?:`(?:[^`]|``)+`|[^\s`.,:;'\"()\[\]{}+\-*/%<>=!|&^~]+)"
_REFERENCE = re.compile(rf"{_PART}(?:\.{_PART})*")

DEAD_LETTER_COLUMNS = "source string, position string, reason string, raw string"
"""Columns of dead letters: source or stage, position of the row in it, reason, the row itself."""


def split_ddl(ddl: str) -> list[tuple[str, str]]:
    """Return (name, rest of the definition) per column of ``"flight string, delay double"``.

    Raises:
        ConfigurationError: it is no text.
    """
    if not isinstance(ddl, str):
        raise ConfigurationError(
            f"a schema is a text of names and types, not a {class_name(ddl)}.",
            cure='Write "flight string, delay double"; that of a StructType is schema.toDDL().',
        )
    return [_column(part) for part in _split(ddl) if part.strip()]


def split_type(ddl: str) -> tuple[str, dict[str, str]]:
    """Return the name of a type in lower case, such as "decimal", and the definitions of the types
    inside it: of a struct's fields by their names, an array's "element", a map's "key" and "value".
    """
    match = _TYPE.match(ddl)
    assert match is not None, "all parts are optional"
    name, inner = match[1].lower(), match[2] or ""
    if name == "struct":
        return name, dict(split_ddl(inner))
    parts = {"array": ("element",), "map": ("key", "value")}.get(name, ())
    return name, dict(zip(parts, map(str.strip, _split(inner)), strict=False))


def quoted_name(column: str) -> str:
    """Return a column's name quoted for Spark SQL, including dots and backticks."""
    return "`" + column.replace("`", "``") + "`"


def plain_name(column: str) -> str:
    """Return a column's name without quotes, if it has them."""
    is_quoted = len(column) > 2 and column[0] == column[-1] == "`"
    return column[1:-1].replace("``", "`") if is_quoted else column


def is_reference(column: str) -> bool:
    """Return whether a text names a column or a field of one, and is no other SQL expression."""
    return _REFERENCE.fullmatch(column) is not None


def sql_name(column: str) -> str:
    """Return a column quoted for Spark SQL. Dots access struct fields, as in `F.col`; other texts
    that are no reference are whole names."""
    if not is_reference(column):
        return quoted_name(column)
    if "`" in column:
        return column
    return ".".join(f"`{part}`" for part in column.split("."))


def _column(definition: str) -> tuple[str, str]:
    match = _NAME.fullmatch(definition)
    name, rest = match.groups() if match else (definition.strip(), "")
    return name.strip("`").replace("``", "`"), rest


def _split(ddl: str) -> list[str]:
    """Split at commas outside of <...>, (...), quotes and backticks."""
    parts, depth, quote, current = [], 0, "", ""
    for character in ddl:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'`":
            quote = character
        elif character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(current)
            current = ""
            continue
        current += character
    return [*parts, current]

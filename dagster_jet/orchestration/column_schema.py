"""Columns as Dagster shows them, from a DDL string; no Spark needed to load definitions."""

from __future__ import annotations

import re

import dagster as dg

_NAME = re.compile(r"\s*(`(?:[^`]|``)+`|[^\s:]+)\s*:?\s*(.*)", re.DOTALL)
_NOT_NULL = re.compile(r"\s+NOT\s+NULL\b", re.IGNORECASE)
_COMMENT = re.compile(r"\s+COMMENT\s+'((?:[^'\\]|\\.)*)'", re.IGNORECASE)


def columns_from_ddl(ddl: str) -> dg.TableSchema:
    """Return the columns of a Spark DDL string such as ``"flight string, delay double NOT NULL"``.

    What Spark would refuse comes out as a column with an odd type: Spark has the last word, when
    the job starts.
    """
    return dg.TableSchema(columns=[_column(part) for part in _split(ddl) if part.strip()])


def _column(definition: str) -> dg.TableColumn:
    match = _NAME.fullmatch(definition)
    name, rest = match.groups() if match else (definition.strip(), "")
    comment = _COMMENT.search(rest)
    type_text = _COMMENT.sub("", rest)
    nullable = _NOT_NULL.search(type_text) is None
    return dg.TableColumn(
        name=name.strip("`").replace("``", "`"),
        type=_NOT_NULL.sub("", type_text).strip() or "string",
        description=comment.group(1) if comment else None,
        constraints=dg.TableColumnConstraints(nullable=nullable),
    )


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

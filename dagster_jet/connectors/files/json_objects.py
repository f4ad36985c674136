"""The objects of JSON lines: as a rule one per line, and all of them where there are more.

Spark's parser reads the first object of a line and is content, whatever comes behind it: what it is
given has to be one object. A line that is none, or what is behind the last one, is left as it is
and does not fit any schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from json import JSONDecoder

import pyarrow as pa

from dagster_jet.connectors.files.json_rows import is_object_per_line
from dagster_jet.connectors.files.text_lines import lines_of

_DECODER = JSONDecoder(strict=False)
_BLANK = re.compile(r"[ \t\n\r]*")
_TOKEN = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[{}]""", re.DOTALL)
"""Texts, in which braces mean nothing, and braces."""


def objects_of(block: bytes) -> pa.StringArray:
    """In their order."""
    lines = lines_of(block)
    if is_object_per_line(block):
        return lines
    return pa.array([part for line in lines.to_pylist() for part in _parts(line)], pa.string())


def _parts(line: str) -> Iterator[str]:
    at = _behind_blanks(line, 0)
    while at < len(line):
        end = _end_of_object(line, at) if line[at] == "{" else len(line)
        yield line[at:end]
        at = _behind_blanks(line, end)


def _behind_blanks(line: str, at: int) -> int:
    found = _BLANK.match(line, at)
    assert found is not None
    return found.end()


def _end_of_object(line: str, begin: int) -> int:
    """Of the one that begins there; of the line where it never ends."""
    try:
        return _DECODER.raw_decode(line, begin)[1]
    except (ValueError, RecursionError):
        pass  # what Spark's parser takes besides JSON, or what nobody does
    depth = 0
    for token in _TOKEN.finditer(line, begin):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    return len(line)

"""Splits JSON lines into objects, usually one per line.

Spark's parser reads the first object of a line and ignores the rest, so it must be given single
objects. Text that is not an object is passed on unchanged and does not fit any schema.
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
"""Matches braces, and strings, whose braces do not count."""


def objects_of(block: bytes) -> pa.StringArray:
    """Returns the objects of a block in order."""
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
    """Returns the end of the object at `begin`; the line's end if it is not closed."""
    try:
        return _DECODER.raw_decode(line, begin)[1]
    except (ValueError, RecursionError):
        pass  # malformed, or not JSON but accepted by Spark
    depth = 0
    for token in _TOKEN.finditer(line, begin):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    return len(line)

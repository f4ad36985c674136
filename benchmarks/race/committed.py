"""Committed output of an engine: the files, or parts of files, that its own rules call final."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Piece:
    """Rows that were seen committed at one look: bytes `start` to `end` of a file."""

    path: Path
    start: int
    end: int

    def read(self) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(self.start)
            return file.read(self.end - self.start)


class Commits(Protocol):
    """One engine's output folder, looked at again and again."""

    def new(self) -> list[Piece]:
        """Pieces committed since the last call."""
        ...

    def files(self) -> list[Path]:
        """All that is committed now: the answer."""
        ...


class _Logged:
    """Files are named by the engine's log of commits; a log entry appears whole."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._entries: set[str] = set()
        self._files: dict[Path, None] = {}

    def new(self) -> list[Piece]:
        pieces = []
        for entry in sorted(self._log() - self._entries):
            for file in self._named(entry):
                if file not in self._files:
                    self._files[file] = None
                    pieces.append(Piece(file, 0, file.stat().st_size))
            self._entries.add(entry)
        return pieces

    def files(self) -> list[Path]:
        self.new()
        return list(self._files)

    def _log(self) -> set[str]:
        raise NotImplementedError

    def _named(self, entry: str) -> Iterator[Path]:
        raise NotImplementedError


class Epochs(_Logged):
    """dagster_jet: `_epochs/<epoch>.json` names an epoch's files."""

    def _log(self) -> set[str]:
        return names(self._output / "_epochs", lambda name: name.endswith(".json"))

    def _named(self, entry: str) -> Iterator[Path]:
        marker = json.loads((self._output / "_epochs" / entry).read_text(encoding="utf-8"))
        for file in marker["files"]:
            yield self._output / file["name"]


class SparkLog(_Logged):
    """Spark's file sink: `_spark_metadata/<trigger>` names a trigger's files. Every tenth entry
    also names all before it."""

    def _log(self) -> set[str]:
        return names(self._output / "_spark_metadata", lambda name: name[:1].isdigit())

    def _named(self, entry: str) -> Iterator[Path]:
        log = (self._output / "_spark_metadata" / entry).read_text(encoding="utf-8")
        for line in log.splitlines()[1:]:
            yield Path(json.loads(line)["path"].removeprefix("file://"))


class TriggerFolders(_Logged):
    """Spark's `foreachBatch` with a folder per trigger, which is whole once it has `_SUCCESS`. A
    trigger that runs again writes its folder anew, so files are looked up at the end."""

    def _log(self) -> set[str]:
        folders = names(self._output, lambda name: name.startswith("batch="))
        return {name for name in folders if (self._output / name / "_SUCCESS").exists()}

    def _named(self, entry: str) -> Iterator[Path]:
        yield from sorted((self._output / entry).glob("part-*"))

    def files(self) -> list[Path]:
        return [file for entry in sorted(self._log()) for file in self._named(entry)]


class VisibleFiles(_Logged):
    """Flink's file sink: a file is renamed when its checkpoint is complete; names with a dot before
    are not committed."""

    def _log(self) -> set[str]:
        return names(self._output, lambda name: not name.startswith((".", "_")))

    def _named(self, entry: str) -> Iterator[Path]:
        yield self._output / entry


class GrowingFiles:
    """Bytewax and Pathway append to files. There is no commit to see: rows count when they are in
    the file, although a restart may take back those of the last second (Bytewax cuts the file
    back). What it then writes up to the old length is not new."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._seen: dict[Path, int] = {}

    def new(self) -> list[Piece]:
        pieces = []
        for path in self.files():
            seen, size = self._seen.get(path, 0), path.stat().st_size
            if size > seen:
                # Whole lines only: the rest of the last one may still be on its way.
                whole = seen + Piece(path, seen, size).read().rfind(b"\n") + 1
                if whole > seen:
                    pieces.append(Piece(path, seen, whole))
                    self._seen[path] = whole
        return pieces

    def files(self) -> list[Path]:
        return sorted(self._output / name for name in names(self._output, lambda _: True))


def names(folder: Path, wanted: Callable[[str], bool]) -> set[str]:
    try:
        return {name for name in os.listdir(folder) if wanted(name)}
    except FileNotFoundError:
        return set()

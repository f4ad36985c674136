"""Files of a table's metadata that are durable before a catalog names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from pyiceberg.io import OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from dagster_jet.connectors.iceberg.storage import place_of
from dagster_jet.system.durable import sync_file, sync_folder


class DurableFiles(PyArrowFileIO):
    """As the library's own, which leaves local files to the operating system: after a power failure
    a catalog would name metadata that are empty."""

    def new_output(self, location: str) -> OutputFile:  # type: ignore[override]
        made = super().new_output(location)
        place = place_of(location)
        return _Local(made, Path(place)) if place is not None and place.startswith("/") else made


class _Local(OutputFile):
    def __init__(self, made: PyArrowFile, path: Path) -> None:
        super().__init__(made.location)
        self._made, self._path = made, path

    def __len__(self) -> int:
        return len(self._made)

    def exists(self) -> bool:
        return self._made.exists()

    def to_input_file(self) -> Any:
        return self._made.to_input_file()

    def create(self, overwrite: bool = False) -> OutputStream:
        return cast(OutputStream, _Synced(self._made.create(overwrite), self._path))


class _Synced:
    """A stream whose end is durable."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream, self._path, self._is_open = stream, path, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def close(self) -> None:
        self._stream.close()
        if self._is_open:
            self._is_open = False
            sync_file(self._path)
            sync_folder(self._path.parent)

    def __enter__(self) -> _Synced:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

"""Opens the place of a path or URL."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from dagster_jet.connectors.files.places.local import LocalInput, LocalOutput
from dagster_jet.connectors.files.places.location import StorageOptions, scheme_of
from dagster_jet.connectors.files.places.place import InputPlace, OutputPlace

_PLACES_MAX = 64


@lru_cache(_PLACES_MAX)
def open_input(path: str, options: StorageOptions = (), recursive: bool = False) -> InputPlace:
    """Returns a place to read from. Cached per process: it may keep connections."""
    if scheme_of(path) == "file":
        return LocalInput(path, recursive)
    if scheme_of(path) == "s3":
        from dagster_jet.connectors.files.places.s3_input import S3Input

        return S3Input(path, options, recursive)
    from dagster_jet.connectors.files.places.remote import RemoteInput

    return RemoteInput(path, options, recursive)


@lru_cache(_PLACES_MAX)
def open_output(path: str, options: StorageOptions = ()) -> OutputPlace:
    """Returns a place to write to. Cached per process: it may keep connections."""
    if scheme_of(path) == "file":
        return LocalOutput(Path(path))
    if scheme_of(path) == "s3":
        from dagster_jet.connectors.files.places.s3_output import S3Output

        return S3Output(path, options)
    from dagster_jet.connectors.files.places.remote import RemoteOutput

    return RemoteOutput(path, options)

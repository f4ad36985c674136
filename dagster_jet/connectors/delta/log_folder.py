"""Folder of a table's log: how the package `deltalake` reaches it, and what makes it durable."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from dagster_jet.connectors.files.places.location import scheme_of
from dagster_jet.connectors.lake.data_folder import DataFolder
from dagster_jet.errors import ConfigurationError
from dagster_jet.system.durable import sync_file, sync_folder

LOG = "_delta_log"
_SYNCED_AT_FIRST = 100
_PLACES = ("file", "s3")
_ESCAPED = re.compile("%[0-9A-Fa-f]{2}")
_S3_ANSWERS_WITHIN = "20s"


def check_place(url: str) -> None:
    """
    Raises:
        ConfigurationError: the library cannot use a table there.
    """
    if scheme_of(url) not in _PLACES:
        raise ConfigurationError(
            f"uri: a table at {url!r} is not supported.",
            cure="Name a local folder, or a folder of a bucket: s3://bucket/folder. Why Azure's "
            "and Google's storage are refused is said in docs/connectors/delta.md.",
        )
    if _ESCAPED.search(url):
        raise ConfigurationError(
            f"uri: {url!r} has a percent sign that Delta Lake takes for an escape.",
            cure="Choose a folder without one.",
        )


def options_of(folder: DataFolder) -> Mapping[str, str]:
    """Returns the options of the package, with the credentials of this moment."""
    access = folder.s3_access()
    if access is None:
        return {}
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    options = {name: key for name, key in zip(names, access.keys, strict=False) if key}
    options["aws_region"] = access.region
    options["conditional_put"] = "etag"
    options["connect_timeout"] = f"{access.connect_timeout_s:g}s"
    options["timeout"] = f"{access.timeout_s:g}s"
    options["retry_timeout"] = _S3_ANSWERS_WITHIN
    if access.endpoint_url is not None:
        options["aws_endpoint_url"] = access.endpoint_url
        is_plain = urlsplit(access.endpoint_url).scheme == "http"
        options["aws_allow_http"] = str(is_plain).lower()
    return options


def sync_log(url: str, synced: int, version: int) -> None:
    """Does what the library does not: a version that a reader has seen may be lost in a power
    failure, and with it the marker by which its rows count as committed.

    Args:
        synced: the last version that is durable; -1: not known.
    """
    if scheme_of(url) != "file":
        return
    folder = Path(url) / LOG
    for number in range(max(synced + 1, version - _SYNCED_AT_FIRST), version + 1):
        with suppress(FileNotFoundError):  # a checkpoint has replaced it
            sync_file(folder / f"{number:020d}.json")
    sync_folder(folder)


def sync_files(url: str, paths: Collection[str]) -> None:
    """Makes data files durable that the library has written."""
    if scheme_of(url) != "file":
        return
    for path in paths:
        sync_file(Path(url) / path)

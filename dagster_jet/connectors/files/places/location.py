"""Parses locations of files: local paths and URLs of supported schemes.

Local paths are made absolute immediately, because relative ones would change with every `chdir` of
any process. Strings such as `~/x` or `s4://bucket`, which would name a local folder, are refused.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

from dagster_jet.core.secret import Secret, as_json, from_json, holds_password, named
from dagster_jet.errors import ConfigurationError

StorageOptions: TypeAlias = tuple[tuple[str, Any], ...]
"""Names and values: texts, secrets, and for drivers of fsspec also numbers and booleans."""

SCHEMES = {
    "s3": "s3",
    "s3a": "s3",  # as Spark's users write it
    "gs": "gs",
    "abfs": "abfs",
    "abfss": "abfs",
    "hdfs": "hdfs",
}
"""Supported schemes besides `file`, with their canonical names."""
READ_ONLY = frozenset({"hdfs"})
_S3_OPTIONS = frozenset({"region", "endpoint_url", "connect_timeout", "timeout"})
_S3_SECRETS = frozenset({"access_key_id", "secret_access_key", "session_token"})

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)")
"""Also matches a single slash, which `pathlib` writes."""
_SECRET_NAME = re.compile("key|secret|token|password|credential|connection_string")
_METHODS = frozenset({"anon", "cache", "cloud", "google_default"})
"""Values of gcsfs's `token` that name a method and no secret."""
_QUERY = re.compile(r"\?\w+=")
_MAGIC_TO_SPARK = re.compile(r"[\\{}\[\]*?]")
_LOCAL_HOSTS = ("", "localhost")


def absolute(place: str, *, may_be_pattern: bool = False) -> str:
    """Normalises `place` to an absolute local path, or a URL without a trailing slash
    (`s3://bucket/folder`).

    Args:
        may_be_pattern: `place` may be a pattern for `glob`.

    Raises:
        ConfigurationError: the place is not valid, or its scheme is not supported.
    """
    scheme = _SCHEME.match(place)
    path = place
    if scheme is not None and scheme[1].lower() == "file":
        path = _path_of_url(place, place[scheme.end() :])
    elif scheme is not None:
        return _url(place, scheme[1].lower(), place[scheme.end() :])
    if path.startswith("~"):
        raise ConfigurationError(
            f"path: {place!r} would be a folder named {path.partition('/')[0]!r} here.",
            cure="Shells expand '~', paths do not: write os.path.expanduser(...), or './~' where "
            "the folder is meant.",
        )
    if not path or "\0" in path:
        raise ConfigurationError(f"path: {place!r} names no place.", cure="Name a folder.")
    if may_be_pattern and is_pattern(path) and not os.path.isabs(path):
        return os.path.normpath(os.path.join(glob.escape(os.getcwd()), path))
    return os.path.abspath(path)


def scheme_of(path: str) -> str:
    """Returns the canonical scheme of a result of `absolute`: "file" or a value of `SCHEMES`."""
    scheme, found, _ = path.partition("://")
    return scheme if found and scheme in SCHEMES else "file"


def is_pattern(path: str) -> bool:
    """Returns whether the path is a pattern and not the name of an existing local folder."""
    return glob.has_magic(path) and not (scheme_of(path) == "file" and os.path.isdir(path))


def storage_options(path: str, options: Mapping[str, Any] | None) -> StorageOptions:
    """Checks the options of a place and returns them in a fixed order.

    Raises:
        ConfigurationError: an option is unknown, or a secret is given as text.
    """
    scheme = scheme_of(path)
    checked = {name: named(value) for name, value in (options or {}).items()}
    if scheme not in ("s3", "file"):
        return _drivers_options(checked)
    known = _S3_OPTIONS | _S3_SECRETS if scheme == "s3" else frozenset()
    if unknown := sorted(checked.keys() - known):
        raise ConfigurationError(
            f"storage_options: {', '.join(unknown)} is not an option of {scheme}://.",
            cure=f"Use: {', '.join(sorted(known))}." if known else "Leave it out.",
        )
    _check_secrets(checked, _S3_SECRETS)
    endpoint = checked.get("endpoint_url", "")
    if holds_password(endpoint):
        raise ConfigurationError(
            "storage_options: endpoint_url has a password in it.",
            cure='Name an environment variable that holds it: Secret(env="...").',
        )
    if len({"access_key_id", "secret_access_key"} & checked.keys()) == 1:
        raise ConfigurationError(
            "storage_options: access_key_id and secret_access_key belong together.",
            cure="Name both, or none: then they are what boto3 finds.",
        )
    return tuple(sorted(checked.items()))


def saved_options(options: StorageOptions) -> dict[str, Any]:
    """Returns the options as JSON, with the names of secrets."""
    return {name: as_json(value) for name, value in options}


def reopened_options(saved: Mapping[str, Any]) -> StorageOptions:
    """Returns the options that `saved_options` was given."""
    return tuple((name, from_json(value)) for name, value in saved.items())


def literally(path: str) -> str:
    """Escapes a path for Spark's readers, which treat every path as a pattern.

    Their option `__globPaths__` is not used: with it Spark 4.3 reads all other files again for each
    name that looks like a pattern.
    """
    return _MAGIC_TO_SPARK.sub(r"\\\g<0>", path)


def _drivers_options(options: Mapping[str, str | Secret]) -> StorageOptions:
    """Returns the options of an fsspec driver; secrets are recognised by their names."""
    secret = {name for name in options if _SECRET_NAME.search(name)}
    _check_secrets(options, {name for name in secret if str(options[name]) not in _METHODS})
    return tuple(sorted(options.items()))


def _check_secrets(options: Mapping[str, str | Secret], secret: Collection[str]) -> None:
    for name in sorted(options.keys() & set(secret)):
        if not isinstance(options[name], Secret):
            raise ConfigurationError(
                f"storage_options: {name} is given in plain text.",
                cure='Name an environment variable that holds it: Secret(env="...").',
            )


def _url(url: str, scheme: str, rest: str) -> str:
    """Normalises a URL; `rest` follows the scheme's colon."""
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f"path: {url!r} is not on this machine, and {scheme}:// is not supported.",
            cure=f"Name a local folder, or one of {', '.join(f'{s}://' for s in SCHEMES)}.",
        )
    host, _, folder = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not (host or scheme == "hdfs") or "\0" in url:
        raise ConfigurationError(
            f"path: {url!r} names no place.", cure=f"Write it as {scheme}://bucket/folder."
        )
    if "@" in host and SCHEMES[scheme] != "abfs":  # `container@account`
        raise ConfigurationError(
            f"path: a {scheme}:// URL has no place for keys and passwords.",
            cure="Give them as storage_options={...: Secret(env=...)}, or leave them to the "
            "environment.",
        )
    if _QUERY.search(folder):
        raise ConfigurationError(
            f"path: {url.partition('?')[0]!r}... must not have options after '?'.",
            cure="Give options as storage_options={...}.",
        )
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ConfigurationError(
            f"path: {url!r} contains '..'.", cure="Write the folder that is meant."
        )
    return "/".join([f"{SCHEMES[scheme]}://{host}", *parts])


def _path_of_url(url: str, rest: str) -> str:
    """Returns the path of a file URL; `rest` follows the scheme's colon."""
    if not rest.startswith("//"):
        return unquote(rest)
    host, slash, path = rest[2:].partition("/")
    if host not in _LOCAL_HOSTS:
        raise ConfigurationError(
            f"path: {url!r} is on the host {host!r}.",
            cure="A local path has three slashes (file:///folder); mount what is elsewhere.",
        )
    return unquote(slash + path)

"""File systems of fsspec: the drivers of object stores, and Hadoop's."""

from __future__ import annotations

import errno
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, unquote_plus

from dagster_jet.core.secret import Secret, Url, text_of

_DENIED = frozenset({401, 403})
_NO_CREDENTIALS = frozenset(
    {"ClientAuthenticationError", "CredentialUnavailableError", "DefaultCredentialsError"}
)
"""Exceptions of azure-core, azure-identity and google-auth that have no status."""


def connected(url: str, options: Collection[tuple[str, Url]]) -> tuple[Any, str]:
    """Returns the file system of a URL, without cached listings, and its name of the folder.
    fsspec caches one per process, also after a fork.

    Args:
        options: options of the driver; a number, a boolean or an object may be JSON.

    Raises:
        ImportError: the driver is not installed.
        OSError: it cannot connect; the text has no secret in it.
    """
    given = {name: text_of(value) for name, value in options}
    secrets = [given[name] for name, value in options if isinstance(value, Secret)]
    arguments = {name: _as_value(text) for name, text in given.items()}
    with as_os_errors(url, secrets, is_connecting=True):
        if url.startswith("gs://"):
            # The class that gcsfs gives fsspec asks by gRPC for a bucket's kind before each call:
            # a minute each time where only HTTP gets through.
            from gcsfs.core import GCSFileSystem

            files = GCSFileSystem(use_listings_cache=False, **arguments)
            folder = files._strip_protocol(url)
        else:
            from fsspec.core import url_to_fs

            files, folder = url_to_fs(url, use_listings_cache=False, **arguments)
    return files, str(folder).rstrip("/")


@contextmanager
def as_os_errors(
    url: str, secrets: Collection[str] = (), *, is_connecting: bool = False
) -> Iterator[None]:
    """Converts a driver's exceptions to `OSError`. Its number says that access was denied, that the
    place does not exist, that an option is wrong, or that the failure is transient.

    Args:
        secrets: texts that the error must not show.
        is_connecting: a wrong value is one of an option.
    """
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and (error.errno or 0) > 0:
            raise
        text = str(error)
        shows_secret = any(
            s in t for s in secrets for t in (text, unquote(text), unquote_plus(text))
        )
        first = "(not shown: it has a secret in it)" if shows_secret else text.partition("\n")[0]
        said = f"{url}: {type(error).__name__}: {first}".rstrip(" :.!")
        raise OSError(_number(error, is_connecting), said) from (None if shows_secret else error)


def _number(error: BaseException | None, is_connecting: bool) -> int:
    """Returns the number for an exception, or for one that it was raised from."""
    is_wrong = False
    while error is not None:
        status = getattr(error, "status_code", None) or getattr(error, "code", None)
        is_forbidden = isinstance(error, OSError) and str(error).startswith("Forbidden")  # gcsfs
        if status in _DENIED or is_forbidden or type(error).__name__ in _NO_CREDENTIALS:
            return errno.EACCES
        if isinstance(error, FileNotFoundError) or status == 404:
            return errno.ENOENT
        is_wrong = isinstance(error, LookupError | TypeError | ValueError)
        error = error.__cause__
    return errno.EINVAL if is_wrong and is_connecting else errno.EREMOTEIO


def _as_value(text: Any) -> Any:
    """Returns the value of a text that is JSON of a number, a boolean or an object."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        return text
    return value if isinstance(value, bool | int | dict) else text

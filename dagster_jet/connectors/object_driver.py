"""File systems of fsspec: the drivers of object stores, and Hadoop's."""

from __future__ import annotations

import errno
import json
import ssl
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, unquote_plus

from dagster_jet.core.secret import Secret, Url, text_of

_DENIED = frozenset({401, 403})
_NO_TOKEN = frozenset(
    {"CredentialUnavailableError", "DefaultCredentialsError", "RefreshError", "TransportError"}
)
"""Exceptions of azure-identity and google-auth, also if the server of tokens does not answer."""


def connected(url: str, options: Collection[tuple[str, Url]]) -> tuple[Any, str]:
    """Returns the file system of a URL, without cached listings, and its name of the folder.
    fsspec caches one per process, also after a fork.

    Args:
        options: options of the driver; a text that is a JSON object is given to it as one.

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
            found = files.credentials
            if found.token is None and found.method == "anon" and files.on_google:
                files.clear_instance_cache()
                raise OSError(
                    errno.EREMOTEIO,
                    f"{url}: no Google credentials were found; token='anon' reads public buckets",
                )
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
        if isinstance(error, OSError) and (error.errno or 0) > 0 and not _is_outage(error):
            raise
        chain = [error]
        while isinstance(cause := chain[-1].__cause__, Exception):
            chain.append(cause)
        root = next(filter(_is_outage, chain), error)
        texts = [str(one) for one in chain]
        shows_secret = any(
            s in t for s in secrets for x in texts for t in (x, unquote(x), unquote_plus(x))
        )
        first = (
            "(not shown: it has a secret in it)" if shows_secret else str(root).partition("\n")[0]
        )
        said = f"{url}: {type(root).__name__}: {first}".rstrip(" :.!")
        raise OSError(_number(chain, is_connecting), said) from (None if shows_secret else error)


def _number(chain: Sequence[Exception], is_connecting: bool) -> int:
    """Returns the number for an exception, which is followed by those that it was raised from."""
    if any(map(_is_outage, chain)):
        return errno.EREMOTEIO
    for one in chain:
        status = getattr(one, "status_code", None) or getattr(one, "code", None)
        is_forbidden = isinstance(one, OSError) and str(one).startswith("Forbidden")  # gcsfs
        is_refused = type(one).__name__ == "ClientAuthenticationError" and status == 400
        if status in _DENIED or is_forbidden or is_refused:
            return errno.EACCES
        if isinstance(one, FileNotFoundError) or status == 404:
            return errno.ENOENT
    is_wrong = isinstance(chain[-1], LookupError | TypeError | ValueError)
    return errno.EINVAL if is_wrong and is_connecting else errno.EREMOTEIO


def _is_outage(error: Exception) -> bool:
    """Returns whether there was no answer, or no token without a refusal of the server of tokens.
    Numbers of aiohttp's and ssl's errors may mean others than those of the operating system."""
    kind = type(error)
    if kind.__name__ in _NO_TOKEN:
        was_refused = any(isinstance(answer, Mapping) for answer in error.args[1:])  # google-auth
        return getattr(error, "retryable", False) or not was_refused
    is_aiohttp = isinstance(error, OSError) and kind.__module__.startswith("aiohttp")
    return is_aiohttp or isinstance(error, ssl.SSLError | ConnectionError)


def _as_value(text: Any) -> Any:
    """Returns the object of a text that is a JSON object."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        return text
    return value if isinstance(value, dict) else text

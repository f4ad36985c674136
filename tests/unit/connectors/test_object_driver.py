"""Options and errors of fsspec's drivers."""

from __future__ import annotations

import errno
import sys
import traceback
from types import ModuleType
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dagster_jet import sinks, sources
from dagster_jet.connectors.files.files_sink import FilesSink
from dagster_jet.connectors.files.places.location import reopened_options, saved_options
from dagster_jet.connectors.object_driver import as_os_errors, connected
from dagster_jet.connectors.reopening import destination_of
from dagster_jet.core.secret import Secret
from dagster_jet.errors import ConfigurationError

SECRET = "ya29.a+b/c"


class Driver(MemoryFileSystem):
    """A driver that keeps the options that it is given."""

    protocol = "gs"
    cachable = False
    failure: Exception | None = None

    def __init__(self, **options: Any) -> None:
        if self.failure is not None:
            raise self.failure
        super().__init__()
        self.options = options


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> type[Driver]:
    """In the place of gcsfs, whose default class may take a minute for each call."""
    for name in ("gcsfs", "gcsfs.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["gcsfs.core"], "GCSFileSystem", Driver, raising=False)
    monkeypatch.setenv("TOKEN", SECRET)
    monkeypatch.setenv("ACCOUNT", '{"type": "service_account", "private_key": "k"}')
    monkeypatch.setattr(Driver, "failure", None)
    return Driver


def test_options_are_values(driver: type[Driver]) -> None:
    """Failed before: texts only, so that "false" was true; and a key only as a file's name."""
    options: tuple[tuple[str, Any], ...] = (
        ("requester_pays", "false"),
        ("requests_timeout", "20"),
        ("project", "p-1"),
        ("anon", False),
        ("token", Secret(env="ACCOUNT")),
    )
    fs, folder = connected("gs://bucket/in", options)
    assert isinstance(fs, driver) and folder.endswith("bucket/in")
    assert fs.options == {
        "use_listings_cache": False,
        "requester_pays": False,
        "requests_timeout": 20,
        "project": "p-1",
        "anon": False,
        "token": {"type": "service_account", "private_key": "k"},
    }
    assert reopened_options(saved_options(options)) == options


@pytest.mark.parametrize("method", ["anon", "google_default"])
def test_a_method_is_no_secret(method: str) -> None:
    """Failed before: it was refused as a token in plain text."""
    sink = sinks.files("gs://b/x", format="json", storage_options={"token": method})
    again = FilesSink.reopen(destination_of(sink))
    assert again.storage_options == (("token", method),)
    with pytest.raises(ConfigurationError, match="token is given in plain text"):
        sources.files("gs://b/x", format="parquet", storage_options={"token": SECRET})


@pytest.mark.parametrize("shown", [SECRET, "/tokeninfo?access_token=ya29.a%2Bb%2Fc"])
def test_no_error_shows_a_secret(
    driver: type[Driver], monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    """Failed before: gcsfs asks Google about a token, and names it if Google does not answer."""
    monkeypatch.setattr(driver, "failure", OSError(f"Max retries exceeded with url: {shown}"))
    with pytest.raises(OSError, match=r"gs://b/x: OSError: .not shown") as told:
        connected("gs://b/x", (("token", Secret(env="TOKEN")),))
    assert "ya29" not in "".join(traceback.format_exception(told.value))
    assert told.value.errno == errno.EREMOTEIO


class AnswerError(Exception):
    """As those of the drivers, with the status of an answer."""

    def __init__(self, status: int, text: str = "no") -> None:
        super().__init__(text)
        self.status_code = status


class ClientAuthenticationError(Exception):
    """As azure-core's."""


def wrapped(cause: Exception) -> Exception:
    try:
        raise RuntimeError("Failed to upload block") from cause
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("raised", "number"),
    [
        (AnswerError(403), errno.EACCES),
        (wrapped(AnswerError(401)), errno.EACCES),
        (ClientAuthenticationError(), errno.EACCES),
        (OSError("Forbidden: https://..."), errno.EACCES),
        (AnswerError(404), errno.ENOENT),
        (FileNotFoundError("b/gone/o"), errno.ENOENT),
        (AnswerError(503), errno.EREMOTEIO),
        (OSError(-3, "Temporary failure in name resolution"), errno.EREMOTEIO),
        (ConnectionResetError(errno.ECONNRESET, "reset"), errno.ECONNRESET),
        (ValueError("Bad Request"), errno.EREMOTEIO),
    ],
    ids=str,
)
def test_the_number_says_what_is_wrong(raised: Exception, number: int) -> None:
    """Failed before: all that a driver raised was transient, and its cure was free disk space."""
    with pytest.raises(OSError) as told, as_os_errors("gs://b/x"):
        raise raised
    assert told.value.errno == number


def test_a_wrong_option_is_no_outage(driver: type[Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "failure", ValueError("unable to connect to account!!\nmore"))
    sink = sinks.files("gs://b/x", format="json", storage_options={"project": "p"})
    with pytest.raises(ConfigurationError, match=r"'j', stage 'out'.*to account\. Correct the"):
        sink.check("j", "out", is_new_job=True)

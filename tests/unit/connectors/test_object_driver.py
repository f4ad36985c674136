"""Options and errors of fsspec's drivers."""

from __future__ import annotations

import errno
import ssl
import sys
import traceback
from types import ModuleType, SimpleNamespace
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
    method: str | None = None
    on_google = True

    def __init__(self, **options: Any) -> None:
        if self.failure is not None:
            raise self.failure
        super().__init__()
        self.options = options
        self.credentials = SimpleNamespace(token=options.get("token"), method=self.method)


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


def test_options_are_values(driver: type[Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: a key only as a file's name; later a name or secret of digits was a number."""
    monkeypatch.setenv("DIGITS", "123456")
    options: tuple[tuple[str, Any], ...] = (
        ("requester_pays", False),
        ("requests_timeout", 2.5),
        ("session_kwargs", '{"trust_env": true}'),
        ("project", "123456"),
        ("consistency", "false"),
        ("password", Secret(env="DIGITS")),
        ("token", Secret(env="ACCOUNT")),
    )
    fs, folder = connected("gs://bucket/in", options)
    assert isinstance(fs, driver) and folder.endswith("bucket/in")
    assert fs.options == {
        "use_listings_cache": False,
        "requester_pays": False,
        "requests_timeout": 2.5,
        "session_kwargs": {"trust_env": True},
        "project": "123456",
        "consistency": "false",
        "password": "123456",
        "token": {"type": "service_account", "private_key": "k"},
    }
    assert reopened_options(saved_options(options)) == options


@pytest.mark.parametrize("method", ["anon", "google_default"])
def test_a_method_is_no_secret(method: str) -> None:
    """Failed before: it was refused as a token in plain text."""
    sink = sinks.files("gs://b/x", format="json", storage_options={"token": method})
    again = FilesSink.reopen(destination_of(sink))
    assert again.storage_options == (("token", method),)
    given: Any
    for given in (SECRET, {"type": "service_account"}):  # the second one was a bare TypeError
        with pytest.raises(ConfigurationError, match="token is given in plain text"):
            sources.files("gs://b/x", format="parquet", storage_options={"token": given})


def test_absent_credentials_are_no_anonymous_ones(
    driver: type[Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: a process that met an outage of Google's tokens stayed anonymous."""
    monkeypatch.setattr(driver, "cachable", True)
    monkeypatch.setattr(driver, "method", "anon")
    with pytest.raises(OSError, match=r"gs://b/x: no Google credentials.*token='anon'") as told:
        connected("gs://b/x", ())
    assert told.value.errno == errno.EREMOTEIO
    assert connected("gs://b/x", (("token", "anon"),))[0].method == "anon"
    monkeypatch.setattr(driver, "method", "google_default")
    assert connected("gs://b/x", ())[0].credentials.method == "google_default"
    driver.clear_instance_cache()
    monkeypatch.setattr(driver, "method", "anon")
    monkeypatch.setattr(driver, "on_google", False)
    assert connected("gs://b/x", ())[0].credentials.method == "anon"
    driver.clear_instance_cache()


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

    def __init__(self, status: int | None = None) -> None:
        super().__init__("failed to retrieve a token")
        self.status_code = status


class CredentialUnavailableError(ClientAuthenticationError):
    """As azure-identity's."""


class RefreshError(Exception):
    """As google-auth's."""

    def __init__(self, *args: Any, retryable: bool = False) -> None:
        super().__init__(*args)
        self.retryable = retryable


class ClientConnectorError(OSError):
    """As aiohttp's."""


ClientConnectorError.__module__ = "aiohttp.client_exceptions"
REFUSED = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}


def wrapped(cause: Exception, by: Exception | None = None) -> Exception:
    error = by or RuntimeError("Failed to upload block")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("raised", "number"),
    [
        (AnswerError(403), errno.EACCES),
        (wrapped(AnswerError(401)), errno.EACCES),
        (ClientAuthenticationError(400), errno.EACCES),
        (ClientAuthenticationError(503), errno.EREMOTEIO),
        (ClientAuthenticationError(), errno.EREMOTEIO),
        (CredentialUnavailableError(403), errno.EREMOTEIO),
        (wrapped(RefreshError("x", REFUSED), AnswerError(401)), errno.EACCES),
        (wrapped(RefreshError("x", REFUSED, retryable=True), AnswerError(401)), errno.EREMOTEIO),
        (wrapped(RefreshError("Status: 503"), AnswerError(401)), errno.EREMOTEIO),
        (wrapped(RefreshError("Status: 503"), ValueError("gcloud")), errno.EREMOTEIO),
        (OSError("Forbidden: https://..."), errno.EACCES),
        (AnswerError(404), errno.ENOENT),
        (FileNotFoundError("b/gone/o"), errno.ENOENT),
        (AnswerError(503), errno.EREMOTEIO),
        (OSError(-3, "Temporary failure in name resolution"), errno.EREMOTEIO),
        (ConnectionResetError(errno.ECONNRESET, "reset"), errno.EREMOTEIO),
        (ClientConnectorError(1, "certificate"), errno.EREMOTEIO),
        (ssl.SSLCertVerificationError(1, "certificate"), errno.EREMOTEIO),
        (OSError(errno.ENOSPC, "full"), errno.ENOSPC),
        (ValueError("Bad Request"), errno.EREMOTEIO),
    ],
    ids=str,
)
def test_the_number_says_what_is_wrong(raised: Exception, number: int) -> None:
    """Failed before: all that a driver raised was transient, and its cure was free disk space;
    later, an outage of the server of tokens was a refusal."""
    with pytest.raises(OSError) as told, as_os_errors("gs://b/x"):
        raise raised
    assert told.value.errno == number


def test_an_outage_is_told_and_a_secret_of_its_cause_is_not() -> None:
    """Failed before: the error named the driver's "401", and its traceback the cause's secret."""
    with pytest.raises(OSError, match="RefreshError: Status: 503"), as_os_errors("gs://b/x"):
        raise wrapped(RefreshError("Status: 503"), AnswerError(401, "Invalid Credentials"))
    with pytest.raises(OSError, match="not shown") as told, as_os_errors("gs://b/x", [SECRET]):
        raise wrapped(OSError(f"url: {SECRET}"))
    assert told.value.__cause__ is None


def test_a_wrong_option_is_no_outage(driver: type[Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "failure", ValueError("unable to connect to account!!\nmore"))
    sink = sinks.files("gs://b/x", format="json", storage_options={"project": "p"})
    with pytest.raises(ConfigurationError, match=r"'j', stage 'out'.*to account\. Correct the"):
        sink.check("j", "out", is_new_job=True)

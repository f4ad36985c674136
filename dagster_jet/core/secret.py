"""Texts that contain passwords: stored by name, resolved where they are used."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

from dagster_jet.errors import ConfigurationError


@dataclass(frozen=True)
class Secret:
    """The value of an environment variable; only its name is shown and sent.

    Attributes:
        env: the variable; set in every process that needs the value, executors included.
    """

    env: str

    def value(self) -> str:
        """Return the variable's value in this process.

        Raises:
            ConfigurationError: the variable is not set.
        """
        text = os.environ.get(self.env, "").strip()
        if not text:
            raise ConfigurationError(
                f"the environment variable {self.env} is not set.",
                cure="Set it for the driver and for every executor.",
            )
        return text


ENV = "env:"
"""Prefix of a text that names a variable, where only text is possible: YAML, a command line."""
_NO_SCHEME = re.compile(r"[^/@]*:[^/@]+@")
Url: TypeAlias = str | Secret
"""A URL, or the name of the variable that contains it."""


def named(url: Url) -> Url:
    """Convert ``env:NAME`` and Dagster's ``EnvVar`` into a ``Secret``; return other URLs and
    passwords unchanged. For constructors that take one."""
    env = getattr(url, "env_var_name", None)
    if isinstance(env, str):
        return Secret(env=env)
    if isinstance(url, str) and url.startswith(ENV):
        return Secret(env=url.removeprefix(ENV))
    return url


def as_json(url: Url) -> str | dict[str, str]:
    """Return a JSON value: a secret's name, not its value; another URL or text as it is."""
    return {"env": url.env} if isinstance(url, Secret) else url


def from_json(saved: str | Mapping[str, str]) -> Url:
    """Return what `as_json` was given."""
    return Secret(saved["env"]) if isinstance(saved, Mapping) else saved


def secret(given: Url, name: str) -> Secret:
    """Return the secret that a setting names.

    Args:
        name: name of the setting.

    Raises:
        ConfigurationError: it is another text, which is not repeated: it may be the secret itself.
    """
    found = named(given)
    if not isinstance(found, Secret):
        raise ConfigurationError(
            f"{name}: expected a Secret. Everybody who sees the code could read a text.",
            cure='Name the environment variable that holds it: Secret(env="NAME"), written '
            "env:NAME in YAML and on a command line.",
        )
    return found


def text_of(url: Url) -> str:
    """Return a URL in clear text. Secrets are resolved only here, in the process that uses them.
    Raises ConfigurationError like ``Secret.value``."""
    return url.value() if isinstance(url, Secret) else url


def shown(url: Url) -> str:
    """Return a URL for display, lineage and metadata: a secret's name, a URL without password."""
    if isinstance(url, Secret):
        return f"{ENV}{url.env}"
    if not holds_password(url):
        return url
    try:
        parts = _parts(url)
        options = (one for one in parts.query.split("&") if not _is_password(one))
        parts = parts._replace(query="&".join(options))
        user = f"{parts.username}@" if parts.username else ""
        place = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
        return parts._replace(netloc=f"{user}{place}").geturl()
    except ValueError:
        return url.rpartition("@")[2]


def holds_password(url: Url) -> bool:
    """Whether a URL contains a password in clear text."""
    if isinstance(url, Secret):
        return False
    try:
        parts = _parts(url)
        return bool(parts.password) or any(map(_is_password, parts.query.split("&")))
    except ValueError:
        return "@" in url


def _parts(url: str) -> SplitResult:
    """Raises ValueError for a URL whose password cannot be told from the rest: it has no scheme, or
    a "/" in the password ends the host early."""
    parts = urlsplit(url)
    if "://" not in url and _NO_SCHEME.match(url):
        raise ValueError
    _ = parts.port  # raises, too
    return parts


def refuse_written_out(url: Url, name: str) -> None:
    """Refuse a clear-text password in a connector that is sent to tasks: it would be readable in
    the code, in a task's closure, and on disks.

    Args:
        name: name of the argument.

    Raises:
        ConfigurationError: the URL contains a password.
    """
    if holds_password(url):
        raise ConfigurationError(
            f"{name}: {shown(url)} contains its password in plain text, and everybody who sees "
            "the code or the tasks can read it.",
            cure="Name an environment variable that holds the whole URL: "
            f'{name}=Secret(env="...").',
        )


def _is_password(option: str) -> bool:
    """Whether a query option is a password for database drivers."""
    name, _, value = option.partition("=")
    return bool(value) and name.lower() in ("password", "passwd", "sslpassword")

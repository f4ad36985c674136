"""Texts that hold passwords: named where they are written down, read where they are used."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from dagster_jet.errors import ConfigurationError


@dataclass(frozen=True)
class Secret:
    """The value of an environment variable, by its name: what is shown and sent is the name.

    Attributes:
        env: the variable; every process that needs the value has it, the executors too.
    """

    env: str

    def value(self) -> str:
        """Return what the variable holds in this process.

        Raises:
            ConfigurationError: it is not set.
        """
        text = os.environ.get(self.env, "").strip()
        if not text:
            raise ConfigurationError(
                f"the environment variable {self.env} is not set.",
                cure="Set it for the driver and for every executor.",
            )
        return text


ENV = "env:"
"""What a text begins with that names a variable, where there is text only: YAML, a command line."""
Url: TypeAlias = str | Secret
"""A URL, or the name of where it stands."""


def named(url: Url) -> Url:
    """Return a URL, or a password, as it is kept: ``env:NAME``, and Dagster's ``EnvVar``, as the
    secret that it means. For the constructor of whatever takes one."""
    env = getattr(url, "env_var_name", None)
    if isinstance(env, str):
        return Secret(env=env)
    if isinstance(url, str) and url.startswith(ENV):
        return Secret(env=url.removeprefix(ENV))
    return url


def text_of(url: Url) -> str:
    """Return a URL as it is opened: the one place where secrets are resolved, in the process that
    uses them. Raises ConfigurationError as ``Secret.value``."""
    return url.value() if isinstance(url, Secret) else url


def shown(url: Url) -> str:
    """Return a URL for people, lineage and metadata: a secret's name, a URL without password."""
    if isinstance(url, Secret):
        return f"{ENV}{url.env}"
    if not holds_password(url):
        return url
    try:
        parts = urlsplit(url)
        options = (one for one in parts.query.split("&") if not _is_password(one))
        parts = parts._replace(query="&".join(options))
        user = f"{parts.username}@" if parts.username else ""
        place = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
        return parts._replace(netloc=f"{user}{place}").geturl()
    except ValueError:
        return url.rpartition("@")[2]


def holds_password(url: Url) -> bool:
    """Whether a URL itself has a password in it, for everybody to read who is given it."""
    if isinstance(url, Secret):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.password) or any(map(_is_password, parts.query.split("&")))
    except ValueError:
        return "@" in url


def refuse_written_out(url: Url, name: str) -> None:
    """For a connector that is sent to tasks: a password would be in its pickle, for everybody to
    read who sees the code, a task's closure, or the disk where it lies.

    Args:
        name: of the argument.

    Raises:
        ConfigurationError: the URL itself has a password in it.
    """
    if holds_password(url):
        raise ConfigurationError(
            f"{name}: {shown(url)} is written out with its password, for everybody to read who "
            "sees the code or what is sent to tasks.",
            cure=f'Name a variable that holds all of it: {name}=Secret(env="...").',
        )


def _is_password(option: str) -> bool:
    """Of a query, as drivers of databases take it."""
    name, _, value = option.partition("=")
    return bool(value) and name.lower() in ("password", "passwd", "sslpassword")

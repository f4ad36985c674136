"""Options shared by all commands: the store, the namespace and the output format.

They are placed after the command, like all other options. A Typer callback could declare them once,
but would accept them only before the command (``dagster-jet --json store status``).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_jet.core.secret import Secret, holds_password, secret
from dagster_jet.errors import ConfigurationError, JetError, StoreUnavailableError

if TYPE_CHECKING:
    from dagster_jet.jet import Jet
    from dagster_jet.store import Store

_SHARED = {
    "store": Annotated[
        list[str],
        typer.Option(
            "--store",
            "-s",
            envvar="DAGSTER_JET_STORE",
            help="URL of a member. Repeat the option for each member, or separate URLs by spaces "
            "in DAGSTER_JET_STORE. For a URL with a password: env:NAME of an environment "
            "variable, or @FILE.",
        ),
    ],
    "namespace": Annotated[str, typer.Option(envvar="DAGSTER_JET_NAMESPACE")],
    "encryption_keys": Annotated[
        str | None,
        typer.Option(
            envvar="DAGSTER_JET_ENCRYPTION_KEYS",
            help="env:NAME of the environment variable that holds the keys of an encrypted store.",
        ),
    ],
    "json": Annotated[bool, typer.Option("--json", help="Print one JSON document.")],
}
_DEFAULTS = {
    "store": inspect.Parameter.empty,
    "namespace": "default",
    "encryption_keys": None,
    "json": False,
}


@dataclass(frozen=True)
class Target:
    """Values of the shared options.

    Attributes:
        urls: URLs of the members; may contain secrets.
        namespace: namespace of jobs and maps.
        encryption_keys: the keys, by the name of their environment variable.
        as_json: one JSON document instead of tables.
    """

    urls: tuple[str, ...]
    namespace: str
    encryption_keys: Secret | None
    as_json: bool

    @contextmanager
    def open_store(self, *, accept_unencrypted: bool = False) -> Iterator[Store]:
        """Open an existing store, with the settings saved in it.

        Args:
            accept_unencrypted: also accept values that this command is to encrypt or re-encrypt.
        """

        from dagster_jet.store import Store, StoreConfig

        config = StoreConfig(
            self.urls,
            backup_count=0,
            namespace=self.namespace,
            encryption_keys=self.encryption_keys,
            accept_unencrypted=accept_unencrypted,
        )
        with Store.open(config, create=False) as store:
            yield store

    @contextmanager
    def open_jet(self, *, create: bool = False) -> Iterator[Jet]:
        """Open a `Jet` on an existing store, without starting Spark.

        Args:
            create: without a store, create one; with several members it has a backup.
        """

        from dagster_jet.jet import Jet
        from dagster_jet.store import StoreConfig

        try:
            with self.open_store() as store:
                config = store.config
        except StoreUnavailableError:
            if not create:
                raise
            # With members that are away this is refused: creating needs all of them.
            config = StoreConfig(self.urls, min(1, len(self.urls) - 1), namespace=self.namespace)
        with Jet(
            store=config.urls,
            backup_count=config.backup_count,
            partition_count=config.partition_count,
            namespace=config.namespace,
            encryption_keys=self.encryption_keys,
        ) as jet:
            yield jet


def text_in(given: str) -> str:
    """Return the argument, or for ``@FILE`` the content of the file.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{given}: the file cannot be read: {error}.") from None


def refuse_password(given: Iterable[str]) -> None:
    """Refuse URLs that contain a password: every user of this machine can read a command line.

    Raises:
        ConfigurationError: names the members.
    """

    from dagster_jet.store import member_id_of

    urls = (url for text in given for url in text.split())
    open_secrets = [member_id_of(url) for url in urls if holds_password(url)]
    if open_secrets:
        raise ConfigurationError(
            f"the password of {', '.join(open_secrets)} is on the command line, where every user "
            "of this machine can read it; your shell saves it in its history. Change the "
            "password.",
            cure="Put the URL into the environment (DAGSTER_JET_STORE, or --store env:NAME) or "
            "into a file (--store @FILE), or name the password: ?password_env=NAME.",
        )


def _is_on_command_line(option: str, context: typer.Context) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Prints a `JetError` as a sentence and exits with code 2."""
    try:
        yield
    except JetError as error:
        print(f"dagster-jet: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


def on_store(command: Callable[..., None]) -> Callable[..., None]:
    """Add the shared options to a command, passed as its first argument `Target`; handle errors."""

    @wraps(command)
    def run(**options: Any) -> None:
        with errors_as_sentences():
            given: list[str] = options.pop("store")
            if _is_on_command_line("store", options.pop("context")):
                refuse_password(given)
            urls = tuple(url for text in given for url in text_in(text).split())
            text = options.pop("encryption_keys")
            keys = None if text is None else secret(text, "encryption_keys")
            target = Target(urls, options.pop("namespace"), keys, options.pop("json"))
            command(target, **options)

    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    shared = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS[name], annotation=annotation
        )
        for name, annotation in _SHARED.items()
    ]
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *own, *shared]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del run.__wrapped__
    return run

"""The URL of a member behind a network: location, options, and possibly secrets.

The ``member_id`` is made only of the parts that name the location. No message here repeats a part
of the URL that could be a mistyped password.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from dagster_jet.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class NetworkUrl:
    """A parsed URL; ``repr`` shows no secrets.

    Attributes:
        scheme: in lower case.
        host: host, bucket or table; case is kept, without brackets.
        port: None if the URL has none.
        path: decoded, without slashes at its ends.
        username: decoded; None if the URL has none.
        password: decoded; None if the URL has none.
        options: the query options, each at most once.
    """

    scheme: str
    host: str
    port: int | None
    path: str
    username: str | None = field(repr=False)
    password: str | None = field(repr=False)
    options: dict[str, str] = field(repr=False)

    @staticmethod
    def parse(url: str, known_options: Collection[str], example: str) -> NetworkUrl:
        """Parse a URL.

        Args:
            url: the URL as the user wrote it.
            known_options: the options of its scheme; other ones are refused.
            example: a valid URL, for the messages.

        Raises:
            ConfigurationError: the URL has no host, an invalid port, or an unknown option.
        """
        scheme = url.partition(":")[0].lower()
        cure = f"Write it as {example}; percent-encode special characters in a password."
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError:
            # Not chained: its message quotes the unreadable part, possibly half a password.
            message = f"a {scheme}:// store URL cannot be read."
            raise ConfigurationError(message, cure=cure) from None
        if not host or parts.fragment:
            raise ConfigurationError(f"a {scheme}:// store URL cannot be read.", cure=cure)
        at = parts.netloc.lower().rfind(host)
        options = dict(pairs)
        unknown = sorted(options.keys() - set(known_options))
        if unknown or len(options) < len(pairs):
            named = ", ".join(unknown) or "one of them twice"
            raise ConfigurationError(
                f"the options of a {scheme}:// store URL are not valid: {named}.",
                cure=f"Use: {', '.join(sorted(known_options))}.",
            )
        return NetworkUrl(
            scheme=scheme,
            host=parts.netloc[at : at + len(host)],
            port=port,
            path=unquote(parts.path).strip("/"),
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            options=options,
        )

    def member_id(self, place: str, naming_options: Collection[str]) -> str:
        """Return the id of a location: without secrets, with only the options that identify it."""
        named = "&".join(
            f"{name}={quote(self.options[name], safe=':/')}"
            for name in sorted(naming_options)
            if self.options.get(name)
        )
        return f"{self.scheme}://{place}" + (f"?{named}" if named else "")

    def seconds(self, option: str, default: float) -> float:
        """Return an option in seconds, more than 0 and at most 60."""
        try:
            value = float(self.options.get(option, default))
        except ValueError:
            value = 0
        if not 0 < value <= 60:
            raise self._wrong(option, "a number of seconds, more than 0 and at most 60")
        return value

    def choice(self, option: str, values: Collection[str], default: str) -> str:
        """Return an option that must be one of ``values``."""
        value = self.options.get(option, default)
        if value not in values:
            raise self._wrong(option, " or ".join(sorted(values)))
        return value

    def _wrong(self, option: str, expected: str) -> ConfigurationError:
        return ConfigurationError(
            f"the option {option} of the {self.scheme}:// store URL of {self.host}: expected "
            f"{expected}."
        )

"""Configuration of a store: its members, how data is spread over them, and how jobs use it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dagster_jet.core.durations import Duration, to_ms
from dagster_jet.core.partition import DEFAULT_PARTITION_COUNT
from dagster_jet.core.secret import Secret, Url, holds_password, named, secret, text_of
from dagster_jet.errors import ConfigurationError
from dagster_jet.store.members import Member, member_id_of, open_member
from dagster_jet.store.values.encryption import Keyring
from dagster_jet.store.values.sealing import PLAIN, Sealer

BACKUPS_MAX = 6
PARTITIONS_MAX = 9_999
"""The largest number with four digits, so that stored keys of one map sort by partition."""


@dataclass(frozen=True, repr=False)
class StoreConfig:
    """Location and replication settings of a store; validated on construction.

    It can be pickled for tasks unless a URL contains a password (``check_shareable``).

    The four settings of jobs are not kept in the store: each process uses its own for the jobs that
    it runs.

    Attributes:
        urls: one URL per member, or a ``Secret`` that names it, also written ``env:NAME``. A URL
            may hold a password, so ``repr`` shows member ids instead.
        backup_count: how many replicas each partition has besides its primary, 0 to 6.
        partition_count: 1 to 9,999; fixed when the store is created.
        namespace: separates users of one store. Maps and registers belong to a namespace.
        encryption_keys: the keys (``encryption.py``), by the name of the environment variable that
            holds them on the driver and on every executor. None: nothing is encrypted.
        accept_unencrypted: also read values that are not encrypted. Use it only while a store is
            being encrypted.
        allow_memory: accept ``memory://`` members (unit tests).
        lease_ttl: time for which the owner of a job on another host counts as alive without a sign
            of life; at least one second. The lease contains it, so every process waits as long as
            the owner's own setting says.
        member_timeout: absence after which a running job repairs the store around a member: other
            members take over its data, and it leaves the store. At least one second; "off": only
            manual repair. A member that answers with errors (full disk, wrong password) is never
            removed. If processes differ, the shortest counts.
        scale_up_delay: time without a change of the members after which a running job restarts
            gracefully with the new partition table; several members may join in a row. "off": the
            job keeps the old table until its next start.
        split_brain_protection: start a job only if more than half of the largest number of members
            that it has ever seen are reachable.

    Raises:
        ConfigurationError: a field is invalid; names it.

    Example:
        >>> config = StoreConfig(urls=("file:///var/jet/a", "file:///var/jet/b"))
    """

    urls: tuple[Url, ...]
    backup_count: int = 1
    partition_count: int = DEFAULT_PARTITION_COUNT
    namespace: str = "default"
    encryption_keys: Secret | None = None
    accept_unencrypted: bool = False
    allow_memory: bool = False
    lease_ttl: Duration = "10 seconds"
    member_timeout: Duration = "1 minute"
    scale_up_delay: Duration = "10 seconds"
    split_brain_protection: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.urls, str) or not isinstance(self.urls, Iterable):
            raise ConfigurationError("urls: expected a sequence of store URLs.")
        object.__setattr__(self, "urls", tuple(map(named, self.urls)))
        if not self.urls:
            raise ConfigurationError("urls: a store needs at least one member.")
        ids = self.member_ids
        twice = sorted({member_id for member_id in ids if ids.count(member_id) > 1})
        if twice:
            raise ConfigurationError(f"urls: {', '.join(twice)} is named more than once.")
        _check_range("backup_count", self.backup_count, 0, BACKUPS_MAX)
        _check_range("partition_count", self.partition_count, 1, PARTITIONS_MAX)
        if self.encryption_keys is not None:
            keys = secret(self.encryption_keys, "encryption_keys")
            object.__setattr__(self, "encryption_keys", keys)
        if not self.namespace:
            raise ConfigurationError("namespace: must not be empty.")
        if not self.namespace.isprintable() or {".", ".."} & set(self.namespace.split("/")):
            raise ConfigurationError(
                f"namespace: {self.namespace!r} cannot be a part of keys and paths.",
                cure="Use letters, digits, '_', '-' and '.'.",
            )
        if not isinstance(self.split_brain_protection, bool):
            raise ConfigurationError("split_brain_protection: expected True or False.")
        for field, value_ms, least_ms in (
            ("lease_ttl", self.lease_ttl_ms, 1_000),
            ("member_timeout", self.member_timeout_ms, 1_000),
            ("scale_up_delay", self.scale_up_delay_ms, 0),
        ):
            if value_ms is not None and value_ms < least_ms:
                raise ConfigurationError(f"{field}: is shorter than 1 second.")

    @property
    def lease_ttl_ms(self) -> int:
        """``lease_ttl`` in milliseconds."""
        return to_ms(self.lease_ttl, "lease_ttl")

    @property
    def member_timeout_ms(self) -> int | None:
        """``member_timeout`` in milliseconds; None: off."""
        return _ms_or_off(self.member_timeout, "member_timeout")

    @property
    def scale_up_delay_ms(self) -> int | None:
        """``scale_up_delay`` in milliseconds; None: off."""
        return _ms_or_off(self.scale_up_delay, "scale_up_delay")

    def check_members(self, members: int | None = None) -> None:
        """Refuse a store with too few members for its backups.

        Args:
            members: number of members; by default the number of URLs.

        Raises:
            ConfigurationError: fewer members than ``backup_count`` + 1.
        """
        members = len(self.urls) if members is None else members
        if members < self.backup_count + 1:
            raise ConfigurationError(
                f"backup_count={self.backup_count} needs {self.backup_count + 1} members, "
                f"urls names {members}.",
                cure="Add members, or lower backup_count.",
            )

    @property
    def member_ids(self) -> tuple[str, ...]:
        """The members' ids, in the order of ``urls``."""
        return tuple(member_id_of(text_of(url)) for url in self.urls)

    def open_member(self, member_id: str) -> Member:
        """Return a member, not yet connected. An id that ``urls`` lacks is opened as a URL."""
        url = dict(zip(self.member_ids, self.urls, strict=True)).get(member_id, member_id)
        return open_member(text_of(url), allow_memory=self.allow_memory)

    def check_shareable(self) -> None:
        """Refuse to send passwords to Spark tasks, where closures and disks would hold them.

        Raises:
            ConfigurationError: names the members, and the way to reference their passwords instead.
        """
        open_secrets = [member_id_of(text_of(url)) for url in self.urls if holds_password(url)]
        if open_secrets:
            raise ConfigurationError(
                f"urls: a password is written in the URL of {', '.join(open_secrets)}; it would be "
                "sent to every Spark task.",
                cure='Name it: Secret(env="NAME") with the URL in that environment variable, or '
                "?password_env=NAME in the URL. Set the variable for the driver and for every "
                "executor.",
            )

    def __getstate__(self) -> dict[str, object]:
        self.check_shareable()
        return dict(self.__dict__)

    def sealer(self) -> Sealer:
        """Return the sealer of this process; reads the keys from the environment.

        Raises:
            ConfigurationError: the keys are not there, or not valid.
            MissingEnvironmentError: the package ``cryptography`` is missing.
        """
        if self.encryption_keys is None:
            return PLAIN
        keyring = Keyring.from_environment(self.encryption_keys.env)
        return Sealer(keyring, accept_unencrypted=self.accept_unencrypted)

    def __repr__(self) -> str:
        return (
            f"StoreConfig(members={list(self.member_ids)}, backup_count={self.backup_count}, "
            f"partition_count={self.partition_count}, namespace={self.namespace!r})"
        )


def _check_range(field: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigurationError(f"{field}: expected a number from {low} to {high}, not {value!r}.")


def _ms_or_off(value: Duration, field: str) -> int | None:
    return None if value == "off" else to_ms(value, field)

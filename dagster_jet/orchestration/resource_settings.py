"""Settings of a `JetResource`: their fields, their forms, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_jet.core.secret import Secret, Url, named, secret, shown
from dagster_jet.errors import ConfigurationError
from dagster_jet.job_config import JobConfig
from dagster_jet.store.config import StoreConfig
from dagster_jet.store.members import member_id_of, refuse_memory


class ResourceSettings(dg.ConfigurableResource[Any]):
    """Base class of `JetResource`."""

    store: list[str] = Field(
        description="One URL per member of the store. An EnvVar is read where the URL is used, on "
        "the driver and on every executor, so no task and no run contains a password."
    )
    backup_count: int = Field(default=1, description="Replicas besides the primary, 0 to 6.")
    namespace: str = Field(default="default", description="Separates deployments in one store.")
    encryption_keys: str | None = Field(
        default=None,
        description="The encryption keys of stored values, the newest first: an EnvVar, a Secret, "
        "or `env:NAME`. The variable is read on the driver and on every executor.",
    )
    accept_unencrypted: bool = Field(
        default=False,
        description="With keys: also read values that are not encrypted. Use it only while "
        "`dagster-jet store rotate-keys` is running.",
    )
    lease_ttl: str = Field(
        default="10 seconds",
        description="How long an execution counts as alive after it last renewed its lease.",
    )
    member_timeout: str = Field(
        default="1 minute",
        description="Absence of a member after which a running job repairs the store around it; "
        '"off": only manual repair.',
    )
    scale_up_delay: str = Field(
        default="10 seconds",
        description="Time without a change of the store's members after which a running job "
        'restarts with the new partition table; "off": it keeps the old one until its next start.',
    )
    split_brain_protection: bool = Field(
        default=False,
        description="Start a job only if more than half of the largest number of members that it "
        "has ever seen are reachable.",
    )
    work_dir: str | None = Field(
        default=None, description="Folder of executors' state files; a temporary one if empty."
    )
    epochs_table: str | None = Field(
        default=None,
        description="Folder of a small Delta Lake table that names, for each sink of Delta Lake "
        "and Iceberg, the version with the rows of the job's newest snapshot.",
    )
    epochs_storage_options: dict[str, str] = Field(
        default_factory=dict,
        description="Options of the bucket of `epochs_table`; secrets as an EnvVar, a Secret or "
        "`env:NAME`.",
    )
    spark_config: dict[str, Any] = Field(default_factory=dict, description="Spark settings.")
    guarantee: str | None = Field(
        default=None, description='"exactly-once" (default), "at-least-once" or "none".'
    )
    snapshot_interval: str | None = Field(
        default=None,
        description='Interval between two snapshots, for example "1 second". Empty: four a '
        "second, one with lake tables, and fewer if snapshots take longer.",
    )
    target_epoch_duration: str | None = Field(
        default=None, description='Target duration of an epoch, for example "500 ms".'
    )
    job_config: dict[str, Any] = Field(
        default_factory=dict, description="Further fields of `JobConfig`, by name."
    )
    min_report_interval_seconds: float = Field(
        default=30.0,
        ge=0,
        description="Minimum seconds between two materializations of an asset; the first after a "
        "recovery and the last of a run are always reported. Dagster stores about 9 "
        "KB for each, permanently. 0: report every snapshot.",
    )
    max_report_interval_seconds: float = Field(
        default=300.0,
        ge=0,
        description="The minimum interval grows with the age of the run, from 30 seconds in the "
        "first 50 minutes to this value after about 8 hours. Set both to the same "
        "value for a constant interval.",
    )
    drain_budget_seconds: float = Field(
        default=25.0,
        ge=0,
        description="How long a cancel waits for the terminal snapshot. Keep it below Dagster's "
        "run_monitoring.cancel_timeout_seconds and below the platform's grace period.",
    )

    def __init__(self, *, pyspark: Any = None, **fields: Any) -> None:
        """Takes the settings of a resource of dagster-pyspark, if one is given.

        The resource itself would start Spark in a sensor's tick, too, and in the main thread,
        where PySpark takes over SIGINT.

        Args:
            pyspark: a `PySparkResource`, or anything with a `spark_config`; ours takes
                precedence.
        """
        self._check_names(fields)
        if pyspark is not None:
            own = dotted(fields.get("spark_config") or {})
            fields["spark_config"] = {**dotted(pyspark.spark_config), **own}
        super().__init__(**with_names(fields))
        self._check_settings()

    def _check_names(self, given: Mapping[str, Any]) -> None:
        """Refuses what Dagster would ignore: a setting that there is not, and a store as one text.

        Raises:
            ConfigurationError: names the setting.
        """
        known = [field.alias or name for name, field in type(self).model_fields.items()]
        unknown = sorted(given.keys() - {*known, *type(self).model_fields})
        if unknown and self.model_config.get("extra") != "allow":
            raise ConfigurationError(
                f"{type(self).__name__} has no setting {', '.join(map(repr, unknown))}.",
                cure=f"Its settings are {', '.join(known)}. Those of jobs stand in job_config, "
                "too.",
            )
        if isinstance(given.get("store"), str):
            raise ConfigurationError("store: expected a list of URLs, not a single string.")

    def _check_settings(self) -> None:
        """Validates settings when definitions are loaded, except for values from the environment,
        which are known in the run only."""
        texts = [self.guarantee, self.snapshot_interval, self.target_epoch_duration]
        texts += self.job_config.values()
        if not any(isinstance(text, dg.EnvVar) for text in texts):
            self._job_config(None)
        self._check_store()

    def _check_store(self) -> None:
        known = [url for url in map(named, self.store) if isinstance(url, str)]
        for url in known:
            refuse_memory(member_id_of(url), allow_memory=False)
        plain = {
            name: value
            for name, value in self._store_settings().items()
            if not isinstance(value, dg.EnvVar)
        }
        # A store without URLs is refused. If all URLs come from the environment, a placeholder
        # stands for them.
        urls = known if known or not self.store else ["file:///elsewhere"]
        config = StoreConfig(tuple(urls), **{"backup_count": 0, **plain})
        config.check_members(len(self.store))

    def _store_settings(self) -> dict[str, Any]:
        names = {field.name for field in fields(StoreConfig)} & type(self).model_fields.keys()
        own = {name: getattr(self, name) for name in names}
        return {**own, "encryption_keys": self._keys}

    @property
    def _keys(self) -> Secret | None:
        keys = self.encryption_keys
        return None if keys is None else secret(keys, "encryption_keys")

    def _job_config(self, config: JobConfig | Mapping[str, Any] | None) -> JobConfig:
        if isinstance(config, JobConfig):
            return config
        names = ("guarantee", "snapshot_interval", "target_epoch_duration")
        own = {name: value for name in names if (value := getattr(self, name)) is not None}
        return JobConfig(**{**own, **self.job_config, **(config or {})})

    def _spark_settings(self) -> dict[str, str]:
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in dotted(self.spark_config).items()
        }


def with_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Encodes each `EnvVar` or `Secret` as text, in the fields that may have secrets; Dagster would
    replace the first by its value."""
    found = dict(fields)
    if isinstance(found.get("store"), Sequence):
        found["store"] = [_by_name(url) for url in found["store"]]
    if found.get("encryption_keys") is not None:
        found["encryption_keys"] = _by_name(found["encryption_keys"])
    options = found.get("epochs_storage_options")
    if isinstance(options, Mapping):
        found["epochs_storage_options"] = {n: _by_name(value) for n, value in options.items()}
    return found


def _by_name(given: Url) -> str:
    found = named(given)
    return shown(found) if isinstance(found, Secret) else found


def dotted(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested tables to dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat.update(dotted(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat

"""The resource's fields become the library's settings; nothing runs."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_pyspark import LazyPySparkResource, PySparkResource
from pydantic import ConfigDict, Field

from dagster_jet import JetResource, JobConfig, JournalConfig, Pipeline, Secret
from dagster_jet.errors import ConfigurationError


def resource(tmp_path: Path, **fields: object) -> JetResource:
    return JetResource(store=[f"file://{tmp_path}/store"], backup_count=0, **fields)


def test_fields_left_empty_have_the_librarys_defaults(tmp_path: Path) -> None:
    assert resource(tmp_path)._job_config(None) == JobConfig()


def test_what_run_is_given_wins_over_the_resource(tmp_path: Path) -> None:
    own = resource(tmp_path, snapshot_interval="5 seconds", job_config={"retained_snapshots": 7})
    merged = own._job_config({"snapshot_interval": "2 seconds"})
    assert merged.snapshot_interval == timedelta(seconds=2)
    assert merged.retained_snapshots == 7
    whole = JobConfig(guarantee="at-least-once")
    assert own._job_config(whole) is whole


def test_the_library_gets_the_epochs_table(tmp_path: Path) -> None:
    bucket = {"access_key_id": dg.EnvVar("LAKE_ID"), "secret_access_key": Secret(env="LAKE_KEY")}
    own = resource(tmp_path, epochs_table="s3://lake/epochs", epochs_storage_options=bucket)
    with own.jet as jet:
        assert jet._epochs_table == "s3://lake/epochs"
        names = {"access_key_id": "env:LAKE_ID", "secret_access_key": "env:LAKE_KEY"}
        assert jet._epochs_storage_options == names


def test_wrong_settings_are_refused_where_definitions_are_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="snapshot_intervall"):
        resource(tmp_path, job_config={"snapshot_intervall": "1 second"})
    with pytest.raises(ConfigurationError, match=r"snapshot_interval.*'5 parsecs'"):
        resource(tmp_path, snapshot_interval="5 parsecs")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"store": ["memory://a"]}, "memory://a keeps its data in this process's memory only"),
        ({"store": ["flie:///a"]}, "'flie' is not a known scheme of a store URL"),
        ({"store": ["file://a"]}, "does not name an absolute folder"),
        ({"store": ["file:///a?sync=off"]}, "a file:// store URL has no options"),
        ({"store": ["file:///a#b"]}, "a file:// store URL has no options"),
        ({"store": ["file:///a", "file:///b/../a"]}, "is named more than once"),
        ({"store": []}, "at least one member"),
        ({"store": "file:///a"}, "store: expected a list of URLs"),
        ({"lease_tll": "10 seconds"}, "JetResource has no setting 'lease_tll'. Its settings are"),
        ({"store": ["file:///a"], "backup_count": 1}, "needs 2 members, urls names 1"),
        ({"store": [dg.EnvVar("A")], "backup_count": 1}, "needs 2 members, urls names 1"),
        ({"backup_count": 7}, "backup_count: expected a number from 0 to 6, not 7"),
        ({"encryption_keys": "JET_KEYS"}, "encryption_keys: expected a Secret"),
        ({"namespace": ""}, "namespace: must not be empty"),
        ({"namespace": "../other"}, "namespace: '../other' cannot be a part"),
        ({"lease_ttl": "10 ms"}, "lease_ttl: is shorter than 1 second"),
        ({"member_timeout": "soon"}, "member_timeout: 'soon' is not a duration"),
    ],
    ids=str,
)
def test_a_wrong_store_is_refused_where_definitions_are_loaded(
    settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        JetResource(**{"store": ["file:///a"], "backup_count": 0, **settings})
    assert sentence in str(caught.value)


def test_a_subclass_has_settings_of_its_own() -> None:
    """Failed before: an alias was no setting, nor was any other name where all are allowed."""

    class Regional(JetResource):
        region: str = Field(alias="aws_region")

    class Open(JetResource):
        model_config = ConfigDict(extra="allow")

    own: dict[str, Any] = {"store": ["file:///a"], "backup_count": 0}
    assert Regional(**own, aws_region="eu").region == "eu"
    assert vars(Open(**own, **{"team": "shop"}))["team"] == "shop"
    with pytest.raises(ConfigurationError, match=r"^Regional has no setting 'regoin'.*aws_region"):
        Regional(**own, aws_region="eu", **{"regoin": "eu"})


def test_of_a_store_from_the_environment_the_rest_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [dg.EnvVar("JET_A"), f"file://{tmp_path}/b"]
    own = JetResource(
        store=names, backup_count=dg.EnvVar.int("JET_B"), namespace=dg.EnvVar("JET_N")
    )
    monkeypatch.setenv("JET_A", f"file://{tmp_path}/a")
    monkeypatch.setenv("JET_B", "3")
    monkeypatch.setenv("JET_N", "ours")
    with pytest.raises(ConfigurationError, match="needs 4 members"):
        own.process_config_and_initialize_cm().__enter__()


def test_a_setting_from_the_environment_is_checked_when_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = resource(tmp_path, snapshot_interval=dg.EnvVar("JET_INTERVAL"))
    monkeypatch.setenv("JET_INTERVAL", "5 parsecs")
    with (
        pytest.raises(ConfigurationError, match=r"snapshot_interval.*'5 parsecs'"),
        own.process_config_and_initialize_cm(),
    ):
        pass
    monkeypatch.setenv("JET_INTERVAL", "5 seconds")
    with own.process_config_and_initialize_cm() as opened:
        assert opened._job_config(None).snapshot_interval == timedelta(seconds=5)


def test_a_misspelt_end_of_a_run_is_answered_with_the_words_there_are(
    tmp_path: Path, pipeline: Pipeline
) -> None:
    with (
        resource(tmp_path).process_config_and_initialize_cm() as opened,
        pytest.raises(ConfigurationError, match='"drained", "completed", "stopped" nor a duration'),
    ):
        opened.jet.run(pipeline, until="drainedd")


def test_spark_settings_are_flat_text(tmp_path: Path) -> None:
    own = resource(
        tmp_path,
        spark_config={"spark.ui.enabled": False, "spark": {"sql": {"shuffle.partitions": 2}}},
        pyspark=LazyPySparkResource(
            spark_config={"spark.ui.enabled": True, "spark.driver.memory": "2g"}
        ),
    )
    assert own._spark_settings() == {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "2g",
    }


@pytest.mark.parametrize("kind", [LazyPySparkResource, PySparkResource])
def test_a_resource_of_dagster_pyspark_only_lends_its_settings(tmp_path: Path, kind: Any) -> None:
    own = resource(tmp_path, pyspark=kind(spark_config={"spark": {"driver.memory": "2g"}}))
    assert own._spark_settings() == {"spark.driver.memory": "2g"}


def test_urls_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JET_SECRET_STORE", f"file://{tmp_path}/secret")
    own = JetResource(store=[dg.EnvVar("JET_SECRET_STORE")], backup_count=0)
    with own.process_config_and_initialize_cm() as opened:
        assert opened.jet.job("nobody").record() is None
        # Failed before: Dagster puts the value in its place, and tasks were sent the value.
        assert opened.jet.store.config.urls == (Secret(env="JET_SECRET_STORE"),)
        sent = pickle.dumps(opened.jet.store.handle().config)
        assert b"JET_SECRET_STORE" in sent and b"file:" not in sent
    assert (tmp_path / "secret").is_dir()
    for keys in (dg.EnvVar("JET_KEYS"), Secret(env="JET_KEYS"), "env:JET_KEYS"):
        own = JetResource(store=["file:///a"], backup_count=0, encryption_keys=keys)
        assert own.encryption_keys == "env:JET_KEYS"


def test_negative_times_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="drain_budget_seconds"):
        resource(tmp_path, drain_budget_seconds=-1)


def test_any_asset_uses_maps(tmp_path: Path) -> None:
    @dg.asset
    def writer(jet: JetResource) -> None:
        jet.map("prices", journal=JournalConfig(10)).put("a", 1)

    @dg.asset(deps=[writer])
    def reader(jet: JetResource) -> int:
        return jet.map("prices").get("a")

    result = dg.materialize([writer, reader], resources={"jet": resource(tmp_path)})
    assert result.output_for_node("reader") == 1

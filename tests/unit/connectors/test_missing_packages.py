"""A package that is not installed is named, with the extra that brings it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dagster_jet
from dagster_jet import Secret, sources
from dagster_jet.connectors.delta.table_log import delta_library
from dagster_jet.connectors.iceberg.catalog import CatalogPlace, iceberg_library
from dagster_jet.connectors.kafka import cluster, transaction_coordinator
from dagster_jet.connectors.sql.place import SqlPlace, sqlalchemy
from dagster_jet.connectors.values import avro_records, schema_registry
from dagster_jet.errors import MissingEnvironmentError

PROJECT = (Path(dagster_jet.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
_OPTIONAL = PROJECT.split("[project.optional-dependencies]\n")[1].split("\n\n")[0]
EXTRAS: dict[str, list[str]] = {  # Python 3.10 reads no TOML
    name: ast.literal_eval(needed)
    for name, needed in (line.split(" = ", 1) for line in _OPTIONAL.splitlines())
}


def rabbitmq() -> object:
    return sources.rabbitmq(Secret("URL"), queue="q", schema="id long")


def catalog(**options: str) -> Callable[[], object]:
    def opened() -> object:
        sys.modules.pop("pyiceberg.catalog.glue", None)  # it keeps the boto3 that it has imported
        return CatalogPlace("lake", tuple(options.items())).open(())

    return opened


def connect(url: str) -> Callable[[], object]:
    return lambda: SqlPlace(url, "t").engine()


@pytest.mark.parametrize(
    ("module", "use", "package", "extra"),
    [
        ("pika", rabbitmq, "pika", "rabbitmq"),
        ("confluent_kafka", cluster.client_library, "confluent-kafka", "kafka"),
        ("confluent_kafka", cluster.admin_library, "confluent-kafka", "kafka"),
        ("kafka", transaction_coordinator.coordinator_library, "kafka-python", "kafka-held"),
        ("fastavro", avro_records._library, "fastavro", "avro"),
        (
            "confluent_kafka.schema_registry",
            schema_registry.check_installed,
            "confluent-kafka[schemaregistry]",
            "avro",
        ),
        ("deltalake", delta_library, "deltalake", "delta"),
        ("pyiceberg", iceberg_library, "pyiceberg", "iceberg"),
        ("boto3", catalog(type="glue"), "boto3", None),
        ("psycopg", catalog(type="sql", uri="postgresql+psycopg://h/db"), "psycopg", "postgres"),
        ("sqlalchemy", sqlalchemy, "sqlalchemy", "sql"),
        ("psycopg", connect("postgresql://me@host/db"), "psycopg", "postgres"),
        ("pymysql", connect("mysql+pymysql://me@host/db"), "pymysql", None),
        ("pymysql", connect("mariadb://me@host/db"), "pymysql", None),
    ],
)
def test_a_missing_package_names_itself_and_its_extra(
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    use: Callable[[], Any],
    package: str,
    extra: str | None,
) -> None:
    for known in [name for name in sys.modules if name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingEnvironmentError) as caught:
        use()
    said = str(caught.value)
    assert package in said
    if extra is None:
        assert f"pip install '{package}'" in said
        return
    assert re.findall(r"dagster-jet\[([a-z-]+)\]", said) == [extra]
    assert any(needed.startswith(package) for needed in EXTRAS[extra]), EXTRAS[extra]


def test_every_extra_that_an_error_names_exists_and_brings_what_is_imported() -> None:
    root = Path(dagster_jet.__file__).parent
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py")))
    named = {
        one for some in re.findall(r"dagster-jet\[([a-z,-]+)\]", text) for one in some.split(",")
    }
    assert named <= EXTRAS.keys() and len(named) > 8
    # A table of PostgreSQL is written by way of SQLAlchemy.
    assert any(needed.startswith("sqlalchemy") for needed in EXTRAS["postgres"])

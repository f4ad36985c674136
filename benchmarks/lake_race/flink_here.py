"""PyFlink with Iceberg's sink, fetched once: an environment of its own, and its jars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyspark

from benchmarks.race import contestants
from benchmarks.race.environments import NoEnvironmentError, prepare
from tests.servers.packages import NotInstalledError, fetch_jars

FLINK, ICEBERG = "2.1.3", "1.11.0"
"""The newest Flink for which there is a sink of Iceberg."""
_KAFKA = "4.0.1-2.0"


@dataclass(frozen=True)
class Flink:
    python: str
    jars: tuple[str, ...]


def flink_here(cache: Path, tell: Callable[[str], None]) -> Flink | None:
    """None, and a line that says why, if it cannot be had."""
    wanted = (f"apache-flink=={FLINK}", "setuptools<81")
    runtime = f"iceberg-flink-runtime-{FLINK.rpartition('.')[0]}"
    try:
        environment = prepare(replace(contestants.FLINK, requirements=wanted), cache)
        found = [
            fetch_jars(f"{runtime}-{ICEBERG}", "org.apache.iceberg", runtime, ICEBERG),
            fetch_jars(
                f"flink-kafka-{_KAFKA}", "org.apache.flink", "flink-sql-connector-kafka", _KAFKA
            ),
        ]
    except (NoEnvironmentError, NotInstalledError) as error:
        tell(f"PyFlink does not race: {error}")
        return None
    # Iceberg's sink needs classes of Hadoop, which Spark ships.
    hadoop = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar")
    jars = [*hadoop, *(jar for folder in found for jar in folder.glob("*.jar"))]
    return Flink(str(environment.python), tuple(sorted(map(str, jars))))

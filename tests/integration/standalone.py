"""A real cluster of Spark on the loopback: a master, and workers of one core each."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from .world import wait_until

HOME = Path(pyspark.__file__).parent
HOST = "127.0.0.1"
_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_JOINED = "Registering worker"
_DEPLOY = "org.apache.spark.deploy"


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[Mapping[str, str]]:
    """Yields the settings of a session on it. Executors are children of the workers, and end with
    them."""
    folder.mkdir(parents=True)
    with ExitStack() as running:
        log = folder / "master.log"
        url = running.enter_context(master(log, HOST))
        for number in range(workers):
            command, environment = worker(url, HOST, folder / f"work-{number}")
            said = folder / f"worker-{number}.log"
            running.enter_context(_process(command, environment, said))
        await_workers(log, workers)
        yield settings(url, HOST, workers)


@contextmanager
def master(log: Path, host: str) -> Iterator[str]:
    """Yields the URL of a master."""
    command, environment = _jvm("master.Master", host)
    with _process(command, environment, log):
        wait_until(lambda: _URL.search(log.read_text()) is not None, "the master is there")
        found = _URL.search(log.read_text())
        assert found is not None
        yield found[1]


def worker(url: str, host: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a worker of one core."""
    own = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder)]
    return _jvm("worker.Worker", host, *own, url)


def await_workers(log: Path, workers: int) -> None:
    """Waits until so many have joined, by the log of the master."""
    wait_until(lambda: log.read_text().count(_JOINED) == workers, "the workers are there")


def settings(url: str, host: str, workers: int) -> dict[str, str]:
    """Those of a session whose driver is on this host."""
    return {
        "spark.master": url,
        "spark.executor.memory": "768m",
        "spark.executor.instances": str(workers),
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
    }


def _jvm(main: str, host: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": host,
        "SPARK_SCALA_VERSION": "2.13",  # as spark-class says
        # Functions of modules of the tests travel by name; executors hand this on.
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    options = ["-Xmx256m", "-Dspark.master.rest.enabled=false"]
    place = ["--host", host, "--port", "0", "--webui-port", "0"]
    start = [str(java), *options, "-cp", f"{HOME}/jars/*", f"{_DEPLOY}.{main}"]
    return [*start, *place, *arguments], environment


@contextmanager
def _process(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with open(log, "wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
    try:
        yield
    finally:
        process.terminate()  # a worker ends its executors
        process.wait(30)

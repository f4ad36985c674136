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
        place = ["--host", HOST, "--port", "0", "--webui-port", "0"]
        log = folder / "master.log"
        running.enter_context(_jvm(f"{_DEPLOY}.master.Master", place, log))
        wait_until(lambda: _URL.search(log.read_text()) is not None, "the master is there")
        found = _URL.search(log.read_text())
        assert found is not None
        url = found[1]
        for number in range(workers):
            work = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}")]
            said = folder / f"worker-{number}.log"
            running.enter_context(_jvm(f"{_DEPLOY}.worker.Worker", [*place, *work, url], said))
        wait_until(lambda: log.read_text().count(_JOINED) == workers, "the workers are there")
        yield {
            "spark.master": url,
            "spark.executor.memory": "768m",
            "spark.executor.instances": str(workers),
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
        }


@contextmanager
def _jvm(main: str, arguments: list[str], log: Path) -> Iterator[None]:
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_SCALA_VERSION": "2.13",  # as spark-class says
        # Functions of modules of the tests travel by name; executors hand this on.
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    options = ["-Xmx256m", "-Dspark.master.rest.enabled=false"]
    command = [str(java), *options, "-cp", f"{HOME}/jars/*", main, *arguments]
    with open(log, "wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
    try:
        yield
    finally:
        process.terminate()  # a worker ends its executors
        process.wait(30)

"""Settings of every test process."""

import os
import signal
import sys
from collections import defaultdict
from collections.abc import Generator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from .jvm import start_quickly
from .servers import shared

# Two cores and other work: how long an example takes says nothing.
settings.register_profile(
    "shared",
    max_examples=int(os.environ.get("JET_PROPERTY_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("shared")

LAKE = ("test_delta_", "test_iceberg_", "test_lake_")
"""Beginnings of names of files whose tests write lake tables."""

start_quickly()


def pytest_configure() -> None:
    """Signals as at a terminal: a shell that starts us in the background ignores some for us."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not _is_xdist_worker():
        shared.new_run()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start many processes, or wait for servers, come among those that compute: side by
    side the first would wait for each other.

    With pytest-xdist each worker takes the next file when it is done with one.

    Tests of files that import a server, and of files that write lake tables, are marked, for
    `make check`.
    """
    for item in items:
        if isinstance(item, pytest.Function) and _imports_a_server(item.module):
            item.add_marker("server")
        if item.path.name.startswith(LAKE):
            item.add_marker("lake")
    mixed = [Path(__file__).parent / folder for folder in ("e2e", "integration")]
    ours = [n for n, item in enumerate(items) if any(map(item.path.is_relative_to, mixed))]
    folders: dict[Path, dict[Path, None]] = defaultdict(dict)
    for n in ours:
        folders[items[n].path.parent][items[n].path] = None
    place = {path: n / len(files) for files in folders.values() for n, path in enumerate(files)}
    ordered = sorted((items[n] for n in ours), key=lambda item: place[item.path])
    for n, item in zip(ours, ordered, strict=True):
        items[n] = item


def pytest_unconfigure() -> None:
    """Ends the run's servers once no worker uses them."""
    if not _is_xdist_worker():
        shared.stop_all(Path(os.environ.pop(shared.FOLDER)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """A process has one Spark, which whoever is first starts for all. Which files a worker runs is
    chance: a test that needs another Spark has to start it in a process of its own."""
    try:
        yield
    finally:
        pyspark = sys.modules.get("pyspark")
        running = pyspark and pyspark.SparkContext._active_spark_context
        expected = os.environ.get("JET_TEST_MASTER", "local[2]")  # `make soak` has others
        if running is not None and running.master != expected:
            running.stop()
            pytest.fail(f"{item.nodeid} has started this process's Spark with {running.master}")


@cache
def _imports_a_server(module: ModuleType) -> bool:
    """Whether a test file imports a server for tests, or one's fixture."""
    places = ("tests.servers", "tests.unit.connectors.s3_folder")
    return any(_place_of(one).startswith(places) for one in vars(module).values())


def _place_of(one: object) -> str:
    return one.__name__ if isinstance(one, ModuleType) else str(getattr(one, "__module__", ""))


def _is_xdist_worker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ

"""Pages of Dagster's UI that once said what was not so. One webserver, no daemon, no Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest

from demo.dagster_process import REPOSITORY, free_port
from tests.servers.chromium import start_chromium

from .page import Page
from .shop import open_the_shop

WORKSPACE = """
load_from:
  - python_module: {module_name: tests.e2e.browser.shop, attribute: defs}
  - python_module:
      {module_name: tests.e2e.browser.shop, attribute: other_defs, location_name: staging}
"""
SETTINGS = "telemetry: {enabled: false}\nnux: {enabled: false}\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "dagster.yaml").write_text(SETTINGS, encoding="utf-8")
    return home


@pytest.fixture(scope="module")
def runs(home: Path) -> dict[str, str]:
    with dg.DagsterInstance.from_config(str(home)) as instance:
        return open_the_shop(home, instance)


@pytest.fixture(scope="module")
def page(
    home: Path, runs: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    with webserver(home) as url:
        browser = start_chromium(tmp_path_factory.mktemp("profile"), 1500, 900)
        try:
            yield Page(browser, url)
        finally:
            browser.quit()


@contextmanager
def webserver(home: Path) -> Iterator[str]:
    """Serves the definitions with another filter than the one that has run, and those of
    staging."""
    (home / "workspace.yaml").write_text(WORKSPACE, encoding="utf-8")
    port = free_port()
    command = ["-m", "dagster_webserver", "-h", "127.0.0.1", "-p", str(port)]
    shop = {"SHOP_FOLDER": str(home), "SHOP_LIMIT": "2", "DAGSTER_HOME": str(home)}
    with (home / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, *command, "-w", str(home / "workspace.yaml")],
            cwd=REPOSITORY,
            env={**os.environ, **shop},
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + 180
        while not is_up(port):
            is_late = process.poll() is not None or time.monotonic() > deadline
            assert not is_late, (home / "said").read_text("utf-8", "replace")
            time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()


def is_up(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=2):
            return True
    except OSError:
        return False


def test_what_is_behind_a_stream_is_not_skipped_in_a_green_run(
    page: Page, runs: dict[str, str]
) -> None:
    page.open(f"/runs/{runs['behind']}").wait_for("Success", "Succeeded (2)", "Already running")
    assert "Skipped (" not in page.text
    page.open("/assets/report").wait_for("Latest materialization")
    page.wait_until(lambda: "Never materialized" not in page.text, "the report is materialized")


def test_an_older_definition_is_not_shown_as_running_and_fresh(page: Page) -> None:
    page.open("/assets/shop/out?view=checks").wait_for("definition", "Unsynced (1)")
    page.click("definition", "*").wait_for("runs an older definition of the pipeline")


def test_a_complete_partition_that_is_launched_again_is_not_painted_failed(
    page: Page, runs: dict[str, str]
) -> None:
    page.open("/assets/shop_by_day/out?view=partitions")
    page.wait_for("Failed (0)", "Materialized (1)", "Missing (1)")
    page.open(f"/runs/{runs['again']}").wait_for("Success", "is complete, and there is nothing")


def test_a_run_of_another_location_with_a_pipeline_of_that_name_is_not_painted_failed(
    page: Page, runs: dict[str, str]
) -> None:
    page.open(f"/runs/{runs['fenced']}").wait_for("Failure", "has taken the job 'shop' over")
    page.open(f"/runs/{runs['staging']}").wait_for("Started")
    assert "Failure" not in page.text


def test_rows_under_a_prefixed_key_are_shown_and_fresh(page: Page) -> None:
    page.open("/assets/staging/shop/out")
    page.wait_for("Latest materialization", "Freshness policy\nPassing", "Row count\n4")

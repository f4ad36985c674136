"""`python -m tests.e2e.browser.screenshots [NAME ...]`: takes pictures of the pages anew, all
or the named ones. Look at them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from dagster_jet import JobStatus, StopKind
from demo.dagster_process import REPOSITORY
from demo.observer import PIPELINE
from tests.servers.chromium import start_chromium

from .page import Page
from .project import Project, started_project
from .test_ui import SINK, SINKS, STAGES, fly_and_see, kill_and_see

PICTURES = REPOSITORY / "docs" / "images"
RUNS = "/locations/jet/jobs/airport_delays_job/runs"
WIDTH, HEIGHT = 1600, 1000  # in less, the lineage is cut off


LAKE = {"hourly_out": "lake_delta", "badly_delayed_out": "lake_iceberg"}
LAKE_PICTURES = {*LAKE.values(), "lake_lineage"}


def main() -> None:
    wanted = set(sys.argv[1:])
    if not wanted or wanted - LAKE_PICTURES:
        with shown(lake=False) as (project, page):
            take(project, page)
    if not wanted or wanted & LAKE_PICTURES:
        with shown(lake=True) as (project, page):
            take_lake(project, page)


@contextmanager
def shown(*, lake: bool) -> Iterator[tuple[Project, Page]]:
    folder = Path(tempfile.gettempdir(), "flights")  # its name is in the pictures
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with (
        started_project(folder, lake=lake) as project,
        tempfile.TemporaryDirectory() as profile,
    ):
        browser = start_chromium(Path(profile), WIDTH, HEIGHT)
        try:
            yield project, Page(browser, project.url)
        finally:
            browser.quit()
    shutil.rmtree(folder)


def take(project: Project, page: Page) -> None:
    project.wait_for("the first files are committed", lambda: project.rows_committed() > 1000)
    page.open(SINK).click("Hide navigation", "*")
    observe_tables(project)
    for _ in range(4):
        fly_and_see(project, page)
    # Of the newest rows: a check of earlier ones counts as not made.
    for asset in (*STAGES, *SINKS):
        check(page, asset)
    resize(page, 1300, 1150)
    page.open(SINK).wait_for("Row count", "Columns").click("Columns", "*")  # folds them
    page.click("Plots").wait_for("rows_read", "snapshot_ms")
    picture(page, "live")

    resize(page, WIDTH, HEIGHT)
    page.open("/asset-groups").wait_for(*STAGES, *SINKS)
    page.wait_until(lambda: page.text.count("Materialized") == 4, "all are materialized")
    page.wait_for("6 / 6 Passed", "1 / 1 Passed")
    picture(page, "lineage")

    before = project.record().execution_id
    kill_and_see(project, page)
    resize(page, 1300, 230)  # one line is said, and the dialog is as high as the page
    picture(page, "tick")
    resize(page, 1300, 520)
    project.wait_for("it is running again", lambda: project.is_running(before))
    page.open(RUNS).wait_for("Failure", "Started")
    picture(page, "runs")

    project.jet.job(PIPELINE).request_stop(StopKind.COMPLETE)
    project.wait_for("it is completed", lambda: project.record().status is JobStatus.COMPLETED)
    (project.data / "store" / "c").rename(project.data / "c")
    resize(page, 1300, 700)
    page.open(f"{SINK}?view=checks").wait_for("store_safe").click("Execute all")
    page.click("store_safe", "*").wait_for("does not answer")
    page.wait_until(lambda: "In Progress" not in page.text, "all checks have been made")
    picture(page, "checks")


def take_lake(project: Project, page: Page) -> None:
    """The tables of `make demo LAKE=1`: what each commit says of its version, and the lineage with
    their maintenance."""
    project.wait_for("the first files are committed", lambda: project.rows_committed() > 1000)
    page.open(SINK).click("Hide navigation", "*")
    observe_tables(project)
    for _ in range(2):
        fly_and_see(project, page)
    for asset in (*STAGES, *SINKS):
        check(page, asset)
    resize(page, 1300, 1060)
    for asset, name in LAKE.items():
        at = f"/assets/airport_delays/{asset}?view=events&time={newest_version(project, asset)}"
        page.open(at).wait_for("rows_read", "time_travel", "details")
        picture(page, name)
    resize(page, WIDTH, HEIGHT)
    page.open("/asset-groups").wait_for(*STAGES, *SINKS)
    page.wait_for("7 / 7 Passed", "6 / 6 Passed", "1 / 1 Passed")
    picture(page, "lake_lineage")


def newest_version(project: Project, asset: str) -> int:
    """The time of the newest materialization that has made a version of the table: the newest one
    may be of rows of another table."""
    key = dg.AssetKey([PIPELINE, asset])
    with dg.DagsterInstance.from_config(str(project.folder / "home")) as instance:
        records = instance.fetch_materializations(key, limit=100).records
    made = (one for one in records if "time_travel" in materialized(one).metadata)
    return round(next(made).timestamp * 1000)


def materialized(record: dg.EventLogRecord) -> dg.AssetMaterialization:
    assert record.asset_materialization is not None
    return record.asset_materialization


def resize(page: Page, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def check(page: Page, asset: str) -> None:
    page.open(f"/assets/airport_delays/{asset}?view=checks").click("Execute all")
    page.wait_until(
        lambda: (
            "Succeeded" in page.text
            and not any(state in page.text for state in ("Not Evaluated", "In Progress"))
        ),
        f"the checks of {asset} have been made",
    )


def observe_tables(project: Project) -> None:
    """Reports the tables that flights are enriched with, as the programs that write them would."""
    with dg.DagsterInstance.from_config(str(project.folder / "home")) as instance:
        for table in ("airlines", "weather"):
            instance.report_runless_asset_event(dg.AssetObservation(["reference", table]))


def picture(page: Page, name: str) -> None:
    """Takes a picture once the page shows everything."""
    page.wait_until(lambda: "Loading" not in page.text, "nothing is loading")
    if name in (sys.argv[1:] or [name]):
        page.screenshot(PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()

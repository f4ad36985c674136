"""`python -m tests.e2e.browser.screenshots`: takes the pictures of the pages anew. Look at them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from dagster_jet import JobStatus, StopKind
from demo.dagster_process import REPOSITORY
from demo.observer import PIPELINE
from tests.servers.chromium import start_chromium

from .page import Page
from .project import Project, started_project
from .test_ui import SINK, SINKS, STAGES, fly_and_see, kill_and_see

PICTURES = REPOSITORY / "docs" / "images"
WIDTH, HEIGHT = 1600, 1000  # in less, the lineage is cut off


def main() -> None:
    folder = Path(tempfile.gettempdir(), "flights")  # its name is in the pictures
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with started_project(folder) as project, tempfile.TemporaryDirectory() as profile:
        browser = start_chromium(Path(profile), WIDTH, HEIGHT)
        try:
            take(project, Page(browser, project.url))
        finally:
            browser.quit()
    shutil.rmtree(folder)


def take(project: Project, page: Page) -> None:
    project.wait_for("the first files are committed", lambda: project.rows_committed() > 1000)
    page.open(SINK).click("Hide navigation", "*")
    for _ in range(4):
        fly_and_see(project, page)
    page.click("Plots").wait_for("snapshot_ms")
    picture(page, "live")

    page.open("/asset-groups").wait_for(*STAGES, *SINKS)
    page.wait_until(lambda: page.text.count("Materialized") == 4, "all are materialized")
    picture(page, "lineage")

    before = project.record().execution_id
    kill_and_see(project, page)
    picture(page, "tick")
    project.wait_for("it is running again", lambda: project.is_running(before))
    page.open("/runs").wait_for("Failure", "Started")
    picture(page, "runs")

    project.jet.request(PIPELINE, StopKind.COMPLETE)
    project.wait_for("it is completed", lambda: project.record().status is JobStatus.COMPLETED)
    (project.data / "store" / "c").rename(project.data / "c")
    page.open(f"{SINK}?view=checks").wait_for("Not Evaluated").click("Execute all")
    page.click("store_safe", "*").wait_for("does not answer")
    page.wait_until(lambda: "In Progress" not in page.text, "all checks have been made")
    picture(page, "checks")


def picture(page: Page, name: str) -> None:
    """When the page has all that it shows."""
    page.wait_until(lambda: "Loading" not in page.text, "nothing is loading")
    page.screenshot(PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()

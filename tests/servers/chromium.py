"""Chromium without a window, and its driver: Debian's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from .packages import executable, install_packages

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # which root may not use
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    # It talks to nobody but the page's own server.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)

_CALM = """
window.requestAnimationFrame = draw => setTimeout(() => draw(performance.now()), 200);
window.cancelAnimationFrame = clearTimeout;
const still = new CSSStyleSheet();
still.replaceSync(
  '*, *::before, *::after { animation: none !important; transition: none !important }'
);
document.adoptedStyleSheets = [still];
"""
"""Without a graphics card a spinning page takes most of a core."""


def install() -> None:
    """Installs it once, before the tests."""
    if executable("chromium") is None or executable("chromedriver") is None:
        install_packages("chromium", "chromium-driver")


def start_chromium(profile: Path, width: int, height: int, *, log_requests: bool = False) -> Chrome:
    """A new browser; `quit()` ends it.

    Args:
        profile: an empty folder.
        width: of the page, in pixels; so is `height`.
        log_requests: record the requests of pages; `requests_of` returns them.
    """
    from selenium import webdriver

    chromium, driver = executable("chromium"), executable("chromedriver")
    assert chromium and driver, "`python -m tests.servers` installs it"
    options = webdriver.ChromeOptions()
    options.binary_location = str(chromium)
    for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    if log_requests:
        options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    # With both paths given, Selenium looks for nothing on the network.
    service = webdriver.ChromeService(executable_path=str(driver))
    browser = webdriver.Chrome(options=options, service=service)
    browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _CALM})
    # The window has borders also where nobody sees it: ask for the page's own size.
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    return browser


def requests_of(browser: Chrome) -> list[str]:
    """URLs requested by pages, frames and workers since the last call."""
    said = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return [
        event["params"]["request"]["url"]
        for event in said
        if event["method"] == "Network.requestWillBeSent"
    ]

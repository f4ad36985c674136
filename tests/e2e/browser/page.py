"""A page of Dagster's UI, asked for by what a person reads on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

PATIENCE_SECONDS = 300


@dataclass
class Page:
    """A browser on the webserver of `dagster dev`.

    Attributes:
        url: of the webserver.
    """

    browser: Chrome
    url: str

    def open(self, path: str) -> Page:
        self.browser.get(self.url + path)
        return self

    @property
    def text(self) -> str:
        """All that is to be read; what one reads as one line may be several.

        As the browser says it: WebDriver's own way takes most of a core while it is asked often.
        """
        script = "return document.body.innerText"
        lines = self.browser.execute_script(script).splitlines()
        return "\n".join(line.strip() for line in lines if line.strip())

    def wait_for(self, *words: str) -> Page:
        """Waits until the page shows all of these texts."""

        def all_are_there() -> bool:
            text = self.text
            return all(word in text for word in words)

        self.wait_until(all_are_there, ", ".join(words))
        return self

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Asked again while the page draws itself anew."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with suppress(WebDriverException):  # an element went while we looked at it
                if holds():
                    return
            if time.monotonic() > deadline:
                raise AssertionError(f"in vain: {what}\n{self.browser.current_url}\n{self.text}")
            time.sleep(0.3)

    def find(self, what: str, text: str) -> list[WebElement]:
        """Visible elements of a kind ("button", "a", "*") with exactly this text."""
        found = self.browser.find_elements(By.XPATH, f"//{what}[normalize-space(.)='{text}']")
        return [element for element in found if element.is_displayed()]

    def click(self, text: str, what: str = "button") -> Page:
        """The last one: a dialog lies above what it was opened from."""

        def clicked() -> bool:
            found = [element for element in self.find(what, text) if element.is_enabled()]
            if found:
                found[-1].click()
            return bool(found)

        self.wait_until(clicked, f"{what} {text!r}")
        return self

    def click_in_row(self, row: str, text: str) -> Page:
        """Clicks in the first row of a table that has both texts: of ticks and runs, the newest
        one."""
        within = f".//*[normalize-space(.)='{text}']"

        def clicked() -> bool:
            rows = self.browser.find_elements(By.XPATH, f"//tr[contains(., '{row}')][{within}]")
            if rows:
                rows[0].find_elements(By.XPATH, within)[-1].click()
            return bool(rows)

        self.wait_until(clicked, f"{text!r} of {row!r}")
        return self

    def write(self, text: str) -> Page:
        """Replaces the content of the page's editor."""
        script = "document.querySelector('.CodeMirror').CodeMirror.setValue(arguments[0]); return 1"
        self.wait_until(
            lambda: self.browser.execute_script(script, text) == 1,
            "an editor",
        )
        return self

    def left_of(self, text: str) -> float:
        """Left edge, in pixels, of the innermost element with this text."""
        return float(self.find("*", text)[-1].rect["x"])

    def screenshot(self, path: Path) -> None:
        """Takes a picture as soon as two in a row are the same; a clock on the page may prevent
        that."""
        taken = b""
        for _ in range(10):
            before, taken = taken, self.browser.get_screenshot_as_png()
            if taken == before:
                break
            time.sleep(0.5)
        path.write_bytes(taken)

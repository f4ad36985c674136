"""The documentation site, built as `make docs` builds it, opened in a browser without a network."""

from __future__ import annotations

import functools
import http.server
import inspect
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

import dagster_jet
from tests.long import long
from tests.servers.chromium import requests_of, start_chromium
from tests.site import ROOT, build, build_copy

from .page import Page

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="Zensical needs Python 3.11")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("documentation") / "site"
    build(place)
    return place


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    browser = start_chromium(tmp_path_factory.mktemp("profile"), 1400, 900, log_requests=True)
    try:
        yield browser
    finally:
        browser.quit()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *said: object) -> None:
        pass


@pytest.fixture(params=["from a folder", pytest.param("from a web server", marks=long)])
def url(request: pytest.FixtureRequest, site: Path) -> Iterator[str]:
    """The site's address, without a slash at its end."""
    if request.param == "from a folder":
        yield site.as_uri()
        return
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def search(page: Page, words: str) -> list[str]:
    """The addresses that the search of the page offers."""
    page.browser.find_element(By.CSS_SELECTOR, "[data-md-component=search]").click()
    page.browser.switch_to.active_element.send_keys(words)
    found: list[str] = []

    def is_found() -> bool:
        script = """
            const roots = [document];
            for (const root of roots)
                for (const element of root.querySelectorAll("*"))
                    if (element.shadowRoot) roots.push(element.shadowRoot);
            return roots.flatMap(root => [...root.querySelectorAll("ol a")]).map(a => a.href);
        """
        links = page.browser.execute_script(script)
        found[:] = [link for link in links if "?h=" in link]
        return bool(found)

    page.wait_until(is_found, f"pages with {words!r}")
    return found


def test_a_page_is_found_by_search_and_no_other_host_is_asked(url: str, browser: Chrome) -> None:
    page = Page(browser, url)
    page.open("/index.html").wait_for("Install", "Reference")
    found = search(page, "tombstone")
    (glossary,) = (link for link in found if "/glossary.html" in link)
    assert any("/reference/" in link for link in found), "docstrings are found, too"
    browser.get(glossary)
    page.wait_for("an entry without a value, so that a late write cannot bring a deleted key back")
    page.open("/dagster.html").wait_for("Dagster")
    pictures = "return [...document.images].map(i => i.complete && i.naturalWidth)"
    page.wait_until(
        lambda: min(browser.execute_script(pictures)) > 0,
        "all pictures are drawn",
    )
    asked = requests_of(browser)
    assert any("search" in one for one in asked) and any(".png" in one for one in asked)
    inside = (url, "data:", "blob:", "about:", "chrome:")
    assert [one for one in asked if not one.startswith(inside)] == []


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    """The pages that the browser does not open."""
    loads = re.compile(
        r"""<(?:script|img|iframe|link|source)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//"""
    )
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    assert [
        str(page.relative_to(site)) for page in pages if loads.search(page.read_text("utf-8"))
    ] == []


def test_every_page_and_every_picture_is_in_the_navigation(site: Path) -> None:
    settings = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    named = set(re.findall(r'= "([\w/-]+\.md)"', settings))
    made = {f"reference/{path.stem}.md" for path in (site / "reference").glob("*.html")}
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert named == written | made
    text = "\n".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in written)
    pictures = [path.name for path in (ROOT / "docs" / "images").iterdir()]
    assert [name for name in pictures if f"images/{name})" not in text] == []


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    pages = "".join(page.read_text("utf-8") for page in (site / "reference").glob("*.html"))
    anchors = set(re.findall(r'id="?(dagster_jet[\w.]+)', pages))
    wanted = set()
    for name in dagster_jet.__all__:
        value = getattr(dagster_jet, name)
        if inspect.ismodule(value):
            wanted |= {f"{value.__name__}.{one}" for one in getattr(value, "__all__", ())}
        elif value.__module__ == "dagster_jet.errors":
            wanted.add(f"dagster_jet.errors.{name}")
        else:
            wanted.add(f"dagster_jet.{name}")
    assert len(wanted) > 150
    doubled = {one.rpartition(".")[0] for one in anchors if len({*one.split(".")[-2:]}) == 1}
    assert sorted(wanted - anchors - doubled) == []


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("[away](nowhere.md)", "page does not exist"),
        ("[away](index.md#nowhere)", "anchor does not exist"),
        ("::: faulty", "does not appear in the function signature"),
    ],
)
def test_a_fault_is_an_error(tmp_path: Path, page: str, complaint: str) -> None:
    (tmp_path / "zensical.toml").write_text((ROOT / "zensical.toml").read_text("utf-8"), "utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Title\n\n{page}\n", encoding="utf-8")
    source = 'def f(a: int) -> None:\n    """F.\n\n    Args:\n        b: it.\n    """\n'
    (tmp_path / "faulty.py").write_text(source, encoding="utf-8")
    with pytest.raises(SystemExit, match=complaint):
        build_copy(tmp_path)

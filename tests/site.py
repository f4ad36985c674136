"""`make docs`: builds the documentation site into `.cache/site`. A warning is an error.

The site is built from a copy: Zensical keeps its own cache in a folder `.cache` beside the
settings, and clears all of that folder. The copy also has what is made, and not written: the pages
of the reference, from the names of `dagster_jet`.
"""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import dagster_jet

ROOT = Path(__file__).parents[1]
SITE = ROOT / ".cache" / "site"

PAGES_OF_PACKAGES = {
    "dagster_jet.contract": "connectors",
    "dagster_jet.connector_kit": "connectors",
    "dagster_jet.errors": "errors",
    "dagster_jet.orchestration": "dagster",
    "dagster_jet.pipeline": "pipelines",
    "dagster_jet.operators.user": "pipelines",
    "dagster_jet.dag": "processors",
}
"""Page of the reference by defining package. Names of other packages are on the page `jobs`."""

INTRODUCTIONS = {
    "connectors": "The contract of [connectors of your own](../connectors/own.md), "
    "`dagster_jet.contract`, then what they are built from, `dagster_jet.connector_kit`.",
    "dagster": "The names for Dagster. [Dagster](../dagster.md) explains them with examples.",
    "jobs": "The classes that start, stop and show jobs.",
    "pipelines": "The classes that a pipeline is written with.",
    "processors": "The processor contract. [Processors](../processors.md) explains it.",
}

WITHOUT_HEADING = "{show_root_heading: false, show_root_toc_entry: false}"


def place_of(value: Any) -> tuple[int, str, int]:
    """Sort key of a name on its page: first what a module near the top defines, in its order."""
    module = value.__module__
    return module.count("."), module, inspect.getsourcelines(value)[1]


def hidden_by_modules(module: str) -> list[str]:
    """Functions with the name of the module that defines them: else the module is shown."""
    public = sys.modules[module]
    return [
        f"::: {module}.{name}.{name}"
        for name in getattr(public, "__all__", ())
        if getattr(getattr(public, name), "__module__", "") == f"{module}.{name}"
    ]


def reference() -> dict[str, str]:
    """The pages of the API reference, Markdown by name. Each public name is on one of them."""
    modules: defaultdict[str, list[str]] = defaultdict(list)
    names: defaultdict[str, list[str]] = defaultdict(list)
    public = {name: getattr(dagster_jet, name) for name in dagster_jet.__all__}
    defined = {name: value for name, value in public.items() if not inspect.ismodule(value)}
    for name in sorted(public.keys() - defined.keys(), reverse=True):  # the contract, then its kit
        module = public[name].__name__
        modules[PAGES_OF_PACKAGES.get(module, name)].append(module)
    for name in sorted(defined, key=lambda name: place_of(defined[name])):
        module = f"{defined[name].__module__}."
        packages = [package for package in PAGES_OF_PACKAGES if module.startswith(f"{package}.")]
        names[PAGES_OF_PACKAGES[max(packages, key=len)] if packages else "jobs"].append(name)
    pages = {}
    for page in sorted({*modules, *names}):
        parts = [f"# {page.capitalize()}"]
        if page in INTRODUCTIONS:
            parts.append(INTRODUCTIONS[page])
        for module in modules.get(page, ()):  # with all that its `__all__` names
            parts.append(f"::: {module}\n    options: {WITHOUT_HEADING}")
            parts += hidden_by_modules(module)
        if page not in modules:
            parts += [f"::: dagster_jet.{name}" for name in names[page]]
        pages[page] = "\n\n".join(parts) + "\n"
    return pages


def copy_sources(place: Path) -> None:
    """Copies into `place` all that the site is built from."""
    shutil.copy(ROOT / "zensical.toml", place)
    shutil.copytree(ROOT / "docs", place / "docs")
    (place / "docs" / "reference").mkdir()
    for name, text in reference().items():
        (place / "docs" / "reference" / f"{name}.md").write_text(text, encoding="utf-8")
    sources = (path for kind in ("*.py", "*.pyi") for path in (ROOT / "dagster_jet").rglob(kind))
    for path in sources:
        copied = place / path.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        # The reader of docstrings takes `Examples:` for code, and `Example:` for text.
        text = re.sub(r"^( *)Example:$", r"\1Examples:", path.read_text("utf-8"), flags=re.M)
        copied.write_text(text, encoding="utf-8")


def build_copy(place: Path) -> Path:
    """Builds the site of a folder with settings and pages. Returns the site's folder.

    Raises:
        SystemExit: a page, a link or a docstring has a fault; the message shows it.
    """
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    output = re.sub(r"\x1b\[[\d;]*m", "", built.stdout + built.stderr)
    # Faults of docstrings are only logged.
    if built.returncode != 0 or re.search(r"^(griffe|mkdocstrings|Warning)\b", output, re.M):
        raise SystemExit(output)
    return place / "site"


def build(site: Path = SITE) -> None:
    """Builds the site, in place of the one that is there.

    Raises:
        SystemExit: as `build_copy`.
    """
    with tempfile.TemporaryDirectory(prefix="dagster-jet-site-") as copy:
        copy_sources(Path(copy))
        built = build_copy(Path(copy))
        shutil.rmtree(site, ignore_errors=True)
        shutil.move(built, site)


if __name__ == "__main__":
    build()
    print(f"the site: {SITE / 'index.html'}")

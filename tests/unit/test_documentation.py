"""Examples in pages and docstrings are run, so that they stay true."""

import doctest
import importlib
import inspect
import pkgutil
import pydoc
import re
from pathlib import Path

import pytest

import dagster_jet
import dagster_jet.operators
from dagster_jet import Jet, Pipeline, sinks, sources, tables, windows
from dagster_jet import aggregates as agg
from dagster_jet.dag import Processor
from dagster_jet.operators.operator import Operator
from dagster_jet.pipeline.stateful import StatefulNode
from dagster_jet.snapshot.manifest import MANIFEST_FORMAT
from dagster_jet.snapshot.storage.chunks import INDEX_FORMAT
from dagster_jet.store.values.envelope import Form

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs"
STAGES = {
    f"dagster_jet.pipeline.{name}"
    for name in (
        "with_functions",
        "joins",
        "outputs",
        "over_rows",
        "pipeline",
        "stage",
        "stateless",
        "with_timestamps",
    )
}
WITH_A_STORE = {"dagster_jet.jet", "dagster_jet.jobs.stored_job", "dagster_jet.maps.user_map"}


def modules_with_examples():
    """All but those whose examples use names that have to be given, see below."""
    for path in sorted((ROOT / "dagster_jet").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if any(
            line.strip().startswith(">>> ") and "doctest: +SKIP" not in line
            for line in source.splitlines()
        ):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if module not in STAGES | WITH_A_STORE:
                yield module


@pytest.mark.parametrize("module", modules_with_examples())
def test_the_examples_of_a_docstring(module, tmp_path):
    results = doctest.testmod(
        importlib.import_module(module), extraglobs={"tmp_path": str(tmp_path)}
    )
    assert results.attempted and not results.failed


@pytest.mark.parametrize("module", sorted(STAGES))
def test_the_examples_of_a_pipelines_stages(module):
    p = Pipeline("examples")
    schema = "flight string, origin string, order_id string, at timestamp, delay double"

    def read(name):
        return p.read_from(sources.files("/in", format="json", schema=schema), name=name)

    rows, other_rows, orders, payments = (
        read(name).with_timestamps("at") for name in ("rows", "other_rows", "orders", "payments")
    )
    hourly = rows.window(windows.tumbling("1 hour")).aggregate(name="hourly", n=agg.count())
    joined = orders.join(payments, on="order_id", within="1 hour", name="joined")
    names = {
        "p": p,
        "rows": rows,
        "other_rows": other_rows,
        "orders": orders,
        "payments": payments,
        "hourly": hourly,
        "joined": joined,
        "source": read("source"),
        "untimed": read("untimed"),
        "Pairs": Processor,
        "agg": agg,
        "sinks": sinks,
        "sources": sources,
        "tables": tables,
        "windows": windows,
    }
    results = doctest.testmod(importlib.import_module(module), extraglobs=names)
    assert results.attempted and not results.failed


@pytest.mark.parametrize("module", sorted(WITH_A_STORE))
def test_the_examples_with_a_store(module, tmp_path):
    p = Pipeline("copy")
    rows = p.read_from(sources.files("/in", format="json", schema="id long"), name="rows")
    rows.write_to(sinks.files("/out", format="json"), name="out")
    with Jet(store=[f"file://{tmp_path}/a"], backup_count=0) as jet:
        results = doctest.testmod(
            importlib.import_module(module), extraglobs={"jet": jet, "pipeline": p}
        )
    assert results.attempted and not results.failed


def test_every_operator_says_what_at_least_once_means():
    operators = [
        module
        for info in pkgutil.iter_modules(dagster_jet.operators.__path__, "dagster_jet.operators.")
        for module in [importlib.import_module(info.name)]
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__
        if "step" in vars(kind) and issubclass(kind, Operator) and kind is not Operator
    ]
    kinds = {kind.kind: kind for kind in StatefulNode.__subclasses__()}
    assert len(operators) >= len(kinds) - 1, "windows and sessions are one kind of stage"
    silent = [o.__name__ for o in operators if "\n\nAt-least-once: " not in (o.__doc__ or "")]
    assert not silent
    page = (PAGES / "operators.md").read_text(encoding="utf-8")
    (section,) = re.findall(
        r"\n## What at-least-once means here\n(.*?)(?=\n## |\Z)", page, re.DOTALL
    )
    rows = {row.split("|")[1].strip(" `") for row in section.splitlines() if row.startswith("| `")}
    assert rows == kinds.keys() | {"enrich", "map_using_service"}


def test_the_page_of_the_format_has_the_numbers_of_the_code():
    text = " ".join((PAGES / "snapshots.md").read_text(encoding="utf-8").split())
    assert f"Form {Form.PLAIN:d} is the plain value; form {Form.ENCRYPTED:d} is encrypted" in text
    assert f"is JSON. `format` is {MANIFEST_FORMAT}. `sources`" in text
    assert f"is JSON: `format` {INDEX_FORMAT}, `schema`" in text


def named_in(text: str) -> set[str]:
    """The files and folders that a page names in code spans: with a slash, or ending in .py."""
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return set(re.findall(r"`((?:[\w-]+/)+[\w.-]*|\w+\.py)`", outside))


def test_every_file_that_the_architecture_names_exists():
    named = named_in((PAGES / "architecture.md").read_text(encoding="utf-8"))
    assert len(named) > 40
    assert not [n for n in named if not any((r / n).exists() for r in (ROOT, ROOT / "dagster_jet"))]


def test_every_package_is_in_the_architectures_tree():
    page = (PAGES / "architecture.md").read_text(encoding="utf-8")
    (tree,) = re.findall(r"\n## The tree\n(.*?)(?=\n## )", page, re.DOTALL)
    rows = [row.split("|")[1] for row in tree.splitlines() if row.startswith("| `")]
    named = {Path(name) for row in rows for name in re.findall(r"`([\w/.]+)`", row)}
    there = {
        path.relative_to(ROOT)
        for path in (ROOT / "dagster_jet").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    described_elsewhere = {Path("dagster_jet/__init__.py")}
    assert named == there - described_elsewhere


def pages():
    """The names of all pages, from the root."""
    found = [*PAGES.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md"]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def links(page):
    return re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8"))


def source_url():
    """URL of the repository; files are below it, pictures as they are."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (url,) = re.findall(r'^Source = "(https://[^"]+[^/])"$', project, re.MULTILINE)
    return url


def test_the_links_of_the_readme_work_wherever_it_is_shown():
    """The package index shows it, too, and knows no files beside it."""
    found = links("README.md")
    below = re.compile(re.escape(source_url()) + r"/(?:blob|raw)/main/\S+")
    assert len(found) > 20
    assert [link for link in found if not below.fullmatch(link)] == []
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^\]]*\]\((\S+)\)", text)
    assert {link for link in found if "/raw/" in link} == set(pictures)


def anchors(path):
    titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", pages())
def test_every_link_between_pages_leads_somewhere(page):
    inside = re.compile(re.escape(source_url()) + r"/(?:blob|raw)/main/")
    for target, _, anchor in (link.partition("#") for link in links(page)):
        if inside.match(target):
            path = ROOT / inside.sub("", target)
        elif target.startswith("http"):
            continue
        else:
            path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(path), f"{page}: {target}#{anchor}"


def test_every_page_that_the_code_leads_to_exists():
    """Messages of errors and docstrings name existing pages only."""
    named = {
        place
        for path in (ROOT / "dagster_jet").rglob("*.py")
        for place in re.findall(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?", path.read_text("utf-8"))
    }
    assert {"docs/operators.md", "docs/connectors/sql.md"} < named
    for page, _, anchor in (place.partition("#") for place in named):
        assert (ROOT / page).exists(), page
        assert not anchor or anchor in anchors(ROOT / page), f"{page}#{anchor}"


@pytest.mark.parametrize("module", [sources, sinks, tables], ids=["sources", "sinks", "tables"])
def test_every_connector_has_a_row_and_is_on_its_page(module):
    of = module.__name__.rpartition(".")[2]
    named = {f"{of}.{name}" for name in module.__all__}
    text = (PAGES / "connectors.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| [")]
    rows = {}
    for names, page in (link for cell in cells for link in re.findall(r"\[(.*?)\]\((.*?)\)", cell)):
        rows |= dict.fromkeys(re.findall(rf"`({of}\.\w+)`", names), page.partition("#")[0])
    assert rows.keys() == named
    silent = [name for name, page in rows.items() if name not in (PAGES / page).read_text("utf-8")]
    assert silent == []


def public_callables():
    """Every function, method and property that a user reaches from the face, by name."""
    for name in dagster_jet.__all__:
        found = getattr(dagster_jet, name)
        members = vars(found) if inspect.isclass(found) or inspect.ismodule(found) else {}
        if inspect.ismodule(found):
            names = getattr(found, "__all__", [n for n in members if not n.startswith("_")])
            members = {n: v for n, v in members.items() if n in names}
        for member, value in {"": found, **members}.items():
            is_ours = (getattr(value, "__module__", "") or "").startswith("dagster_jet")
            if isinstance(value, property) or (inspect.isfunction(value) and is_ours):
                if not member.startswith("_"):
                    yield f"{name}.{member}".rstrip("."), value


def test_every_class_that_a_docstring_names_is_there():
    named = {
        name
        for path in (ROOT / "dagster_jet").rglob("*.py")
        for name in re.findall(r"`(dagster_jet(?:\.\w+)*\.[A-Z]\w*)", path.read_text("utf-8"))
    }
    assert "dagster_jet.contract.Source" in named
    assert sorted(name for name in named if pydoc.locate(name) is None) == []


def test_the_arguments_of_a_stages_method_are_explained_if_some_are():
    stages = [getattr(dagster_jet, name) for name in dagster_jet.__all__ if name.endswith("Stage")]
    assert len(stages) >= 4
    for stage in stages:
        for name, method in inspect.getmembers(stage, inspect.isfunction):
            explained = (inspect.getdoc(method) or "").partition("Args:")[2]
            if explained and not name.startswith("_"):
                silent = [
                    argument
                    for argument in list(inspect.signature(method).parameters)[1:]
                    if not re.search(rf"^ +(\w+, )*\**{argument}(, \w+)*:", explained, re.MULTILINE)
                ]
                assert not silent, f"{stage.__name__}.{name}: {silent}"


def test_everything_that_users_call_says_what_it_does():
    found = dict(public_callables())
    assert len(found) > 80
    silent = [name for name, value in found.items() if not inspect.getdoc(value)]
    assert not silent

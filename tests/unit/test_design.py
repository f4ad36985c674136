"""docs/design: what code and tests cite is on the page, and the examples there are the tests'."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .dag import test_event_time, test_watermark

ROOT = Path(__file__).parents[2]
DESIGN = ROOT / "docs" / "design"
PROTOCOL = (DESIGN / "protocol.md").read_text(encoding="utf-8")
VECTORS = (DESIGN / "vectors.md").read_text(encoding="utf-8")

STEPS = {f"S{number}" for number in range(1, 9)}
FAILURES = {f"F{number}" for number in range(1, 22)}


def rows_of(page: str) -> dict[str, list[str]]:
    """The cells of all tables behind the first one, by the first one, which is an id."""
    rows = re.findall(r"^\| \**([A-Z]\d+)\** \| (.*) \|$", page, re.MULTILINE)
    found = {name: [cell.strip() for cell in cells.split(" | ")] for name, cells in rows}
    assert len(found) == len(rows), "each id once"
    return found


def sources() -> Iterator[tuple[str, str]]:
    """Name and text of the modules that cite the design: of the library and of tests."""
    for folder in ("dagster_jet", "tests", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != Path(__file__):
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_the_page_has_the_steps_and_the_failures() -> None:
    assert rows_of(PROTOCOL).keys() == STEPS | FAILURES


def test_every_step_and_failure_that_is_cited_is_on_the_page() -> None:
    """`S3` in capitals may be Amazon's: it is a step, too."""
    cited = re.compile(r"(?<![\w.])([SF]\d{1,2})(?![\w.]?\w)")
    named = re.compile(r"def test_(f\d+)_")
    found = {
        (mark.upper(), name)
        for name, text in sources()
        for mark in [*cited.findall(text), *named.findall(text)]
    }
    assert len({mark for mark, _ in found}) > 20, "they are looked for in the right way"
    assert [one for one in sorted(found) if one[0] not in STEPS | FAILURES] == []


@pytest.mark.parametrize("page", ["protocol", "vectors"])
def test_every_section_that_is_cited_is_on_the_page(page: str) -> None:
    text = (DESIGN / f"{page}.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^## (\d)\. ", text, re.MULTILINE))
    cited = re.compile(rf"{page}\.md,?\s+sections? (\d)(?: and (\d))?")
    found = {
        (number, name)
        for name, source in sources()
        for pair in cited.findall(source)
        for number in pair
        if number
    }
    assert len(found) >= 3
    assert [one for one in sorted(found) if one[0] not in sections] == []


def test_every_failure_has_a_test() -> None:
    """A test is found by the row of the crash table, by its name, or by its docstring."""
    tests = "\n".join(text for name, text in sources() if name.startswith("tests/"))
    cited = set(re.findall(r"\bF\d+\b", tests))
    cited |= {f"F{number}" for number in re.findall(r"def test_f(\d+)_", tests)}
    assert cited >= FAILURES


def test_the_examples_of_watermarks_are_those_of_the_tests() -> None:
    rows = rows_of(VECTORS)
    coalescing = {
        name: [str(inputs), steps]
        for name, (inputs, steps) in test_watermark.VECTORS.items()
        if re.fullmatch(r"W\d+", name)
    }
    event_time = {
        name: [*map(str, setting), steps]
        for name, (setting, steps) in test_event_time.VECTORS.items()
    }
    assert {name: cells for name, cells in rows.items() if name[0] == "W"} == coalescing
    assert {name: cells for name, cells in rows.items() if name[0] == "M"} == event_time
    errors = re.findall(r"^W12, .*: (.*)\.$", VECTORS, re.MULTILINE)
    assert [re.findall(r"`(.*?)`", line) for line in errors] == [test_watermark.ERRORS]


def test_every_example_of_windows_and_barriers_has_a_test() -> None:
    tests = "\n".join(text for _, text in sources())
    named = {
        f"{kind}{number}".upper() for kind, number in re.findall(r"def test_([vb])(\d+)_", tests)
    }
    assert named == {name for name in rows_of(VECTORS) if name[0] in "VB"}

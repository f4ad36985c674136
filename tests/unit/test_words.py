"""One word for each thing: the glossary is true, and the words it retires are not used any more."""

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"

PAGES = [
    "README.md",
    *(page.relative_to(ROOT).as_posix() for page in sorted((ROOT / "docs").rglob("*.md"))),
]

SERIALISED = {
    "dagster_jet/cli/store_commands.py": {"leftover_copies"},
    "dagster_jet/connectors/files/places/s3_input.py": {"tell"},  # a file's, by Python's io
    "dagster_jet/execution/watermarks.py": {"dead_until_ms"},
    "dagster_jet/snapshot/adaptation.py": {"dead_until_ms"},
    "dagster_jet/store/register/acceptor.py": {"settled_by"},
    "docs/snapshots.md": {"dead_until_ms"},
}
"""Keys of saved formats, and of documents for programs, keep the word they were written with."""


@dataclass(frozen=True)
class Retired:
    """A row of the glossary's second table.

    Attributes:
        words: a pattern of whole words; one space stands for any gap, an underscore too.
        instead: what to say.
        names_only: only names of code are held to it, not sentences.
        except_in: folders of ``dagster_jet`` where the word has another, right meaning.
    """

    words: re.Pattern[str]
    instead: str
    names_only: bool
    except_in: tuple[str, ...]


def rows_of(heading: str) -> list[list[str]]:
    text = GLOSSARY.read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows[2:]]


def retired() -> list[Retired]:
    found = []
    for words, instead, scope, _why in rows_of("Words we do not use"):
        alternatives = "|".join(
            re.escape(word.strip(" `")).replace(r"\ ", r"[\s_]+") for word in words.split(",")
        )
        found.append(
            Retired(
                re.compile(rf"(?<![^\W_])(?:{alternatives})(?![^\W_])", re.IGNORECASE),
                instead,
                scope.startswith("names"),
                tuple(re.findall(r"`(\w+)/`", scope)),
            )
        )
    return found


def names_and_sentences(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield (line, text, whether it is a name) of the names, texts and comments of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], re.sub(r"(?<=[a-z])(?=[A-Z])", "_", token.string), True
        elif token.type in (tokenize.STRING, tokenize.COMMENT):
            yield token.start[0], token.string, False


def found_in(path: Path, words: list[Retired]) -> Iterator[str]:
    name = path.relative_to(ROOT).as_posix()
    source = path.read_text(encoding="utf-8")
    kept = SERIALISED.get(name, set())
    if path.suffix != ".py":
        for word in kept:
            source = source.replace(f"`{word}`", "")
    parts: Iterator[tuple[int, str, bool]] = (
        names_and_sentences(source) if path.suffix == ".py" else iter([(1, source, False)])
    )
    package = name.split("/")[1] if name.startswith("dagster_jet/") else ""
    for line, text, is_name in parts:
        if text.strip("\"'") in kept:
            continue
        for one in words:
            if (one.names_only and not is_name) or package in one.except_in:
                continue
            for match in one.words.finditer(text):
                at = line + text.count("\n", 0, match.start())
                yield f"{name}:{at}: {match[0]!r}: say {one.instead}"


def modules(folder: str = "dagster_jet") -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_the_code_uses_the_words_of_the_glossary() -> None:
    words = retired()
    assert words
    assert not [one for path in modules() for one in found_in(path, words)]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_uses_the_words_of_the_glossary(page: str) -> None:
    if page != "docs/glossary.md":  # which names the words that it retires
        assert not list(found_in(ROOT / page, retired()))


def test_a_retired_word_is_found_in_names_texts_and_comments(tmp_path: Path) -> None:
    planted = (
        "class LeftoverFiles:  # the mailbox\n"
        '    """Rows that were\n    set aside."""\n'
        "    dead_until = 1\n"
        "    outset, asides = 'told', 'an unsettling remark'\n"
    )
    found = [
        (line, one.instead)
        for line, text, is_name in names_and_sentences(planted)
        for one in retired()
        if one.words.search(text) and (is_name or not one.names_only)
    ]
    assert [line for line, _ in found] == [1, 1, 2, 4]


@pytest.mark.parametrize("folder", ["dagster_jet", "tests", "benchmarks"])
def test_a_docstring_begins_with_a_subject_or_a_verb(folder: str) -> None:
    riddle = re.compile(r'"""(?:Of|What|So long) ')
    assert not [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in modules(folder)
        for line in path.read_text(encoding="utf-8").splitlines()
        if riddle.search(line)
    ]


def test_no_module_is_called_after_nothing() -> None:
    """A name tells the idea."""
    empty = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
    assert not [p for p in (ROOT / "dagster_jet").rglob("*.py") if empty & set(p.stem.split("_"))]


def test_the_glossary_is_in_order_and_points_at_what_exists() -> None:
    rows = rows_of("Terms")
    terms = [re.sub(r"[*`]", "", row[0]).lower() for row in rows]
    assert len(terms) > 40
    assert terms == sorted(terms)
    assert len(set(terms)) == len(terms)
    for term, meaning, where in rows:
        assert meaning, term
        paths = re.findall(r"`(dagster_jet/[\w/.]+)`", where)
        assert paths, f"{term}: where in the code?"
        for path in paths:
            assert (ROOT / path).exists(), f"{term}: {path}"


def test_every_exception_is_still_needed() -> None:
    for name, kept in SERIALISED.items():
        source = (ROOT / name).read_text(encoding="utf-8")
        assert kept <= set(re.findall(r"\w+", source)), name

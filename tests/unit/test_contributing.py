"""Commands for contributors exist, and hooks and CI run what the Makefile runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GUIDES = ["CONTRIBUTING.md", "SECURITY.md", ".github/pull_request_template.md"]


@pytest.mark.parametrize("page", GUIDES)
def test_what_a_guide_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE)) <= targets
    paths = re.findall(r"(?:`|pytest )((?:\.?\w+/)[\w./-]*)(?=[`\s])", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    for path, name in re.findall(r"pytest (\S+) -k test_(\w+)", text):
        assert f"def test_{name}_" in (ROOT / path).read_text(encoding="utf-8")


def test_what_the_makefile_runs_exists() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    paths = re.findall(r"(?<=\s)(?:tests|benchmarks|scripts|demo)/[\w./-]+", text)
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []


def test_each_recipe_has_ten_lines() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipes = re.findall(r"^## Recipe: (.*)\n\n((?:\d+\. .*\n)+)", text, re.MULTILINE)
    assert [(name, steps.count("\n")) for name, steps in recipes] == [
        ("a new connector", 10),
        ("a new operator", 10),
        ("a new store member", 10),
    ]


def test_hooks_run_lint_and_ci_runs_its_script() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    entries = [hook["entry"] for repo in hooks["repos"] for hook in repo["hooks"]]
    assert [entry.split()[0::2] for entry in entries] == [["make", "lint"]]
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    steps = [step.get("run") for job in workflow["jobs"].values() for step in job["steps"]]
    assert steps[-1] == ".ci/run"


def test_forms_for_issues_are_forms() -> None:
    for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.stem != "config":
            assert {"name", "description", "body"} <= form.keys()
            assert any(part.get("validations", {}).get("required") for part in form["body"])

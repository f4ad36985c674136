"""Servers that are not installed: one sentence says what to install, and the run ends with 1."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers import __main__ as command
from tests.servers import packages, rabbitmq


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which no server is installed; its programs are in this folder."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(rabbitmq, "executable", lambda *_: None)
    monkeypatch.setattr(command.pkgutil, "iter_modules", lambda _: [Named()])

    @contextmanager
    def untouched() -> Iterator[None]:
        yield

    monkeypatch.setattr(packages, "_services_stay_down", untouched)
    return tmp_path


class Named:
    name = "rabbitmq"


def put_apt(folder: Path, script: str) -> None:
    program = folder / "apt-get"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    assert shutil.which("apt-get") == str(program)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    assert command.main() == 1
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1, "one sentence"
    return told.err.strip()


def test_without_apt_it_says_what_to_install(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys) == "The tests need rabbitmq-server: install them, and try again."


def test_who_is_not_root_is_told_the_command(
    bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_apt(bare, "exit 0")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    told = "The tests need rabbitmq-server: `sudo apt-get install rabbitmq-server`, and try again."
    assert said(capsys) == told


def test_what_apt_says_when_it_fails_is_passed_on(
    bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_apt(bare, 'test "$1" = update || { echo "E: no such package" >&2; exit 100; }')
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    told = said(capsys)
    assert told.startswith("`apt-get install -y") and told.endswith("failed: E: no such package")

"""Fail points for crash tests: lists them, and runs a child process that hits one.

    death = FailPoints(log).run([sys.executable, "jobs/job.py"], "record.snapshot.after:3=kill")
    assert death.was_killed and death.reached == ("record.snapshot.after",)

Rules are passed in the environment, because the processes to hit are children of a JVM.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_PLACEHOLDERS = {"purpose": ("Purpose", ("WriteRecord", "_write_record"))}
"""By placeholder in a point's name: an enumeration, and the calls whose first argument is a member
for which the placeholder stands."""


@dataclass(frozen=True)
class Death:
    """End of a child process.

    Attributes:
        returncode: as in `subprocess`: negative for a signal.
        reached: the points that acted, in order.
        output: the output of the child and its JVM.
    """

    returncode: int
    reached: tuple[str, ...]
    output: str

    @property
    def was_killed(self) -> bool:
        return self.returncode == -signal.SIGKILL


class FailPoints:
    """Configures fail points for child processes and records which ones were reached.

    Args:
        log: file to which every process appends the points that acted.
    """

    def __init__(self, log: Path) -> None:
        self.log = log

    @staticmethod
    def in_source(package: Path | None = None) -> dict[str, str]:
        """Returns all points of a package (default: this one) by name, with the place of a call."""
        package = package or _PACKAGE
        called = {"fail_point", *(name for _, names in _PLACEHOLDERS.values() for name in names)}
        texts = ((path, path.read_text("utf-8")) for path in sorted(package.rglob("*.py")))
        trees = {
            path: ast.parse(text)
            for path, text in texts
            if any(f"{name}(" in text for name in called)  # few files have one
        }
        constants = {
            placeholder: sorted(
                {
                    value
                    for tree in trees.values()
                    for name in names
                    for value in _first_arguments(tree, name, enumeration)
                }
            )
            for placeholder, (enumeration, names) in _PLACEHOLDERS.items()
        }
        points: dict[str, str] = {}
        for path, tree in trees.items():
            for call in _calls(tree, "fail_point"):
                for name in _names(call.args[0], constants):
                    place = f"{path.relative_to(package.parent)}:{call.lineno}"
                    points.setdefault(name, place)
        return points

    def environment(self, rules: str) -> dict[str, str]:
        """Returns the variables to add to a process's environment before it starts Spark."""
        return {"JET_FAIL_POINTS": rules, "JET_FAIL_POINT_LOG": str(self.log)}

    @property
    def reached(self) -> tuple[str, ...]:
        """Points that acted so far, in order of time."""
        if not self.log.exists():
            return ()
        lines = self.log.read_text("utf-8").split()
        return tuple(line.partition("=")[0] for line in lines)

    @property
    def frozen(self) -> tuple[int, ...]:
        """Ids of the processes that a ``freeze`` has stopped so far; SIGCONT resumes them."""
        if not self.log.exists():
            return ()
        actions = (line.partition("=")[2] for line in self.log.read_text("utf-8").split())
        return tuple(int(action[7:]) for action in actions if action.startswith("freeze@"))

    def start(
        self, command: Sequence[str], rules: str, output: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a child with `rules` configured. Its output goes to a file: the child's own
        children outlive it briefly and would keep a pipe open."""
        with open(output, "ab") as sink:
            return subprocess.Popen(
                command,
                env={**os.environ, **(env or {}), **self.environment(rules)},
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def run(
        self,
        command: Sequence[str],
        rules: str,
        *,
        timeout_s: float = 120,
        env: Mapping[str, str] | None = None,
    ) -> Death:
        """Runs a child with `rules` configured and waits for its end.

        Raises:
            subprocess.TimeoutExpired: it did not end in time; it has been killed.
        """
        before = len(self.reached)
        output = self.log.with_suffix(".out")
        said_before = output.stat().st_size if output.exists() else 0
        child = self.start(command, rules, output, env)
        try:
            child.wait(timeout_s)
        finally:
            child.kill()
            child.wait()
        said = output.read_bytes()[said_before:].decode("utf-8", "replace")
        return Death(child.returncode, self.reached[before:], said)


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            callee = node.func
            called = callee.attr if isinstance(callee, ast.Attribute) else None
            if called == name or (isinstance(callee, ast.Name) and callee.id == name):
                yield node


def _first_arguments(tree: ast.AST, name: str, enumeration: str) -> Iterator[str]:
    """Yields values of members that are first arguments: the lower-case names of the members."""
    for call in _calls(tree, name):
        match call.args[0]:
            case ast.Attribute(value=ast.Name(id=owner), attr=member) if owner == enumeration:
                yield member.lower()


def _names(argument: ast.expr, constants: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if isinstance(argument, ast.Constant):
        yield str(argument.value)
        return
    if not isinstance(argument, ast.JoinedStr):
        raise ValueError(f"line {argument.lineno}: a fail point needs a name that can be read here")
    parts: list[Sequence[str]] = []
    for part in argument.values:
        if isinstance(part, ast.Constant):
            parts.append([str(part.value)])
        elif isinstance(part, ast.FormattedValue):
            match part.value:
                case ast.Attribute(value=ast.Name(id=placeholder), attr="value"):
                    parts.append(constants[placeholder])
    yield from ("".join(names) for names in product(*parts))


__all__ = ["Death", "FailPoints"]

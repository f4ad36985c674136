"""Digest of what a pipeline is made of: expressions, settings, connectors, the code of functions.

It is equal in all processes that load the same code. Nothing in it depends on hash seeds, memory
addresses, module names or Python's byte code, except for functions whose source cannot be read.
Comments, formatting and docstrings do not count. Connectors show no secrets.

Followed are the functions, classes and constants of the same top-level package that a function
uses. Other packages count by name only. A setting that differs at each start, such as the current
time in a filter, makes a new definition at each start.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

from dagster_jet.contract.definition import Definition
from dagster_jet.core.secret import Secret

Json: TypeAlias = Any

_LIBRARY = "dagster_jet."
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SPELLED_BY_REPR = (
    "datetime", "decimal", "fractions", "numpy", "pandas", "pathlib", "pyarrow", "pyspark", "re",
    "uuid", "zoneinfo",
)  # fmt: skip
"""Packages whose objects have a repr that is complete and equal in all processes."""
_CHARACTERS = 16


def digest(value: object) -> str:
    """Returns the digest of a value: nodes of a pipeline, or anything that they refer to."""
    text = json.dumps(_Writer().written(value), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_CHARACTERS]


class _Writer:
    """Converts values to JSON; a function or class that refers to itself is written once."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def written(self, value: object) -> Json:
        match value:
            case None | bool() | int() | str() if not isinstance(value, Enum):
                return value
            case Enum():
                return [type(value).__qualname__, value.name]
            case float() | bytes():
                return repr(value)
            case Secret():
                return ["secret", value.env]
            case Definition():
                return [*self._object(value), self.written(value.describe())]
            case dict():
                return _sorted([self.written(key), self.written(value[key])] for key in value)
            case list() | tuple():
                return [self.written(each) for each in value]
            case set() | frozenset():
                return _sorted(map(self.written, value))
            case functools.partial():
                return [self.written(part) for part in (value.func, value.args, value.keywords)]
            case MethodType():
                return [self.written(value.__func__), self.written(value.__self__)]
            case FunctionType():
                return self._once(value, self._function)
            case type():
                return self._once(value, self._class)
            case ModuleType():
                return value.__name__
            case _ if is_dataclass(value):
                parts = {f.name: getattr(value, f.name) for f in fields(value) if f.compare}
                return [*self._object(value), self.written(parts)]
            case _:
                return self._object(value)

    def _object(self, value: object) -> list[Json]:
        """Writes an object by its class, and by its repr where that says what it is."""
        cls = type(value)
        said = _root(cls) in _SPELLED_BY_REPR or isinstance(value, Definition)
        if said and cls.__repr__ is not object.__repr__:
            return [cls.__qualname__, _ADDRESS.sub("", repr(value))]
        return [cls.__qualname__, self.written(cls) if callable(value) else None]

    def _once(self, value: Any, write: Callable[[Any], Json]) -> Json:
        if id(value) in self._seen:
            return value.__qualname__
        self._seen.add(id(value))
        return write(value)

    def _function(self, function: FunctionType) -> Json:
        text = None
        if not str(function.__module__).startswith(_LIBRARY):  # None, if `exec` has made it
            text = _text_at(function, function.__code__.co_firstlineno) or _byte_code(function)
        return [
            function.__qualname__ if text is None else text,
            [self.written(cell) for cell in _cells(function)],
            self.written(function.__defaults__),
            self.written(function.__kwdefaults__),
            {} if text is None else self._used(function),
        ]

    def _class(self, cls: type) -> Json:
        if not hasattr(cls, "__dict__") or _root(cls) in (*_SPELLED_BY_REPR, "builtins"):
            return cls.__qualname__
        if cls.__module__.startswith(_LIBRARY):
            return cls.__qualname__
        methods = [each for each in vars(cls).values() if isinstance(each, FunctionType)]
        bases = [base for base in cls.__bases__ if _root(base) == _root(cls)]
        return [
            _text(cls) or cls.__qualname__,
            [self.written(base) for base in bases],
            [self._used(method) for method in methods],
        ]

    def _used(self, function: FunctionType) -> dict[str, Json]:
        """Writes the globals of the function's package that it refers to, by name."""
        names, root = set(_names(function.__code__)), _root(function)
        found: dict[str, object] = {
            name: value for name, value in function.__globals__.items() if name in names
        }
        own = [v for v in found.values() if isinstance(v, ModuleType) and _root(v) == root]
        for module in own:
            found |= {name: value for name, value in vars(module).items() if name in names}
        return {
            name: self.written(value)
            for name, value in sorted(found.items())
            if _is_constant(value)
            or (isinstance(value, FunctionType | type) and _root(value) == root)
        }


def _root(value: Any) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else value.__module__
    return str(name).partition(".")[0]


def _sorted(values: Any) -> list[Json]:
    return sorted(values, key=lambda value: json.dumps(value, sort_keys=True))


def _is_constant(value: object) -> bool:
    return value is None or type(value) in (
        bool, int, float, str, bytes, tuple, list, dict, set, frozenset
    )  # fmt: skip


def _cells(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            yield None


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _text_at(function: FunctionType, line: int) -> str | None:
    """Returns the normalized source of what is defined at a line; None if it cannot be read.

    Of several lambdas on one line it is all: which of them is meant is not known.
    """
    try:
        lines, _ = inspect.findsource(function)
        module = _parsed("".join(lines))
    except (OSError, SyntaxError, TypeError):  # typed into a console
        return None
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    found = [
        node for node in ast.walk(module) if isinstance(node, kinds) and line == _first_line(node)
    ]
    named = [node for node in found if getattr(node, "name", "<lambda>") == function.__name__]
    return "\n".join(map(_unparsed, named)) if named else None


def _text(cls: type) -> str | None:
    try:
        return _unparsed(_parsed(textwrap.dedent(inspect.getsource(cls))))
    except (OSError, SyntaxError, TypeError):
        return None


@functools.lru_cache(maxsize=32)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min(each.lineno for each in (node, *decorators))


def _unparsed(node: ast.AST) -> str:
    return ast.unparse(_WithoutDocstrings().visit(ast.parse(ast.unparse(node))))


class _WithoutDocstrings(ast.NodeTransformer):
    def visit_FunctionDef(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return node  # type: ignore[no-any-return]

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # noqa: N815


def _byte_code(function: FunctionType) -> Json:
    def write(code: CodeType) -> Json:
        constants = [write(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
        return [code.co_code.hex(), list(code.co_names), constants]

    return write(function.__code__)

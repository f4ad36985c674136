"""Every public name with its signature, as text: what a user may build on.

    python -m tests.unit.face.public_surface

writes it anew, after a change that is meant.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import dagster_jet

PINNED = Path(__file__).with_name("public_surface.txt")
MODULES = (
    "dagster_jet",
    "dagster_jet.pipeline.aggregates",
    "dagster_jet.pipeline.windows",
    "dagster_jet.sources",
    "dagster_jet.sinks",
    "dagster_jet.tables",
    "dagster_jet.events",
    "dagster_jet.contract",
    "dagster_jet.dag",
    "dagster_jet.testing",
    "dagster_jet.connector_kit",
)


def surface() -> list[str]:
    """One line per name; modules in the order of `MODULES`, names sorted."""
    return [line for module in MODULES for line in _module(module)]


def _module(name: str) -> Iterator[str]:
    module = import_module(name)
    for public in sorted(_public(module)):
        value = getattr(module, public)
        if isinstance(value, types.ModuleType):
            yield f"{name}.{public} is {value.__name__}"
        elif isinstance(value, type):
            yield from _class(f"{name}.{public}", value)
        elif isinstance(value, types.FunctionType):
            yield f"{name}.{public}{_signature(value)}"
        else:
            yield f"{name}.{public}: {_text(value)}"


def _public(module: types.ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = (n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__)
    return [name for name in own if not name.startswith("_")]


def _class(path: str, kind: Any) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in kind.__bases__ if base is not object)
    is_enum, is_model = issubclass(kind, Enum), issubclass(kind, BaseModel)
    yield f"{path}({bases})" if bases else path
    if is_enum:
        yield from (f"{path}.{member.name} = {member.value!r}" for member in kind)
    elif is_model:
        declared_in = reversed(_own_bases(kind))
        fields_of = (pair for base in declared_in for pair in base.__annotations__.items())
        for field, declared in fields_of:
            if not field.startswith("_") and field != "model_config":
                yield f"{path}.{field}: {declared}"
    elif not (
        issubclass(kind, Exception)
        or "__init__" in _inherited(kind)
        or getattr(kind, "_is_protocol", False)
        or kind.__init__ is object.__init__
    ):
        yield f"{path}.__init__{_signature(kind.__init__)}"
    fields = {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    for name in sorted({n for base in _own_bases(kind) for n in vars(base)}):
        value = inspect.getattr_static(kind, name)
        if name in _inherited(kind) or name.startswith("_") or name in fields:
            continue
        if is_enum and name in kind.__members__:
            continue
        if isinstance(value, property):
            yield f"{path}.{name}: {_returned(value.fget)}"
        elif isinstance(value, (classmethod, staticmethod, types.FunctionType)):
            if not (is_model and name == "model_post_init"):
                yield f"{path}.{name}{_signature(getattr(value, '__func__', value))}"


def _inherited(kind: type) -> set[str]:
    """Names inherited from classes that are listed themselves."""
    listed = [b for b in kind.__mro__[1:] if getattr(dagster_jet, b.__name__, None) is b]
    names = {name for base in listed for one in _own_bases(base) for name in vars(one)}
    return names - set(vars(kind))


def _own_bases(kind: type) -> list[type]:
    return [base for base in kind.__mro__ if base.__module__.startswith("dagster_jet")]


def _signature(function: object) -> str:
    return _text(str(inspect.signature(function)))


def _returned(function: object) -> str:
    return _text(getattr(function, "__annotations__", {}).get("return", "?"))


def _text(value: object) -> str:
    """Text without parts that differ from run to run, and without quotes around annotations."""
    text = re.sub(r" at 0x[0-9a-f]+", "", str(value))
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    return re.sub(r'(: |-> )"([^"]*)"', r"\1\2", text).replace("\n", " ")


if __name__ == "__main__":
    PINNED.write_text("\n".join(surface()) + "\n", encoding="utf-8")

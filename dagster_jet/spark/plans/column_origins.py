"""Finds the input columns of each column of a user's transform, from Spark's plan.

Spark's analysed plan is read as JSON, in one call: it contains everything that the function does to
a frame. No Spark job runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_jet.spark.plans.nodes import analyzed, elements

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NEW_COLUMNS = ("output", "generatorOutput", "attrs", "cogroupedOutput", "outputObjAttr")
"""Fields in which a plan's node lists new columns without their origins."""
_LISTED = ("projectList", "aggregateExpressions", "output")
"""Fields that list all of a node's columns."""


def transform_origins(given: DataFrame, returned: DataFrame) -> dict[str, frozenset[str]]:
    """Returns for each column of `returned` the columns of `given` from which it is computed.

    Args:
        given: input of a function.
        returned: its result.
    """
    inputs, stream = _outputs_of(given)
    ids, plan = _outputs_of(returned)
    found = column_origins(plan, stream, dict(zip(inputs, given.columns, strict=True)))
    columns = zip(returned.columns, ids, strict=True)
    return {name: found.get(column, frozenset()) for name, column in columns}


def column_origins(
    plan: list[Any], stream: list[Any], columns: Mapping[int, str]
) -> dict[int, frozenset[str]]:
    """Returns for each column of a plan the columns of the stream from which it is computed. Pure.

    Args:
        plan: Spark's ``TreeNode.toJSON`` of it, parsed: nodes in pre-order.
        stream: the same of the stream, which is part of the plan.
        columns: names of the stream's columns by their ids in both.
    """
    return _origins(_tree(iter(plan)), _Stream(_tree(iter(stream)), columns))


@dataclass(frozen=True)
class _Node:
    fields: Mapping[str, Any]
    children: tuple[_Node, ...]


@dataclass(frozen=True)
class _Stream:
    tree: _Node
    columns: Mapping[int, str]

    def origin(self, name: str) -> frozenset[str]:
        """Origin of a leaf's column outside of the stream. For a second use of the stream Spark
        makes a copy with other ids, so only the name is left."""
        return frozenset({name} & {*self.columns.values()})


def _tree(nodes: Iterator[Any]) -> _Node:
    fields = next(nodes)
    return _Node(fields, tuple(_tree(nodes) for _ in range(fields["num-children"])))


def _origins(node: _Node, stream: _Stream) -> dict[int, frozenset[str]]:
    if node == stream.tree:
        return {column: frozenset({name}) for column, name in stream.columns.items()}
    below: dict[int, frozenset[str]] = {}
    for child in node.children:
        below.update(_origins(child, stream))
    here = dict(below)
    for column, used in _made(node):
        here[column] = frozenset().union(*(below.get(one, frozenset()) for one in used))
    for column, name in _attributes([node.fields.get(each) for each in _NEW_COLUMNS]):
        if column in here:
            continue
        # A column of a leaf, of a function that gets whole rows, or of a generator.
        here[column] = (
            frozenset().union(*(below[one] for one in _reads(node) if one in below))
            if node.children
            else stream.origin(name)
        )
    if node.fields["class"].endswith(".Union"):
        _join_by_place(node, here)
    return here


def _made(node: _Node) -> Iterator[tuple[int, set[int]]]:
    """Named expressions of a node: the new column, and the columns in its expression."""
    for value in node.fields.values():
        for expression in value if isinstance(value, list) else ():
            if isinstance(expression, list) and expression and _kind(expression[0]) == "Alias":
                yield _id(expression[0]), {column for column, _ in _attributes(expression[1:])}


def _reads(node: _Node) -> set[int]:
    """Columns read by a node that makes new ones: those it names, else all."""
    fields = {k: v for k, v in node.fields.items() if k not in _NEW_COLUMNS}
    named = {column for column, _ in _attributes(list(fields.values()))}
    return named or {column for child in node.children for column in _outputs(child)}


def _join_by_place(node: _Node, here: dict[int, frozenset[str]]) -> None:
    """Adds to a union's columns (the first branch's) the origins of the others' by position."""
    for columns in zip(*map(_outputs, node.children), strict=False):
        parts = (here.get(column, frozenset()) for column in columns)
        here[columns[0]] = frozenset().union(*parts)


def _outputs(node: _Node) -> list[int]:
    """A node's columns, in order."""
    for name in _LISTED:
        listed = node.fields.get(name)
        if isinstance(listed, list):
            return [_id(each[0] if isinstance(each, list) else each) for each in listed]
    if node.fields["class"].endswith(".Union"):
        return _outputs(node.children[0])
    own = [column for column, _ in _attributes(node.fields.get("generatorOutput"))]
    return [column for child in node.children for column in _outputs(child)] + own


def _attributes(value: Any) -> Iterator[tuple[int, str]]:
    """Yields all columns that are named anywhere in a value."""
    if isinstance(value, list):
        for each in value:
            yield from _attributes(each)
    elif isinstance(value, dict):
        if _kind(value) == "AttributeReference":
            yield _id(value), value["name"]
        else:
            for each in value.values():
                yield from _attributes(each)


def _kind(expression: Mapping[str, Any]) -> str:
    return str(expression.get("class", "")).rpartition(".")[2]


def _id(expression: Mapping[str, Any]) -> int:
    return int(expression["exprId"]["id"])


def _outputs_of(frame: DataFrame) -> tuple[list[int], list[Any]]:
    """The ids of a frame's columns, in order, and its plan."""
    plan = analyzed(frame)
    return [one.exprId().id() for one in elements(plan.output())], json.loads(plan.toJSON())

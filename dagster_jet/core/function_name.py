"""Names of users' functions, and of the classes of what they return."""

from __future__ import annotations

from functools import partial


def function_name(function: object) -> str:
    """Returns the name of a function, of the one in a `partial`, or of the class of another object
    that can be called. It is equal in all processes, which the text of an object is not: that has
    an address.

    Example:
        >>> function_name(partial(partial(sorted, key=len), [1]))
        'sorted'
    """
    while isinstance(function, partial):
        function = function.func
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name


def class_name(value: object) -> str:
    """Returns the name of the class of a value, with its package unless that is Python's own: a
    DataFrame is one of several.

    Example:
        >>> class_name([]), class_name(partial(print))
        ('list', 'functools.partial')
    """
    package, name = type(value).__module__.partition(".")[0], type(value).__qualname__
    return name if package == "builtins" else f"{package}.{name}"
